# SPDX-License-Identifier: Apache-2.0
"""Values to codes and back: the only definition of both, whatever the type, the granularity or the device."""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.numerics.blocks import Blocks
from fewbit.numerics.dtypes import Float, Table
from fewbit.numerics.floats import decode, encode, round_to_float, round_to_table
from fewbit.numerics.qparams import QParams
from fewbit.numerics.rounding import round_to_integer


def quantize(x: Tensor, qparams: QParams) -> Tensor:
    """The codes of `x`, shaped like `x`, in `dtype.storage`.

    An element is x / step, rounded, plus the zero point, held to the type's range. It is a division, as the runtimes
    define it, and not a product with the reciprocal, which can land on the other side of a half.

    >>> quantize(torch.tensor([0.1, -2.0]), from_range(torch.tensor([-2.0]), torch.tensor([2.0]), Grid(Dtype.int8), (2,)))
    tensor([   6, -127], dtype=torch.int8)
    """
    grid, blocks = qparams.grid, Blocks(tuple(x.shape), qparams.block)
    number = grid.dtype.value
    scaled = blocks.split(x.float()) / blocks.spread(qparams.step)
    if isinstance(number, Float):
        return blocks.join(encode(round_to_float(scaled, number, grid.rounding, seed=grid.seed), grid.dtype))
    if isinstance(number, Table):
        return blocks.join(round_to_table(scaled, number, grid.rounding, seed=grid.seed))
    if qparams.zero_point is not None and grid.float_zero:
        scaled = scaled + blocks.spread(qparams.zero_point)
    codes = round_to_integer(scaled, grid.rounding, seed=grid.seed)
    if qparams.zero_point is not None and not grid.float_zero:
        codes += blocks.spread(qparams.zero_point)
    codes.clamp_(number.lowest, number.highest)
    storage = grid.dtype.storage
    # torch converts floats to unsigned 16 bits only by way of a wider integer.
    return blocks.join(codes.int().to(storage) if storage is torch.uint16 else codes.to(storage))


def dequantize(codes: Tensor, qparams: QParams, dtype: torch.dtype = torch.float32) -> Tensor:
    """The values that codes stand for: (code - zero point) * step, computed in float32."""
    blocks = Blocks(tuple(codes.shape), qparams.block)
    values = codes.float() if qparams.grid.dtype.is_integer else decode(codes, qparams.grid.dtype)
    parts = blocks.split(values)
    if qparams.zero_point is not None:
        parts = parts - blocks.spread(qparams.zero_point)
    return blocks.join(parts * blocks.spread(qparams.step)).to(dtype)


def fake_quantize(x: Tensor, qparams: QParams) -> Tensor:
    """`x` moved to the nearest values of the grid, in its own dtype."""
    return dequantize(quantize(x, qparams), qparams, x.dtype)
