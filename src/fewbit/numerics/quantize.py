# SPDX-License-Identifier: Apache-2.0
"""Values to codes and back: the only definition of both, whatever the type, the granularity or the device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fewbit.numerics.blocks import Blocks
from fewbit.numerics.dtypes import Float, Table
from fewbit.numerics.floats import decode, float_codes, round_to_float, round_to_table
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams
from fewbit.numerics.rounding import RoundType, round_
from fewbit.numerics.tiles import cut, in_one_piece


def quantize(x: Tensor, qparams: QParams) -> Tensor:
    """The codes of `x`, shaped like `x`, in `dtype.storage`.

    An element is x / step, rounded, plus the zero point, held to the type's range. It is a division, as the runtimes
    define it, and not a product with the reciprocal, which can land on the other side of a half. All of it is float32
    (float64 for int32 codes, which float32 cannot count). Infinities go to the ends of the range. NaN stays NaN where
    the type has one (float8, float16, bfloat16) and becomes zero where not.

    Codes are the same on every device. Only a graph compiled for CUDA divides float32 less exactly, unless the compiler
    is told otherwise: there an element next to a half may get the neighbouring code.

    >>> from fewbit.numerics.dtypes import Dtype
    >>> from fewbit.numerics.grid import Grid
    >>> from fewbit.numerics.qparams import from_range
    >>> qparams = from_range(torch.tensor([-2.0]), torch.tensor([2.0]), Grid(Dtype.int8), (2,))
    >>> quantize(torch.tensor([0.1, -2.0]), qparams)
    tensor([   6, -127], dtype=torch.int8)
    """
    return _by_tiles(_quantize, x.detach(), qparams, qparams.grid.dtype.storage)


def dequantize(codes: Tensor, qparams: QParams, dtype: torch.dtype = torch.float32) -> Tensor:
    """The values that codes stand for: (code - zero point) * step, computed in float32, given in `dtype`."""
    return _by_tiles(_dequantize, codes, qparams, dtype)


def fake_quantize(x: Tensor, qparams: QParams) -> Tensor:
    """`x` moved to the nearest values of the grid, in its own dtype: `dequantize(quantize(x))`, bit by bit."""
    return _by_tiles(_fake_quantize, x.detach(), qparams, x.dtype)


def _by_tiles(work: Callable[[Tensor, QParams], Tensor], x: Tensor, qparams: QParams, dtype: torch.dtype) -> Tensor:
    """`work(x, qparams)` in `dtype`, a piece at a time where that is faster."""
    # The random numbers of stochastic rounding belong to positions in the whole tensor.
    if in_one_piece(x) or qparams.grid.rounding is RoundType.stochastic:
        return work(x, qparams).to(dtype)
    blocks = Blocks(tuple(x.shape), qparams.block).merged()
    flat, scales = x.reshape(blocks.shape), qparams.reshape(blocks.block, blocks.counts)
    out = torch.empty(x.shape, dtype=dtype)
    target = out.view(blocks.shape)
    for here, there, block in cut(blocks):
        target[here] = work(flat[here], scales.part(there, block))
    return out


def _quantize(x: Tensor, qparams: QParams) -> Tensor:
    """Codes; those of integers still as floats."""
    grid, blocks = qparams.grid, Blocks(tuple(x.shape), qparams.block)
    scaled = _scaled(x, qparams, blocks)
    if isinstance(grid.dtype.value, Float):
        codes = float_codes(scaled, grid.dtype, grid.rounding, seed=grid.seed)
    elif isinstance(grid.dtype.value, Table):
        codes = round_to_table(scaled, grid.dtype.value, grid.rounding, seed=grid.seed)
    else:
        codes = _settle_(scaled, qparams, blocks)
    return codes.reshape(x.shape)


def _dequantize(codes: Tensor, qparams: QParams) -> Tensor:
    grid, blocks = qparams.grid, Blocks(tuple(codes.shape), qparams.block)
    values = codes.to(_precision(grid)) if grid.dtype.is_integer else decode(codes, grid.dtype)
    return _unscale_(blocks.lay(values), qparams, blocks).reshape(codes.shape)


def _fake_quantize(x: Tensor, qparams: QParams) -> Tensor:
    grid, blocks = qparams.grid, Blocks(tuple(x.shape), qparams.block)
    scaled = _scaled(x, qparams, blocks)
    if isinstance(grid.dtype.value, Float):
        values = round_to_float(scaled, grid.dtype.value, grid.rounding, seed=grid.seed)
    elif isinstance(grid.dtype.value, Table):
        values = decode(round_to_table(scaled, grid.dtype.value, grid.rounding, seed=grid.seed), grid.dtype)
    else:
        values = _settle_(scaled, qparams, blocks).add_(0.0)  # integers have no negative zero
    return _unscale_(values, qparams, blocks).reshape(x.shape)


def _precision(grid: Grid) -> torch.dtype:
    """The float type that can count a grid's codes."""
    return torch.float64 if grid.dtype.is_integer and grid.dtype.bits > 24 else torch.float32


def _scaled(x: Tensor, qparams: QParams, blocks: Blocks) -> Tensor:
    """`x` in steps, as `blocks.lay` shapes it; a tensor of its own."""
    precise = _precision(qparams.grid)
    scaled = blocks.lay(x.to(precise)) / blocks.over(qparams.step).to(precise)
    return scaled if qparams.grid.dtype.has_nan else scaled.nan_to_num_(0.0)


def _settle_(scaled: Tensor, qparams: QParams, blocks: Blocks) -> Tensor:
    """Steps to integer codes, in place."""
    grid, zero = qparams.grid, qparams.zero_point
    if zero is not None and grid.float_zero:
        scaled += blocks.over(zero)
    round_(scaled, grid.rounding, seed=grid.seed)
    if zero is not None and not grid.float_zero:
        scaled += blocks.over(zero)
    return scaled.clamp_(grid.dtype.lowest, grid.dtype.highest)


def _unscale_(values: Tensor, qparams: QParams, blocks: Blocks) -> Tensor:
    """Elements to values, in place."""
    if qparams.zero_point is not None:
        values -= blocks.over(qparams.zero_point)
    return values.mul_(blocks.over(qparams.step))
