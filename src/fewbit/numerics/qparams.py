# SPDX-License-Identifier: Apache-2.0
"""From ranges to scales and zero points."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.numerics.grid import Grid
from fewbit.numerics.rounding import round_to_integer
from fewbit.numerics.scales import ScaleType, power_from_maximum, round_scale


@dataclass(frozen=True)
class QParams:
    """What pins a grid to a tensor.

    Args:
        grid: the values a scaled element may take.
        block: the block shape; the scales' shape is the tensor's divided by it, rounded up.
        scale: float32, on the values of `grid.scale_type`.
        zero_point: float32 holding integers (or any number with `float_zero`), shaped like `scale`; or none.
        super_scale: float32 `[]`, multiplies every scale of a two-level grid; or none.
    """

    grid: Grid
    block: tuple[int, ...]
    scale: Tensor
    zero_point: Tensor | None = None
    super_scale: Tensor | None = None

    @property
    def step(self) -> Tensor:
        """What one unit of an element is worth, block by block."""
        return self.scale if self.super_scale is None else self.scale * self.super_scale


def from_range(
    low: Tensor, high: Tensor, grid: Grid, block: tuple[int, ...], *, super_scale: Tensor | None = None
) -> QParams:
    """Scales and zero points from the smallest and largest value of each block.

    Args:
        low: float32, shaped like the scales.
        high: the same.
        grid: the grid to pin.
        block: the block shape the ranges belong to.
        super_scale: the tensor's scale of a two-level grid, if it is already known.

    >>> from_range(torch.tensor([-1.0]), torch.tensor([0.5]), Grid(Dtype.int8), (3,)).scale * 127.5
    tensor([1.])
    """
    low, high = low.float().clamp(max=0.0), high.float().clamp(min=0.0)
    lowest, highest = grid.dtype.lowest, grid.dtype.highest
    amax = torch.maximum(-low, high)
    zero = None
    if grid.float_zero and grid.has_zero_point and not grid.symmetric:
        scale = _usable((high - low) / (highest - lowest), grid)
        return QParams(grid, block, scale, lowest - low / scale)
    if not grid.symmetric and grid.dtype.is_integer:
        scale = _usable((high - low) / (highest - lowest), grid)
        zero = round_to_integer(lowest - low / scale).clamp_(lowest, highest)
        return QParams(grid, block, scale, zero)
    if grid.two_level:
        if super_scale is None:
            top = amax.amax() / (highest * 448.0)
            super_scale = torch.where(top > 0, top, torch.ones_like(top))
        scale = round_scale(amax / highest / super_scale, grid.scale_type)
        return QParams(grid, block, scale, zero, super_scale)
    if grid.scale_type is ScaleType.float8_e8m0fnu:
        scale = power_from_maximum(torch.where(amax > 0, amax, torch.ones_like(amax)), grid.dtype, grid.scale_mode)
        return QParams(grid, block, scale)
    if grid.full_range and grid.dtype.is_integer and grid.dtype.signed:
        # The code of largest magnitude is the lowest one: a negative scale lends it to a positive extreme.
        return QParams(grid, block, _usable(torch.where(-low >= high, -low, -high) / -lowest, grid))
    half = (highest - lowest) / 2 if grid.dtype.is_integer else highest
    if grid.has_zero_point:
        zero = torch.full_like(amax, (highest + lowest + 1) // 2)
    return QParams(grid, block, _usable(amax / half, grid), zero)


def _usable(scale: Tensor, grid: Grid) -> Tensor:
    """The scale on its type's values; 1 for a block of zeros, which any scale represents exactly."""
    return round_scale(torch.where(scale == 0, torch.ones_like(scale), scale), grid.scale_type)
