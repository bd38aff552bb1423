# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fewbit.kernels import int4_weight_only
from fewbit.kernels._int4 import FEW, int4_few, int4_linear
from fewbit.modules.frozen import freeze_layer, thaw_layer
from fewbit.modules.quantized import get_weight, set_weight
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.scales import ScaleType
from frozen_layers import DEVICES, INT8, TOKEN, encoded, expected, linear, quantizer, terms


def groups(size, dtype=Dtype.int4, **options):
    return Grid(dtype, QSchemeType.per_group, group_size=size, **options)


BF16 = {"scale_type": ScaleType.bfloat16}
GRIDS = {
    "symmetric": groups(32, **BF16),
    "symmetric, float32 scales": groups(128),
    "asymmetric": groups(64, Dtype.uint4, symmetric=False, **BF16),
    "asymmetric, float32 scales": groups(32, Dtype.uint4, symmetric=False),
    "asymmetric, signed": groups(32, symmetric=False, **BF16),
    "symmetric, unsigned": groups(32, Dtype.uint4, **BF16),
    "full range": groups(32, full_range=True, **BF16),
    "float zero points": groups(32, Dtype.uint4, symmetric=False, float_zero=True, **BF16),
    "channel": Grid(Dtype.int4, QSchemeType.per_channel),
    "tensor": Grid(Dtype.uint4, symmetric=False),
    "rectangles": Grid(Dtype.int4, QSchemeType.per_block, block_size=(16, 64), **BF16),
    "wide groups": groups(128, Dtype.uint4, symmetric=False, scale_type=ScaleType.float16),
}


def same(before, after):
    return before.keys() == after.keys() and all(
        torch.equal(before[part], after[part]) and before[part].dtype is after[part].dtype for part in before
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tokens", [1, 9, 200])
@pytest.mark.parametrize("grid", GRIDS)
def test_a_frozen_layer_computes_nearly_the_same_and_gives_its_codes_back(grid, tokens, device):
    torch.manual_seed(0)
    layer = linear(40, 384, GRIDS[grid], device=device)
    weight = torch.randn(40, 384) / 20
    set_weight(layer, "weight", encoded(weight, GRIDS[grid]))
    layer.to(device)
    before = get_weight(layer, "weight").tensors()
    x = torch.randn(tokens, 384, device=device)
    right, _ = expected(layer, x)
    unquantized = F.linear(x.double(), weight.to(device).double(), layer.bias.double())
    assert freeze_layer(layer, terms(device)) == {}
    assert layer.kernel.name == "int4_weight_only" and "packed" in layer.kernel.takes
    assert same(before, get_weight(layer, "weight").tensors())
    out = layer(x)
    assert out.dtype is torch.float32
    # bfloat16 keeps eight bits of activations, scales and outputs; four bits of the weights cost far more.
    assert (out - right).norm() < 0.006 * right.norm()
    assert (out - right).norm() < 0.08 * (right - unquantized).norm()
    thaw_layer(layer)
    assert same(before, {part: getattr(layer, f"weight_{part}") for part in before})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tokens", [3, 200])
def test_bfloat16_models(tokens, device):
    layer = linear(48, 256, GRIDS["asymmetric"], dtype=torch.bfloat16, device=device)
    x = torch.randn(tokens, 256, device=device).bfloat16()
    right, _ = expected(layer, x)
    freeze_layer(layer, terms(device, exact=True))
    assert layer.kernel.name == "int4_weight_only" and not layer.kernel.note
    out = layer(x)
    assert out.dtype is torch.bfloat16
    assert (out - right).norm() < 0.005 * right.norm()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("activation", [TOKEN, Grid(Dtype.uint8, QSchemeType.per_token, symmetric=False)], ids=str)
def test_codes_of_activations_are_not_rounded(activation, device):
    layer = linear(64, 256, GRIDS["channel"], quantizer(activation), bias=False, device=device)
    x = torch.randn(5, 256, device=device)
    right, _ = expected(layer, x)
    freeze_layer(layer, terms(device))
    # Whole numbers in, whole weights: nothing is rounded but the outputs.
    assert ((layer(x) - right).abs() <= 2.0**-8 * right.abs() + 1e-6).all()


def test_other_activations_are_quantized_first():
    layer = linear(32, 64, GRIDS["symmetric"], quantizer(Grid(Dtype.fp8_e4m3)))
    x = torch.randn(5, 64)
    right, _ = expected(layer, x)
    freeze_layer(layer, terms())
    assert layer.kernel.name == "int4_weight_only"
    assert (layer(x) - right).norm() < 0.006 * right.norm()


@given(st.integers(1, 70), st.sampled_from([32, 64, 96, 160, 256]), st.sampled_from(sorted(GRIDS)), st.integers(0, 99))
def test_any_sizes_come_back_bit_by_bit(outputs, features, grid, seed):
    torch.manual_seed(seed)
    layer = linear(outputs, features, GRIDS[grid])
    before = get_weight(layer, "weight").tensors()
    freeze_layer(layer, terms())
    assert same(before, get_weight(layer, "weight").tensors())


@pytest.mark.parametrize("device", DEVICES)
def test_many_tokens_take_another_way_to_the_same(device):
    layer = linear(176, 256, GRIDS["asymmetric"], device=device)
    freeze_layer(layer, terms(device))
    kernel = layer.kernel
    x = torch.randn(FEW[device] + 1, 256, device=device).bfloat16()
    many, few = (run(x, kernel.weight, kernel.scales, kernel.group) for run in (int4_linear, int4_few))
    assert (many - few).norm() < 0.005 * few.norm()


def test_scales_are_kept_once_where_the_kernel_can_tell_them():
    kept = {}
    for name in ("symmetric", "asymmetric", "symmetric, float32 scales", "float zero points"):
        layer = linear(16, 128, GRIDS[name])
        freeze_layer(layer, terms())
        kept[name] = layer.kernel.takes
    assert kept == {
        "symmetric": ("packed", "scale"),
        "asymmetric": ("packed", "scale", "zero_point"),
        "symmetric, float32 scales": ("packed",),
        "float zero points": ("packed",),
    }


@pytest.mark.parametrize(
    ("grid", "features", "given", "why"),
    [
        (groups(16), 64, {}, "not 16 of 64"),
        (groups(32), 48, {}, "not 32 of 48"),
        (groups(32), 64, {"exact": True}, "float32"),
        (groups(32), 64, {"shared": True}, "other layers"),
        (groups(32), 64, {"device": "xpu"}, "xpu"),
        (INT8, 64, {}, ""),
        (Grid(Dtype.nf4, QSchemeType.per_group, group_size=32), 64, {}, ""),
    ],
)
def test_what_it_refuses(grid, features, given, why):
    found = int4_weight_only.refuses(linear(16, features, grid), terms(**given))
    assert (why in found) if why else found == ""


def test_a_pytorch_without_the_kernel(monkeypatch):
    monkeypatch.delattr(torch, "_convert_weight_to_int4pack_for_cpu")
    layer = linear(16, 64, groups(32))
    assert "_convert_weight_to_int4pack_for_cpu" in freeze_layer(layer, terms())["int4_weight_only"]
    assert layer.kernel.name == "dequantize"


def test_a_convolution_is_none_of_its_business():
    layer = nn.Conv2d(32, 4, 1)
    set_weight(layer, "weight", encoded(layer.weight.detach(), groups(32)))
    assert int4_weight_only.refuses(layer, terms()) == ""
