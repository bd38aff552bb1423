# SPDX-License-Identifier: Apache-2.0
"""The same operations in a traced graph, and without torch."""

import subprocess
import sys

import pytest
import torch

from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import BlockShape, QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import dequantize, fake_quantize, qparams_from_min_max, quantize
from fewbit.numerics.rounding import RoundType
from fewbit.numerics.scales import ScaleMode, ScaleType


def grouped(dtype, **fields):
    return QuantizationGrid(dtype, QSchemeType.per_group, group_size=16, **fields)


GRIDS = {
    "int8 channel": QuantizationGrid(Dtype.int8, QSchemeType.per_channel),
    "uint4 asymmetric": grouped(Dtype.uint4, symmetric=False, scale_type=ScaleType.bfloat16),
    "int3 stochastic": grouped(Dtype.int3, rounding=RoundType.stochastic, seed=3),
    "int6 away": grouped(Dtype.int6, rounding=RoundType.round, scale_type=ScaleType.pof2),
    "int32": QuantizationGrid(Dtype.int32),
    "int4 full range": grouped(Dtype.int4, full_range=True, scale_type=ScaleType.float16),
    "int4 float zero": grouped(Dtype.int4, symmetric=False, float_zero=True),
    "float16": QuantizationGrid(Dtype.float16),
    "bfloat16": QuantizationGrid(Dtype.bfloat16),
    "fp8": QuantizationGrid(Dtype.fp8_e4m3),
    "fp8_e5m2 floor": QuantizationGrid(Dtype.fp8_e5m2, rounding=RoundType.floor),
    "mxfp4": grouped(Dtype.fp4, scale_type=ScaleType.float8_e8m0fnu),
    "mxfp6 ceil": grouped(Dtype.fp6_e3m2, scale_type=ScaleType.float8_e8m0fnu, scale_mode=ScaleMode.ceil),
    "nvfp4": grouped(Dtype.fp4, scale_type=ScaleType.float8_e4m3fn),
    "fp6 e5m3": grouped(Dtype.fp6_e2m3, scale_type=ScaleType.float8_e5m3),
    "nf4": grouped(Dtype.nf4),
}
FEW = ["uint4 asymmetric", "nvfp4"]
COMPILED = ["int8 channel", "uint4 asymmetric", "int6 away", "float16", "fp8", "mxfp4", "nvfp4"]


def everything(x, grid):
    """Range, scales, integers, bytes, values."""
    block = grid.weight_block(tuple(x.shape))
    low, high = BlockShape(tuple(x.shape), block).extremes(x)
    qparams = qparams_from_min_max(low, high, grid, block)
    stored = QTensor.encode(x, qparams)
    return stored.packed, stored.scale, stored.codes(), stored.dequantize(), fake_quantize(x, qparams)


def same(left, right):
    return all(torch.equal(a.double(), b.double()) for a, b in zip(left, right, strict=True))


def weight():
    return torch.randn(6, 40, generator=torch.Generator().manual_seed(0))


class Layer(torch.nn.Module):
    def __init__(self, grid):
        super().__init__()
        self.grid = grid

    def forward(self, x):
        return everything(x, self.grid)


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_dynamo_takes_everything_in_one_graph(name):
    torch._dynamo.reset()
    compiled = torch.compile(Layer(GRIDS[name]), fullgraph=True, backend="eager")
    assert same(compiled(weight()), everything(weight(), GRIDS[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_inductor_computes_the_same_bits(name):
    torch._dynamo.reset()
    compiled = torch.compile(Layer(GRIDS[name]), fullgraph=True)
    assert same(compiled(weight()), everything(weight(), GRIDS[name]))


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in GRIDS]
)
def test_export_computes_the_same_bits(name):
    exported = torch.export.export(Layer(GRIDS[name]), (weight(),), strict=False)
    assert same(exported.module()(weight()), everything(weight(), GRIDS[name]))


def test_a_graph_of_a_large_tensor_is_not_divided_into_pieces():
    class Large(torch.nn.Module):
        def forward(self, packed, scale):
            zero = torch.zeros_like(scale, dtype=torch.uint8)
            return QTensor(GRIDS["uint4 asymmetric"], (1 << 20, 32), (1, 16), packed, scale, zero).dequantize()

    with torch.device("meta"):
        parts = torch.empty(1 << 20, 16, dtype=torch.uint8), torch.empty(1 << 20, 2, dtype=torch.uint16)
    assert len(torch.export.export(Large(), parts, strict=False).graph.nodes) < 60


@pytest.mark.parametrize("granularity", ["per_token", pytest.param("per_tensor", marks=pytest.mark.slow), "per_group"])
def test_dynamic_activations_export_with_any_batch(granularity):
    grid = QuantizationGrid(Dtype.int8, QSchemeType[granularity], group_size=16, symmetric=False)

    class Dynamic(torch.nn.Module):
        def forward(self, x):
            block = grid.activation_block(tuple(x.shape))
            low, high = BlockShape(tuple(x.shape), block).extremes(x)
            qparams = qparams_from_min_max(low, high, grid, block)
            return dequantize(quantize(x, qparams), qparams), fake_quantize(x, qparams)

    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=1, max=512)
    shapes = ({0: batch, 1: length},)
    exported = torch.export.export(Dynamic(), (torch.randn(2, 3, 32),), dynamic_shapes=shapes, strict=False)
    for shape in ((2, 3, 32), (5, 7, 32), (1, 1, 32)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        assert same(exported.module()(x), Dynamic()(x))


def test_numerics_and_config_work_without_torch():
    program = """
import sys
sys.modules["torch"] = None
import numpy as np
from fewbit.config.preset_config import preset_config
from fewbit.numerics.granularity import BlockShape
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import qparams_from_min_max
from fewbit.numerics.sparsity import SparsityPattern, sparsity_mask
w = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
for name in ("w4a16g32", "w8a16", "nvfp4", "mxfp4", "fp8_dynamic", "nf4", "bf16"):
    grid = preset_config(name).global_quant_config.weight.grid()
    block = grid.weight_block(w.shape)
    q = QTensor.encode(w, qparams_from_min_max(*BlockShape(w.shape, block).extremes(w), grid, block))
    assert np.abs(q.dequantize() - w).max() < 0.5, name
assert sparsity_mask(np.abs(w), SparsityPattern.parse("2:4")).sum() == 256
print("ok", "scipy" in sys.modules, "ml_dtypes" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.strip() == "ok False False", result.stderr
