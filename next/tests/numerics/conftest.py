# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from numerics_reference import LIBRARIES


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=LIBRARIES)
def array(request):
    """Makes an array of the library from one of numpy."""
    return LIBRARIES[request.param]
