# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fewbit.kernels import dequantize
from fewbit.kernels.dequantize import Kernel
from fewbit.modules.quantized import make_quantized, set_weight
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.scales import ScaleType
from frozen_layers import DEVICES, INT8, TOKEN, UINT8, encoded, expected, linear, quantizer, terms

GRIDS = [
    Grid(dtype, QSchemeType.per_group, group_size=16, symmetric=symmetric)
    for dtype in Dtype
    for symmetric in ((True, False) if dtype.is_integer else (True,))
    if dtype is not Dtype.int32
] + [
    INT8,
    UINT8,
    Grid(Dtype.fp8_e4m3, QSchemeType.per_channel),
    Grid(Dtype.int3),
    Grid(Dtype.nf4, QSchemeType.per_channel),
    Grid(Dtype.uint8, QSchemeType.per_channel, symmetric=False, float_zero=True),
    Grid(Dtype.fp8_e4m3, QSchemeType.per_block, block_size=(24, 24)),
    Grid(Dtype.fp4, QSchemeType.per_group, group_size=16, scale_type=ScaleType.float8_e4m3fn),
    Grid(Dtype.fp4, QSchemeType.per_group, group_size=32, scale_type=ScaleType.float8_e8m0fnu),
]


def frozen(layer, device="cpu"):
    layer.kernel = Kernel(layer, terms(device))
    return layer


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tile", [1 << 20, 400], ids=["whole", "tiles"])
@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: f"{g.dtype.name}-{g.granularity.value}-{g.symmetric}")
def test_any_grid(grid, tile, device, monkeypatch):
    monkeypatch.setattr(dequantize, "_TILE", {device: tile})
    layer = linear(50, 40, grid, device=device)
    x = torch.randn(3, 2, 40, device=device)
    right, size = expected(layer, x)
    out = frozen(layer, device)(x)
    assert out.shape == (3, 2, 50)
    assert ((out - right).abs() <= 2e-6 * size).all()


@pytest.mark.parametrize("grid", [INT8, Grid(Dtype.fp4, QSchemeType.per_group, group_size=8)], ids=["int8", "fp4"])
def test_half_precision(grid):
    layer = linear(50, 40, grid, quantizer(TOKEN), dtype=torch.bfloat16)
    x = torch.randn(3, 40).bfloat16()
    right, _ = expected(layer, x)
    out = frozen(layer)(x)
    assert out.dtype is torch.bfloat16
    assert (out - right).norm() < 0.01 * right.norm()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("grid", [INT8, UINT8, Grid(Dtype.fp8_e5m2)], ids=lambda g: g.dtype.name)
def test_float16_does_not_overflow_before_it_is_scaled(grid, device):
    layer = nn.Linear(1024, 8).half()
    nn.init.constant_(layer.weight, 0.01)
    nn.init.zeros_(layer.bias)
    set_weight(layer, "weight", encoded(layer.weight.detach().float(), grid))
    out = frozen(layer.requires_grad_(False).to(device), device)(torch.ones(1, 1024, device=device).half())
    assert (out.float() - 10.24).abs().max() < 0.05


@given(st.integers(1, 60), st.integers(1, 30), st.integers(1, 70), st.integers(1, 500))
def test_pieces_are_whole_blocks_and_hold_every_row(outputs, features, high, tile):
    weight = linear(outputs, features, Grid(Dtype.int8, QSchemeType.per_block, block_size=(high, 7)))
    weight = dequantize.weight_of(weight)
    before = dequantize._TILE
    dequantize._TILE = {"cpu": tile}
    try:
        pieces = dequantize._cut(weight)
    finally:
        dequantize._TILE = before
    assert [row for piece in pieces for row in range(piece.start, piece.stop)] == list(range(outputs))
    assert all(piece.start % weight.block[0] == 0 for piece in pieces) or weight.block[0] == outputs
    assert all((p.stop - p.start) * features <= max(tile, features * weight.block[0]) for p in pieces)


class Largest(TorchDispatchMode):
    """The most bytes that any one operation gave out."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() * leaf.element_size() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        view = func._schema.returns and func._schema.returns[0].alias_info is not None
        self.bytes = max(self.bytes, *(sizes if sizes and not view else [0]), 0)
        return out


@pytest.mark.parametrize(
    "grid",
    [INT8, UINT8, Grid(Dtype.int3, QSchemeType.per_group, group_size=32), Grid(Dtype.fp8_e4m3)],
    ids=["int8", "uint8", "int3", "fp8"],
)
def test_the_float_weight_never_exists_as_a_whole(grid, monkeypatch):
    monkeypatch.setattr(dequantize, "_TILE", {"cpu": 1 << 16})
    layer = frozen(linear(1024, 512, grid))
    with Largest() as largest:
        layer(torch.randn(1, 512))
    assert 0 < largest.bytes <= 4 * (1 << 16)  # an eighth of the float weight


def test_what_it_refuses():
    assert dequantize.refuses(linear(8, 8, INT8), terms()) is None
    assert dequantize.refuses(make_quantized(nn.Conv1d(1, 1, 1)), terms()) == ""
