# SPDX-License-Identifier: Apache-2.0
"""Quantized layers and small nets for the tests of PyTorch modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fewbit.backends.torch.layers import ActivationQuantizer, set_weight
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import BlockShape, QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import qparams_from_min_max
from fewbit.numerics.scales import ScaleType

INT8 = QuantizationGrid(Dtype.int8, QSchemeType.per_channel)
UINT8 = QuantizationGrid(Dtype.uint8, QSchemeType.per_channel, symmetric=False)
UINT4 = QuantizationGrid(
    Dtype.uint4, QSchemeType.per_group, group_size=32, symmetric=False, scale_type=ScaleType.bfloat16
)
INT4 = QuantizationGrid(
    Dtype.int4, QSchemeType.per_group, group_size=64, full_range=True, scale_type=ScaleType.bfloat16
)
FP4 = QuantizationGrid(Dtype.fp4, QSchemeType.per_group, group_size=32, scale_type=ScaleType.float8_e8m0fnu)
FP8 = QuantizationGrid(Dtype.fp8_e4m3, QSchemeType.per_channel)
INT3 = QuantizationGrid(Dtype.int3, QSchemeType.per_group, group_size=20)
HALF = QuantizationGrid(Dtype.float16)
WEIGHT_GRIDS = {
    "int8": INT8, "uint8": UINT8, "uint4": UINT4, "int4": INT4, "fp4": FP4, "fp8": FP8, "int3": INT3, "half": HALF
}  # fmt: skip
TOKEN = QuantizationGrid(Dtype.int8, QSchemeType.per_token)
TENSOR = QuantizationGrid(Dtype.int8, symmetric=False)


def encode(weight: torch.Tensor, grid: QuantizationGrid) -> QTensor:
    """Plain rounding."""
    shape = tuple(weight.shape)
    block = grid.weight_block(shape)
    weight = weight.detach().float()
    return QTensor.encode(weight, qparams_from_min_max(*BlockShape(shape, block).extremes(weight), grid, block))


def static_quantizer(low: float, high: float, features: int = -1) -> ActivationQuantizer:
    """int8 with one scale for all."""
    fixed = qparams_from_min_max(torch.tensor([low]), torch.tensor([high]), TENSOR, (1,))
    return ActivationQuantizer(TENSOR, features, fixed)


def quantized(module: nn.Module, grid: QuantizationGrid, quantizer: ActivationQuantizer | None = None) -> nn.Module:
    """A layer with its weight on a grid."""
    layer = set_weight(module, "weight", encode(module.weight, grid))
    layer.input_quantizer = quantizer
    return layer


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def conv_net():
    """Convolution and batch norm, groups, a transposed convolution, linear layers: [n, 3, 16, 16] to [n, 10]."""
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, groups=2, stride=2), nn.ReLU(), nn.ConvTranspose2d(32, 16, 3, groups=2),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    net(torch.randn(64, 3, 16, 16))
    return net.eval()


@pytest.fixture
def linear_net():
    """[n, 128] to [n, 16]."""
    return nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 16)).eval()
