# SPDX-License-Identifier: Apache-2.0
"""Scales with the least weighted rounding error, by trying narrower ranges for every block."""

from __future__ import annotations

from math import frexp, isfinite

from fewbit.numerics.granularity import BlockShape
from fewbit.numerics.grid import QParams, QuantizationGrid
from fewbit.numerics.ops import Array, clip_in_place, is_numpy, like, namespace, on_cpu, quiet
from fewbit.numerics.quantize import fake_quantize, qparams_from_min_max
from fewbit.numerics.rounding import RoundType, round_to_integer
from fewbit.numerics.scales import ScaleType, round_scale

_FACTORS = tuple(10 ** (0.12 - 0.47 * step / 8) for step in range(9))
"""Of the range: from 1.32 to 0.45."""
_MIRRORED = tuple(10 ** (0.06 - 0.36 * step / 3) for step in range(4))
"""The same for scales of the other sign."""
_NEARBY = (1.07, 0.93, 1.0)
"""Of the best scale so far."""
_END_FACTORS = tuple((f * min(1, g), f * min(1, 1 / g)) for f in (1.15, 1.0, 0.85, 0.7) for g in (1.0, 0.9, 1.11))
"""Of the lower and the upper end, for grids with a zero point: together, and one more than the other."""
_POWERS = (1.0, 0.5)
"""Of the range where scales are powers of two."""
_FLOOR = 0.01
"""Least importance of a column, as a share of the mean."""


