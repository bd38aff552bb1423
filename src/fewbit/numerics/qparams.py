# SPDX-License-Identifier: Apache-2.0
"""From ranges to scales and zero points."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.numerics.grid import Grid
from fewbit.numerics.rounding import round_to_integer
from fewbit.numerics.scales import SMALLEST, ScaleType, power_from_maximum, round_scale

# Ranges end here, so that neither a scale nor a dequantized value, which may lie up to half a step beyond the range and
# farther where a power-of-two scale was rounded up, overflows float32.
_LARGEST = 2.0**127
# The largest and smallest scale under a super scale: float8_e4m3fn's.
_E4M3_LARGEST, _E4M3_SMALLEST = 448.0, 2.0**-9


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

    def reshape(self, block: tuple[int, ...], counts: tuple[int, ...]) -> QParams:
        """The same scales for blocks of another shape that follow in the same order."""
        zero = None if self.zero_point is None else self.zero_point.reshape(counts)
        return QParams(self.grid, block, self.scale.reshape(counts), zero, self.super_scale)

    def part(self, where: slice, block: tuple[int, ...] | None = None) -> QParams:
        """The scales of some blocks along the first axis."""
        zero = None if self.zero_point is None else self.zero_point[where]
        return QParams(self.grid, block or self.block, self.scale[where], zero, self.super_scale)


def from_range(
    low: Tensor, high: Tensor, grid: Grid, block: tuple[int, ...], *, super_scale: Tensor | None = None
) -> QParams:
    """Scales and zero points from the smallest and largest value of each block.

    The range is widened to hold zero, so that zero is exact (but not with `float_zero`, where it need not be). A block
    of zeros has scale 1. Ranges end at 2^127, and no scale is below 2^-126. float16 and bfloat16 are taken as they are,
    with scale 1: runtimes cast to them, and never scale.

    Args:
        low: shaped like the scales; finite, or NaN, which gives a scale of NaN.
        high: the same.
        grid: the grid to pin.
        block: the block shape the ranges belong to.
        super_scale: the tensor's scale of a two-level grid, if it is already known; above 2^-117.

    >>> from fewbit.numerics.dtypes import Dtype
    >>> from_range(torch.tensor([-1.0]), torch.tensor([0.5]), Grid(Dtype.int8), (3,)).scale * 127.5
    tensor([1.])
    """
    low, high = low.float().clamp(-_LARGEST, _LARGEST), high.float().clamp(-_LARGEST, _LARGEST)
    if not grid.free_zero:
        low, high = low.clamp_(max=0.0), high.clamp_(min=0.0)
    reach, units = _reach(low, high, grid)
    raw = _divide(reach, units)
    if grid.free_zero:  # a constant lies one step away from zero, which gives it back exactly
        raw = torch.where(reach == 0, low.abs(), raw)
    if not grid.two_level:
        super_scale = None
    elif super_scale is None:
        super_scale = _super_scale(reach, units)
    if super_scale is not None:
        scale = round_scale(_divide(raw, super_scale), grid.scale_type)
    elif grid.scale_type is ScaleType.float8_e8m0fnu and not grid.asymmetric:
        scale = power_from_maximum(reach, grid.dtype, grid.scale_mode)
    else:
        scale = round_scale(raw, grid.scale_type)
    scale = torch.where((reach == 0) & (raw == 0), 1.0, scale)  # zeros are zeros at any scale
    step = scale if super_scale is None else scale * super_scale
    return QParams(grid, block, scale, _zero_point(low, step, grid), super_scale)


def _reach(low: Tensor, high: Tensor, grid: Grid) -> tuple[Tensor, float]:
    """A length of each block, and how many steps it shall be long; negative to turn the block's codes round."""
    lowest, highest = grid.dtype.lowest, grid.dtype.highest
    if grid.dtype.is_cast:
        return torch.zeros_like(high), highest
    if grid.asymmetric:
        # Half of both, because the whole may overflow.
        return high * 0.5 - low * 0.5, (highest - lowest) / 2
    if grid.signed_scale:
        # The code of largest magnitude is the lowest one: a negative scale lends it to a positive extreme.
        return torch.where(-low >= high, -low, -high), -lowest
    return torch.maximum(-low, high), (highest - lowest) / 2 if grid.dtype.is_integer else highest


def _divide(x: Tensor, by: Tensor | float) -> Tensor:
    """The float32 nearest to a quotient, on every device.

    CUDA multiplies by the reciprocal of a number, and compiled code may divide tensors that way too. In float64 neither
    matters: the quotient of two float32 is never so close to the middle of two others that its last bits decide.
    """
    wide = x if x.device.type == "mps" else x.double()  # Metal has no float64
    return (wide / by).float()


def _super_scale(reach: Tensor, units: float) -> Tensor:
    """The scale of the whole tensor: the block that reaches farthest gets the largest scale there is."""
    if reach.numel() == 0:
        return reach.new_ones(())
    top = _divide(reach.abs().amax(), units * _E4M3_LARGEST)
    return torch.where(top == 0, 1.0, top.clamp(min=SMALLEST / _E4M3_SMALLEST))


def _zero_point(low: Tensor, step: Tensor, grid: Grid) -> Tensor | None:
    lowest, highest = grid.dtype.lowest, grid.dtype.highest
    if not grid.has_zero_point:
        return None
    if grid.symmetric:
        return torch.full_like(step, (highest + lowest + 1) // 2)
    if grid.free_zero:
        return lowest - _divide(low, step)
    if grid.dtype.bits > 24:
        highest -= 127  # the largest float32 that an int32 can hold
    return (lowest - round_to_integer(_divide(low, step))).clamp_(lowest, highest)
