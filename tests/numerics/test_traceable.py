# SPDX-License-Identifier: Apache-2.0
"""The same operations in a graph, and on another device."""

import pytest
import torch

from fewbit.numerics.blocks import Blocks, QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import from_range
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import dequantize, fake_quantize, quantize
from fewbit.numerics.rounding import RoundType
from fewbit.numerics.scales import ScaleMode, ScaleType
from fewbit.numerics.tiles import TILE


def grouped(dtype, **fields):
    return Grid(dtype, QSchemeType.per_group, group_size=16, **fields)


GRIDS = {
    "int8 channel": Grid(Dtype.int8, QSchemeType.per_channel),
    "uint4 asymmetric": grouped(Dtype.uint4, symmetric=False, scale_type=ScaleType.bfloat16),
    "int3 stochastic": grouped(Dtype.int3, rounding=RoundType.stochastic, seed=3),
    "int12 away": grouped(Dtype.int12, rounding=RoundType.round, scale_type=ScaleType.pof2),
    "uint16": Grid(Dtype.uint16, symmetric=False),
    "int32": Grid(Dtype.int32),
    "int4 signed scale": grouped(Dtype.int4, full_range=True, scale_type=ScaleType.float16),
    "int4 free zero": grouped(Dtype.int4, symmetric=False, float_zero=True),
    "float16": Grid(Dtype.float16),
    "fp8": Grid(Dtype.fp8_e4m3),
    "fp8_e5m2 floor": Grid(Dtype.fp8_e5m2, rounding=RoundType.floor),
    "mxfp4": grouped(Dtype.fp4, scale_type=ScaleType.float8_e8m0fnu),
    "mxfp6 ceil": grouped(Dtype.fp6_e3m2, scale_type=ScaleType.float8_e8m0fnu, scale_mode=ScaleMode.ceil),
    "nvfp4": grouped(Dtype.fp4, scale_type=ScaleType.float8_e4m3fn),
    "fp6 e5m3": grouped(Dtype.fp6_e2m3, scale_type=ScaleType.float8_e5m3),
    "nf4": grouped(Dtype.nf4),
    "nf4 stochastic": grouped(Dtype.nf4, rounding=RoundType.stochastic),
}
A_FEW = ["uint4 asymmetric", "nvfp4"]
COMPILED = ["int8 channel", "uint4 asymmetric", "int12 away", "float16", "fp8", "mxfp4", "nvfp4"]


def whole_way(x, grid):
    """Range, scales, codes, bytes, values."""
    block = grid.weight_block(tuple(x.shape))
    parts = Blocks(tuple(x.shape), block).split(x)
    axes = tuple(range(1, 2 * x.ndim, 2))
    qparams = from_range(parts.amin(axes), parts.amax(axes), grid, block)
    kept = QTensor.encode(x, qparams)
    return kept.packed, kept.scale, kept.codes(), kept.dequantize(), fake_quantize(x, qparams), quantize(x, qparams)


def same(left, right):
    return all(torch.equal(a.double().cpu(), b.double().cpu()) for a, b in zip(left, right, strict=True))


def weight():
    return torch.randn(6, 40, generator=torch.Generator().manual_seed(0))


class Layer(torch.nn.Module):
    def __init__(self, grid):
        super().__init__()
        self.grid = grid

    def forward(self, x):
        return whole_way(x, self.grid)


@pytest.mark.parametrize("name", A_FEW)
def test_dynamo_takes_everything_in_one_graph(name):
    torch._dynamo.reset()
    grid = GRIDS[name]
    assert same(torch.compile(Layer(grid), fullgraph=True, backend="eager")(weight()), whole_way(weight(), grid))


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_inductor_computes_the_same_bits(name):
    torch._dynamo.reset()
    grid = GRIDS[name]
    assert same(torch.compile(Layer(grid), fullgraph=True)(weight()), whole_way(weight(), grid))


@pytest.mark.parametrize(
    "name", [name if name in A_FEW else pytest.param(name, marks=pytest.mark.slow) for name in GRIDS]
)
def test_export_computes_the_same_bits(name):
    exported = torch.export.export(Layer(GRIDS[name]), (weight(),), strict=False)
    assert same(exported.module()(weight()), whole_way(weight(), GRIDS[name]))


def test_a_graph_of_a_large_tensor_is_not_cut_into_pieces():
    class Large(torch.nn.Module):
        def forward(self, packed, scale):
            kept = QTensor(GRIDS["uint4 asymmetric"], (TILE, 32), (1, 16), packed, scale, torch.zeros_like(scale))
            return kept.dequantize()

    with torch.device("meta"):
        parts = torch.empty(TILE, 16, dtype=torch.uint8), torch.empty(TILE, 2, dtype=torch.bfloat16)
    exported = torch.export.export(Large(), parts, strict=False)
    assert len(exported.graph.nodes) < 60


@pytest.mark.parametrize("granularity", ["per_token", pytest.param("per_tensor", marks=pytest.mark.slow), "per_group"])
def test_dynamic_activations_export_with_any_batch(granularity):
    grid = Grid(Dtype.int8, QSchemeType[granularity], group_size=16, symmetric=False)

    class Dynamic(torch.nn.Module):
        def forward(self, x):
            block = grid.activation_block(tuple(x.shape))
            parts = Blocks(tuple(x.shape), block).split(x)
            qparams = from_range(parts.amin((1, 3, 5)), parts.amax((1, 3, 5)), grid, block)
            return dequantize(quantize(x, qparams), qparams), fake_quantize(x, qparams)

    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=1, max=512)
    exported = torch.export.export(
        Dynamic(), (torch.randn(2, 3, 32),), dynamic_shapes=({0: batch, 1: length},), strict=False
    )
    for shape in ((2, 3, 32), (5, 7, 32), (1, 1, 32)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        assert same(exported.module()(x), Dynamic()(x))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", GRIDS)
def test_cuda_computes_the_same_bits(name):
    x = torch.randn(64, 200, generator=torch.Generator().manual_seed(0))
    x[0, :3] = torch.tensor([0.0, -0.0, 1e-30])
    assert same(whole_way(x.cuda(), GRIDS[name]), whole_way(x, GRIDS[name]))