def search_scales(
    weight: Array, grid: QuantizationGrid, importance: Array | None = None, global_scale: Array | None = None
) -> QParams:
    """Scales (and zero points) per block with the least Σ h (w - q)² among 12 to 16 candidates.

    Where scales are floats, a candidate serves only to find integers q; their own best scale is Σ h q w / Σ h q², which
    explains (Σ h q w)² / Σ h q² of Σ h w². With a zero point z, q - z takes the place of q, and z follows from the same
    sums.

    Args:
        weight: [out, in], float32.
        grid: the values it may take.
        importance: h per column, [in]: the second moment of the input; all equal by default.
        global_scale: of a two-level grid, if it is shared with other weights.

    >>> import numpy as np
    >>> from fewbit.numerics.dtypes import Dtype
    >>> weight = np.array([[0.1, 0.2, 0.3, 9.0]], np.float32)
    >>> grid = QuantizationGrid(Dtype.int4, full_range=True)
    >>> matters = search_scales(weight, grid, np.array([1.0, 1.0, 1.0, 0.0], np.float32))
    >>> bool(abs(matters.scale).max() < abs(search_scales(weight, grid).scale).max())
    True
    """
    xp = namespace(weight)
    block = grid.weight_block(tuple(weight.shape))
    low, high = BlockShape(tuple(weight.shape), block).extremes(weight)
    unit = _unit(low, high)
    if unit != 1 and not grid.two_level:  # squares would leave float32; a power of two changes no other bit
        inner = search_scales(weight / unit, grid, importance)
        return QParams(grid, block, round_scale(inner.scale * unit, grid.scale_type), inner.zero_point)
    start = qparams_from_min_max(low, high, grid, block, global_scale=global_scale)
    if importance is None:
        importance = xp.ones_like(weight[0])
    mean = xp.clip(importance.mean(), 1e-30, None)
    importance = importance / mean + _FLOOR
    refit = grid.scale_type in (ScaleType.float32, ScaleType.float16, ScaleType.bfloat16)
    scales, zeros = [], []
    for first, last in _row_slices(weight, block[0]):
        rows, blocks = weight[first:last], slice(first // block[0], -(-last // block[0]))
        part = start.part(blocks)
        with quiet(weight):
            if refit and not grid.has_zero_point:
                part = _refitted(rows, part, importance)
            elif refit and grid.asymmetric:
                part = _refitted_with_zero(rows, part, low[blocks], high[blocks], importance)
            else:
                part = _best_range(rows, part, low[blocks], high[blocks], importance)
        scales.append(part.scale)
        zeros.append(part.zero_point)
    scale = xp.concatenate(scales)
    zero = None if start.zero_point is None else xp.concatenate(zeros)
    return QParams(grid, block, scale, zero, start.global_scale)


def _unit(low: Array, high: Array) -> float:
    """1, or a power of two near the largest magnitude if its square is far from 1."""
    largest = max(-float(low.min()), float(high.max())) if 0 not in low.shape else 1.0
    exponent = frexp(largest)[1] if isfinite(largest) and largest > 0 else 0
    return 1.0 if abs(exponent) <= 40 else 2.0**exponent


def _refitted(weight: Array, start: QParams, importance: Array) -> QParams:
    """Candidates give integers, integers give their best scale."""
    xp, grid = namespace(weight), start.grid
    blocks = BlockShape(tuple(weight.shape), start.block)
    parts = blocks.split(weight, 0.0)
    h = _split_columns(importance, blocks)
    weighted = parts * h
    best, gain = start.scale, xp.full_like(start.scale, -1.0)

    def attempt(scale: Array) -> None:
        nonlocal best, gain
        levels = _levels(parts, blocks, scale, grid)
        product = _sum(weighted * levels)
        levels *= levels
        levels *= h
        energy = xp.clip(_sum(levels), 1e-30, None)
        explained = product * product / energy
        better = explained > gain
        best = xp.where(better & (product != 0), product / energy, best)
        gain = xp.where(better, explained, gain)

    for factor in _FACTORS:
        attempt(start.scale * factor)
    if grid.signed_scale:
        for factor in _MIRRORED:
            attempt(start.scale * -factor)
    for factor in _NEARBY:
        attempt(best * factor)
    return QParams(grid, start.block, round_scale(best, grid.scale_type), None, start.global_scale)


def _refitted_with_zero(weight: Array, start: QParams, low: Array, high: Array, importance: Array) -> QParams:
    """The same with zero points: the regression of the weight on its integers gives both."""
    xp, grid = namespace(weight), start.grid
    blocks = BlockShape(tuple(weight.shape), start.block)
    parts = blocks.split(weight, 0.0)
    h = _split_columns(importance, blocks)
    if not blocks.divides:  # what short blocks are filled with counts nothing
        h = h * blocks.split(xp.ones_like(weight), 0.0)
    weighted = parts * h
    h_sum, w_sum = _sum(h + xp.zeros_like(parts)), _sum(weighted)
    best_scale, best_zero, gain = start.scale, start.zero_point, xp.full_like(start.scale, -1.0)

    def attempt(scale: Array, zero: Array) -> None:
        nonlocal best_scale, best_zero, gain
        levels = _levels(parts, blocks, scale, grid, zero)
        product = _sum(weighted * levels)
        weighted_levels = levels * h
        level_sum = _sum(weighted_levels)
        weighted_levels *= levels
        energy = _sum(weighted_levels)
        spread = h_sum * energy - level_sum * level_sum
        slope = (h_sum * product - level_sum * w_sum) / spread
        fitted = (level_sum - w_sum / slope) / h_sum
        fitted = xp.where((spread > 0) & (slope > 0) & xp.isfinite(fitted), fitted, zero)
        if not grid.float_zero:
            fitted = xp.clip(round_to_integer(fitted), grid.dtype.lowest, grid.dtype.highest)
        for candidate in (fitted, zero):
            around = product - candidate * w_sum
            size = xp.clip(energy - 2 * candidate * level_sum + candidate * candidate * h_sum, 1e-30, None)
            explained = around * around / size
            better = (explained > gain) & (around > 0)
            best_scale = xp.where(better, around / size, best_scale)
            best_zero = xp.where(better, candidate, best_zero)
            gain = xp.where(better, explained, gain)

    middle = (low * 0.5 + high * 0.5) if grid.free_zero else xp.zeros_like(low)
    for below, above in _END_FACTORS:
        candidate = qparams_from_min_max(
            middle + (low - middle) * below, middle + (high - middle) * above, grid, start.block
        )
        attempt(candidate.scale, candidate.zero_point)
    for factor in _NEARBY:
        attempt(best_scale * factor, best_zero)
    return QParams(grid, start.block, round_scale(best_scale, grid.scale_type), best_zero, start.global_scale)


def _best_range(weight: Array, start: QParams, low: Array, high: Array, importance: Array) -> QParams:
    """Candidates are ranges; the error decides. The complete range comes first and wins ties."""
    xp, grid = namespace(weight), start.grid
    blocks = BlockShape(tuple(weight.shape), start.block)
    h = _split_columns(importance, blocks)
    best, best_error = start, None
    factors = _POWERS if grid.scale_type.is_power else sorted({1.0, *_FACTORS}, reverse=True)
    if grid.two_level:
        factors = [factor for factor in factors if factor <= 1]  # the largest block has the largest scale already
    for factor in sorted(factors, key=lambda value: value != 1.0):
        ends = low * factor, high * factor
        candidate = qparams_from_min_max(*ends, grid, start.block, global_scale=start.global_scale)
        difference = blocks.split(fake_quantize(weight, candidate) - weight, 0.0)
        error = _sum(difference * difference * h)
        if best_error is None:
            best, best_error = candidate, error
            continue
        better = error < best_error
        zero = None if best.zero_point is None else xp.where(better, candidate.zero_point, best.zero_point)
        scale = xp.where(better, candidate.scale, best.scale)
        best, best_error = QParams(grid, start.block, scale, zero, start.global_scale), xp.minimum(error, best_error)
    return best


def _levels(
    parts: Array, blocks: BlockShape, scale: Array, grid: QuantizationGrid, zero_point: Array | None = None
) -> Array:
    """The nearest values of the grid in units of the scale, zero point added, a new array."""
    shape = [side for count in blocks.counts for side in (count, 1)]
    scaled = parts / scale.reshape(shape)
    if zero_point is not None:
        scaled += zero_point.reshape(shape)
    if grid.dtype.is_integer:
        round_to_integer(scaled, RoundType.half_even, in_place=True)
        return clip_in_place(scaled, grid.dtype.lowest, grid.dtype.highest)
    one = like([1.0], scaled).reshape((1,) * scaled.ndim)
    return fake_quantize(scaled, QParams(grid.replace(scale_type=ScaleType.float32), tuple(scaled.shape), one))


def _split_columns(importance: Array, blocks: BlockShape) -> Array:
    """[in] in a shape that broadcasts against the split weight [rows, 1, groups, size]."""
    columns = BlockShape((blocks.shape[1],), (blocks.block[1],))
    return columns.split(importance, 0.0)[None, None]


def _sum(parts: Array) -> Array:
    """Over the elements of each block."""
    return parts.sum((1, 3)) if is_numpy(parts) else parts.sum(dim=(1, 3))


def _row_slices(weight: Array, height: int) -> list[tuple[int, int]]:
    """Rows that are worked on at a time: temporaries stay small."""
    size = 1 << 18 if on_cpu(weight) else 1 << 24
    rows = max(size // max(weight.shape[1] * height, 1), 1) * height
    return [(first, min(first + rows, weight.shape[0])) for first in range(0, weight.shape[0], rows)]
