# SPDX-License-Identifier: Apache-2.0
"""What a model is called with: what its forward takes, by whatever name, in the floats that it computes in."""

import copy

import pytest
import torch
from torch import nn

from fewbit.tuning.calling import inputs_of, run, takes


class Short(nn.Module):
    """One whose author calls it `s`."""

    def __init__(s):
        super().__init__()
        s.layer = nn.Linear(4, 2)

    def forward(s, x):
        return s.layer(x)


class NamedSelf(nn.Module):
    """One with an input called `self`."""

    def forward(this, self):
        return self


def test_the_model_itself_is_no_input_whatever_it_is_called():
    assert takes(Short()) == {"x"} and takes(NamedSelf()) == {"self"}
    pictures = torch.ones(3, 4)  # under another name, which does not matter where there is one input
    assert run(Short(), {"pixel_values": pictures, "labels": torch.zeros(3)}).shape == (3, 2)


def test_a_forward_that_was_put_on_the_model_is_read_as_it_is():
    model = Short()
    model.forward = lambda image, size=1: image
    assert takes(model) == {"image", "size"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_floats_come_in_the_dtype_of_the_model_and_nothing_else_changes(dtype):
    class Model(nn.Linear):
        def forward(self, x, mask, many):
            return x

    model = Model(4, 2).to(dtype)
    batch = {"x": torch.ones(3, 4), "mask": torch.ones(3, dtype=torch.long), "many": [torch.ones(2), (torch.ones(1),)]}
    batch["labels"] = torch.ones(3)
    before = copy.deepcopy(batch)
    args, named = inputs_of(model, batch, ("labels",))
    assert not args and named.keys() == {"x", "mask", "many"}
    assert named["x"].dtype is named["many"][0].dtype is named["many"][1][0].dtype is dtype
    assert named["mask"].dtype is torch.long
    assert torch.equal(batch["x"], before["x"]) and batch["x"].dtype is batch["labels"].dtype is torch.float32
    args, _ = inputs_of(model, {"args": (torch.ones(3, 4),), "labels": torch.ones(3)}, ("labels",))
    assert args[0].dtype is dtype
