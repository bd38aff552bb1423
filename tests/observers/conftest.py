# SPDX-License-Identifier: Apache-2.0
import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """Tensors here are tiny: a second thread only waits for the first."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
