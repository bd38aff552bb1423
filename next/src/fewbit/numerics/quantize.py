# SPDX-License-Identifier: Apache-2.0
"""Values to quantized values and back: one definition for every type, granularity, library and device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np

from fewbit.numerics.dtypes import CodebookFormat, FloatFormat
from fewbit.numerics.floats import float_values, quantize_to_codebook, quantize_to_float, round_to_float
from fewbit.numerics.granularity import BlockShape
from fewbit.numerics.grid import QParams, QuantizationGrid
from fewbit.numerics.ops import (
    NUMPY_CHUNK,
    TORCH_CHUNK,
    Array,
    amax,
    cast,
    clip_in_place,
    empty,
    is_compiling,
    is_numpy,
    like,
    namespace,
    on_cpu,
    quiet,
)  # fmt: skip
from fewbit.numerics.rounding import RoundType, round_to_integer
from fewbit.numerics.scales import SMALLEST_SCALE, ScaleType, mx_scale, round_scale

__all__ = ["QParams", "QuantizationGrid", "dequantize", "fake_quantize", "qparams_from_min_max", "quantize"]

# Ranges end here, so that neither a scale nor a dequantized value overflows float32: it may lie half a step outside the
# range, and farther if a power-of-two scale was rounded up.
_LARGEST = 2.0**127
# The largest and the smallest scale under a global scale: those of float8_e4m3fn.
_E4M3_LARGEST, _E4M3_SMALLEST = 448.0, 2.0**-9


def quantize(x: Array, qparams: QParams) -> Array:
    """x / step, rounded, plus the zero point, clipped to the range of the type; shaped like `x`, in `dtype.storage`.

    It is a division, as runtimes define it: a product with 1 / step can end on the other side of a half. Everything is
    float32 (float64 for int32, which float32 cannot count). Infinities saturate. NaN stays NaN in types that have one
    and becomes zero in the others.

    The result is the same in numpy and torch, on CPU and CUDA. Only a graph compiled for CUDA divides less exactly.

    >>> from fewbit.numerics.dtypes import Dtype
    >>> low, high = np.array([-2.0], np.float32), np.array([2.0], np.float32)
    >>> qparams = qparams_from_min_max(low, high, QuantizationGrid(Dtype.int8), (2,))
    >>> quantize(np.array([0.1, -2.0], np.float32), qparams).tolist()
    [6, -127]
    """
    return _in_chunks(_quantize, x, qparams, qparams.grid.dtype.storage)


def dequantize(quantized: Array, qparams: QParams, dtype: Any = "float32") -> Array:
    """(quantized - zero point) * step, computed in float32 and given in `dtype`, a name or a dtype of the library."""
    return _in_chunks(_dequantize, quantized, qparams, dtype)


def fake_quantize(x: Array, qparams: QParams) -> Array:
    """`x` rounded to the values of the grid, in its own dtype: `dequantize(quantize(x))`, bit by bit."""
    return _in_chunks(_fake_quantize, x, qparams, x.dtype)


def qparams_from_min_max(
    low: Array, high: Array, grid: QuantizationGrid, block: tuple[int, ...], *, global_scale: Array | None = None
) -> QParams:
    """Scales and zero points from the smallest and the largest value of each block.

    The range is widened to contain zero, so that zero is exact (not with `float_zero`). A block of zeros has scale 1.
    No scale is below 2^-126. float16 and bfloat16 have scale 1: runtimes cast to them and never scale.

    Args:
        low: shaped like the scales; finite, or NaN, which gives a scale of NaN.
        high: the same.
        grid: the grid to place.
        block: the block shape that the ranges belong to.
        global_scale: of a two-level grid, if it is known; at least 2^-117.

    >>> from fewbit.numerics.dtypes import Dtype
    >>> low, high = np.array([-1.0], np.float32), np.array([0.5], np.float32)
    >>> float(qparams_from_min_max(low, high, QuantizationGrid(Dtype.int8), (3,)).scale[0] * 127.5)
    1.0
    """
    xp = namespace(low)
    with quiet(low):
        low = xp.clip(cast(low, "float32"), -_LARGEST, _LARGEST)
        high = xp.clip(cast(high, "float32"), -_LARGEST, _LARGEST)
        if not grid.free_zero:
            low, high = xp.clip(low, None, 0.0), xp.clip(high, 0.0, None)
        length, units = _range_length(low, high, grid)
        raw = _divide(length, units)
        if grid.free_zero:  # a constant lies one step from zero, which gives it back exactly
            raw = xp.where(length == 0, xp.abs(low), raw)
        if not grid.two_level:
            global_scale = None
        elif global_scale is None:
            global_scale = _global_scale(length, units)
        if global_scale is not None:
            scale = round_scale(_divide(raw, global_scale), grid.scale_type)
        elif grid.scale_type is ScaleType.float8_e8m0fnu and not grid.asymmetric:
            scale = mx_scale(length, grid.dtype, grid.scale_mode)
        else:
            scale = round_scale(raw, grid.scale_type)
        scale = xp.where((length == 0) & (raw == 0), like(1.0, low), scale)
        step = scale if global_scale is None else scale * global_scale
        return QParams(grid, block, scale, _zero_point(low, step, grid), global_scale)


def _range_length(low: Array, high: Array, grid: QuantizationGrid) -> tuple[Array, float]:
    """A length of each block and how many steps it takes; negative to mirror the integers of the block."""
    xp, lowest, highest = namespace(low), grid.dtype.lowest, grid.dtype.highest
    if grid.dtype.is_cast:
        return xp.zeros_like(high), highest
    if grid.asymmetric:
        return high * 0.5 - low * 0.5, (highest - lowest) / 2  # half of both: the difference may overflow
    if grid.signed_scale:
        # The integer of largest magnitude is the lowest one: a negative scale lends it to a positive extreme.
        return xp.where(-low >= high, -low, -high), float(-lowest)
    return xp.maximum(-low, high), (highest - lowest) / 2 if grid.dtype.is_integer else highest


def _divide(x: Array, by: Array | float) -> Array:
    """The float32 nearest to a quotient, on every device.

    CUDA and compilers multiply by reciprocals. In float64 that does not matter: the quotient of two float32 is never
    so close to the middle of two others that its last bits decide.
    """
    wide = x if not is_numpy(x) and x.device.type == "mps" else cast(x, "float64")  # Metal has no float64
    return cast(wide / (by if isinstance(by, float | int) else cast(by, wide.dtype)), "float32")


def _global_scale(length: Array, units: float) -> Array:
    """The block with the largest range gets the largest scale there is."""
    if prod(length.shape) == 0:
        return like(1.0, length)
    xp = namespace(length)
    top = _divide(amax(xp.abs(length).reshape(-1), 0), units * _E4M3_LARGEST)
    return xp.where(top == 0, like(1.0, top), xp.clip(top, SMALLEST_SCALE / _E4M3_SMALLEST, None))


def _zero_point(low: Array, step: Array, grid: QuantizationGrid) -> Array | None:
    """Fitted to the rounded scale."""
    lowest, highest = grid.dtype.lowest, grid.dtype.highest
    if not grid.has_zero_point:
        return None
    if grid.symmetric:
        return namespace(step).full_like(step, (highest + lowest + 1) // 2)
    if grid.free_zero:
        return lowest - _divide(low, step)
    if grid.dtype.bits > 24:
        highest -= 127  # the largest float32 that an int32 can hold
    xp, zero = namespace(low), lowest - round_to_integer(_divide(low, step))
    # A block with NaN has a scale of NaN; its zero point must be an integer all the same.
    return xp.where(xp.isnan(zero), like(lowest, zero), xp.clip(zero, lowest, highest))


def _in_chunks(work: Callable[[Array, QParams], Array], x: Array, qparams: QParams, dtype: Any) -> Array:
    """`work(x, qparams)` in `dtype`; on a CPU in pieces, because fresh memory costs more than the arithmetic on it."""
    x = x if is_numpy(x) else x.detach()
    chunk = NUMPY_CHUNK if is_numpy(x) else TORCH_CHUNK
    with quiet(x):
        # The random numbers of stochastic rounding belong to positions in the complete tensor.
        indivisible = qparams.grid.rounding is RoundType.stochastic or not on_cpu(x) or is_compiling(x)
        if indivisible or prod(x.shape) <= chunk:
            return cast(work(x, qparams), dtype)
        blocks = BlockShape(tuple(x.shape), qparams.block).merged()
        flat, scales = x.reshape(blocks.shape), qparams.reshape(blocks.block, blocks.counts)
        out = empty(x.shape, x, dtype)
        target = out.reshape(blocks.shape)
        for elements, part, block in chunks(blocks, chunk):
            target[elements] = work(flat[elements], scales.part(part, block))
        return out


def chunks(blocks: BlockShape, size: int) -> Iterator[tuple[slice, slice, tuple[int, ...]]]:
    """Pieces along the first axis: the slice of the tensor, the slice of the scales, the piece's block shape.

    >>> [elements for elements, _, _ in chunks(BlockShape((5, 10), (2, 1)), 20)]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    side, width = blocks.shape[0], blocks.block[0]
    row_size = max(prod(blocks.shape[1:]), 1)
    if width >= side:  # all rows share their scales: any division will do
        rows = max(size // row_size, 1)
        for start in range(0, side, rows):
            stop = min(start + rows, side)
            yield slice(start, stop), slice(0, 1), (stop - start, *blocks.block[1:])
        return
    rows = max(size // (row_size * width), 1) * width
    for start in range(0, side, rows):
        stop = min(start + rows, side)
        yield slice(start, stop), slice(start // width, -(-stop // width)), blocks.block


def _quantize(x: Array, qparams: QParams) -> Array:
    """Quantized values; integers still as floats."""
    grid, blocks = qparams.grid, BlockShape(tuple(x.shape), qparams.block)
    scaled = _scaled(x, qparams, blocks)
    if isinstance(grid.dtype.value, FloatFormat):
        quantized = quantize_to_float(scaled, grid.dtype, grid.rounding, seed=grid.seed)
    elif isinstance(grid.dtype.value, CodebookFormat):
        quantized = quantize_to_codebook(scaled, grid.dtype.value, grid.rounding, seed=grid.seed)
    else:
        quantized = _round_and_clip(scaled, qparams, blocks)
    return quantized.reshape(x.shape)


def _dequantize(quantized: Array, qparams: QParams) -> Array:
    grid, blocks = qparams.grid, BlockShape(tuple(quantized.shape), qparams.block)
    integers = grid.dtype.is_integer
    values = cast(quantized, _precision(grid)) if integers else float_values(quantized, grid.dtype.value)
    return _unscale(blocks.view(values), qparams, blocks).reshape(quantized.shape)


def _fake_quantize(x: Array, qparams: QParams) -> Array:
    grid, blocks = qparams.grid, BlockShape(tuple(x.shape), qparams.block)
    scaled = _scaled(x, qparams, blocks)
    if isinstance(grid.dtype.value, FloatFormat):
        values = round_to_float(scaled, grid.dtype.value, grid.rounding, seed=grid.seed)
    elif isinstance(grid.dtype.value, CodebookFormat):
        indices = quantize_to_codebook(scaled, grid.dtype.value, grid.rounding, seed=grid.seed)
        values = float_values(indices, grid.dtype.value)
    else:
        values = _round_and_clip(scaled, qparams, blocks)
        values += 0.0  # integers have no negative zero
    return _unscale(values, qparams, blocks).reshape(x.shape)


def _precision(grid: QuantizationGrid) -> str:
    """The float type that can count the integers of a grid."""
    return "float64" if grid.dtype.is_integer and grid.dtype.bits > 24 else "float32"


def _scaled(x: Array, qparams: QParams, blocks: BlockShape) -> Array:
    """`x` in steps, a new array as `blocks.view` shapes it."""
    precise = _precision(qparams.grid)
    scaled = blocks.view(cast(x, precise)) / cast(blocks.broadcast(qparams.step), precise)
    if qparams.grid.dtype.has_nan:
        return scaled
    if not is_numpy(x):
        return scaled.nan_to_num_(0.0)
    scaled = np.asarray(scaled)
    if np.isnan(scaled.min(initial=0.0)):  # a look at the minimum is much cheaper than replacing NaN
        scaled[np.isnan(scaled)] = 0.0
    return scaled


def _round_and_clip(scaled: Array, qparams: QParams, blocks: BlockShape) -> Array:
    """Steps to integers, in place."""
    grid, zero = qparams.grid, qparams.zero_point
    if zero is not None and grid.float_zero:
        scaled += blocks.broadcast(zero)
    round_to_integer(scaled, grid.rounding, seed=grid.seed, in_place=True)
    if zero is not None and not grid.float_zero:
        scaled += blocks.broadcast(zero)
    return clip_in_place(scaled, grid.dtype.lowest, grid.dtype.highest)


def _unscale(values: Array, qparams: QParams, blocks: BlockShape) -> Array:
    """Elements to values, in place."""
    if qparams.zero_point is not None:
        values -= blocks.broadcast(qparams.zero_point)
    values *= blocks.broadcast(qparams.step)
    return values
