# SPDX-License-Identifier: Apache-2.0
import pytest
import torch


@pytest.fixture
def threads():
    """Call a function with one to four threads: the results must be the same to the last bit."""
    before = torch.get_num_threads()

    def compare(function):
        results = []
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            results.append(function())
        assert all(torch.equal(result, results[0]) for result in results)
        return results[0]

    yield compare
    torch.set_num_threads(before)
