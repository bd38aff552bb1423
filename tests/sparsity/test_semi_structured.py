# SPDX-License-Identifier: Apache-2.0
"""2:4 weights for GPU kernels: who fits and who does not can be said without one."""

import pytest
import torch
from torch import nn

import fewbit
from fewbit.errors import UsageError
from fewbit.numerics.sparsity import Pattern, kept
from fewbit.sparsity import semi_structured
from fewbit.sparsity.semi_structured import is_two_of_four, to_semi_structured, unfit


def _layer(rows=64, columns=64, dtype=torch.float16, pattern="2:4"):
    torch.manual_seed(0)
    layer = nn.Linear(columns, rows)
    if pattern:
        mask = kept(layer.weight.detach().abs(), Pattern.read(pattern))
        layer.weight.data *= mask
    return layer.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_pruned_layer_fits(dtype):
    assert unfit(_layer(dtype=dtype)) is None
    assert unfit(_layer(dtype=dtype, pattern="1:4")) is None


def test_every_reason_is_told():
    assert "float32" in unfit(_layer(dtype=torch.float32))
    assert "more than two" in unfit(_layer(pattern=None))
    assert "more than two" in unfit(_layer(pattern="3:4"))
    assert "multiples" in unfit(_layer(columns=68))
    assert "multiples" in unfit(_layer(rows=65))
    small = fewbit.compress_weights(nn.Sequential(_layer(dtype=torch.float32)).eval(), mode="int8_sym")
    assert "codes" in unfit(small[0])


@pytest.mark.parametrize("shape", [(2, 3, 4), (4,), (2, 6), (0, 8)])
def test_what_has_no_fours_is_not_two_of_four(shape):
    assert not is_two_of_four(torch.zeros(shape))


def test_negative_zeros_are_zeros():
    assert is_two_of_four(torch.tensor([[-0.0, 1.0, -0.0, 2.0]]))


def test_without_a_gpu_it_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="no NVIDIA GPU"):
        to_semi_structured(nn.Sequential(_layer()))


def test_an_old_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    with pytest.raises(UsageError, match=r"7\.5"):
        to_semi_structured(nn.Sequential(_layer()))


def test_a_model_elsewhere_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    with pytest.raises(UsageError, match="on cpu"):
        to_semi_structured(nn.Sequential(_layer()))


def test_layers_are_swapped_in_a_copy_and_the_others_listed(monkeypatch):
    swapped = []
    monkeypatch.setattr(semi_structured, "_refuse_machine", lambda model: None)
    monkeypatch.setattr(semi_structured, "_swap", swapped.append)
    model = nn.Sequential(_layer(), nn.ReLU(), _layer(pattern=None))
    made = to_semi_structured(model)
    assert made.taken == ("0",) and list(made.left) == ["2"]
    assert swapped[0] is made.model[0] and swapped[0] is not model[0]
    with pytest.raises(UsageError, match="2: there are fours"):
        to_semi_structured(nn.Sequential(nn.Identity(), nn.Identity(), model[2]))
