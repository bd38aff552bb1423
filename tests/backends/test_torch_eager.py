# SPDX-License-Identifier: Apache-2.0
import warnings

import torch
from torch import nn

from fewbit.backends.torch_eager import accepts, view


class Mine(nn.Linear):
    pass


def test_modules_are_taken_and_nothing_else():
    assert accepts(Mine(2, 2)) and accepts(nn.Sequential())
    assert not accepts(torch.zeros(2)) and not accepts(Mine) and not accepts(lambda x: x)


def test_a_scripted_module_has_no_python_to_hook_into():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not accepts(torch.jit.script(nn.Linear(2, 2)))


def test_the_view_shows_the_module_itself():
    module = Mine(2, 2)
    assert view(module).native() is module
