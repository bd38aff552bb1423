# SPDX-License-Identifier: Apache-2.0
"""Quantized layers to freeze, and what they should compute, by plain float64 arithmetic on their codes."""

import copy

import pytest
import torch
from torch import nn

from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.frozen import Terms
from fewbit.modules.quantized import get_weight, set_weight
from fewbit.numerics.blocks import Blocks, QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import from_range
from fewbit.numerics.qtensor import QTensor

CPU = torch.device("cpu")
CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))
DEVICES = ["cpu", CUDA]

INT8 = Grid(Dtype.int8, QSchemeType.per_channel)
UINT8 = Grid(Dtype.uint8, QSchemeType.per_channel, symmetric=False)
TOKEN = Grid(Dtype.int8, QSchemeType.per_token)
TENSOR = Grid(Dtype.int8, symmetric=False)


def terms(device="cpu", **options):
    return Terms(torch.device(device), **options)


def encoded(weight, grid):
    """A weight rounded to nearest on a grid whose ranges are its own."""
    block = grid.weight_block(tuple(weight.shape))
    blocks = Blocks(tuple(weight.shape), block)
    rows = blocks.rows(weight)
    low, high = rows.amin(1).reshape(blocks.counts), rows.amax(1).reshape(blocks.counts)
    return QTensor.encode(weight, from_range(low, high, grid, block))


def quantizer(grid, span=None, features=-1):
    """Of an activation: with fixed scales for the range `span`, or scales found in each call."""
    if span is None:
        return ActivationQuantizer(grid, features)
    low, high = (torch.tensor(end) for end in span)
    return ActivationQuantizer(grid, features, from_range(low, high, grid, ()))


def linear(outputs, features, grid, activation=None, *, bias=True, dtype=torch.float32, device="cpu", kind=nn.Linear):
    """A quantized linear layer."""
    layer = kind(features, outputs, bias=bias).to(dtype)
    set_weight(layer, "weight", encoded(layer.weight.detach().float(), grid))
    layer.input_quantizer = copy.deepcopy(activation)
    return layer.eval().requires_grad_(False).to(device)


def values(qtensor):
    """What codes stand for, in float64, by the definition."""
    codes, qparams = qtensor.codes(), qtensor.qparams
    blocks = Blocks(qtensor.shape, qtensor.block)
    elements = qtensor.dequantize(torch.float32).double() if not qtensor.grid.dtype.is_integer else codes.double()
    if not qtensor.grid.dtype.is_integer:
        return elements
    parts = blocks.lay(elements)
    if qparams.zero_point is not None:
        parts = parts - blocks.over(qparams.zero_point.double())
    return (parts * blocks.over(qparams.step.double())).reshape(qtensor.shape)


def expected(layer, x):
    """What a linear layer computes for `x`, in float64; and how large the terms of its sums are."""
    x = (x if layer.input_quantizer is None else layer.input_quantizer(x.float())).double()
    weight = values(get_weight(layer, "weight"))
    out = x @ weight.t()
    size = x.abs() @ weight.abs().t()
    bias = layer.bias
    return (out, size) if bias is None else (out + bias.double(), size + bias.double().abs())
