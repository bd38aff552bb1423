# SPDX-License-Identifier: Apache-2.0
"""A weight on its grid that can be turned by small amounts: every element to a neighbouring value, scales a little.

An element is a place among the values of the type, counted from the lowest: place 3.2 is the value at 3. It begins in
the cell of its code, between the middle and the border that the float weight is near to, this side of it or that: what
was a near miss when it was rounded turns first, and no two turn at once only because they began on the same spot. A
step of the place is taken to be a step of the value, as if nothing were rounded. The zeros of a pruned weight stay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fewbit.algorithms._averaged_sign import AveragedSign
from fewbit.algorithms._zeros import pruned_zeros
from fewbit.numerics.dtypes import Dtype, Float, Table
from fewbit.numerics.floats import decode, encode
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import is_power, round_scale

_HALF = 0.5  # from the middle of a cell to its border
_REACH = 0.51  # how far a place may go from where it began: just over the border, be it from the middle
_FACTORS = 0.5, 1.5  # of a scale


class Turning:
    """One weight.

    Args:
        weight: in float.
        start: its codes.

    >>> from fewbit.numerics.grid import Grid
    >>> start = QTensor.encode(torch.tensor([[1.4, -3.0]]), QParams(Grid(Dtype.int4), (1, 2), torch.ones(1, 1)))
    >>> one = Turning(torch.tensor([[1.4, -3.0]]), start)
    >>> one.values()
    tensor([[ 1., -3.]])
    >>> one.turn(torch.tensor([[-1.0, 0.0]]), 0.4)  # the loss falls if the first one grows; its scale is to grow too
    >>> one.values().round(decimals=3)
    tensor([[ 2.8000, -4.2000]])
    """

    def __init__(self, weight: Tensor, start: QTensor):
        self._start, self._dtype, self._blocks = start, start.grid.dtype, start.blocks
        self._params = params = start.qparams
        self._zero = None if params.zero_point is None else self._blocks.over(params.zero_point)
        self._levels = _levels(self._dtype, weight.device)
        self._top = (self._dtype.highest - self._dtype.lowest) if self._levels is None else len(self._levels) - 1
        codes = start.codes()
        elements = codes.float() if self._dtype.is_integer else decode(codes, self._dtype)
        cell = self._place(self._blocks.lay(elements)).round_()
        near = self._blocks.lay(weight.detach().float()) / self._blocks.over(params.step)
        near = self._place(near if self._zero is None else near + self._zero)
        away = near - cell
        depth = torch.where(away.abs() > _HALF, 2 * _HALF - away.abs(), away.abs()).clamp_(min=0)
        self._first = (cell + _HALF * depth.copysign_(away)).clamp_(0, self._top)
        self._now = self._first.clone()
        pruned = pruned_zeros(weight) > 0 and not start.grid.free_zero
        self._held = self._blocks.lay(weight.detach() == 0) if pruned else None
        self._factor = None if is_power(start.grid.scale_type) else torch.ones_like(params.scale)
        self._signs = AveragedSign(self._now), None if self._factor is None else AveragedSign(self._factor)
        self._best = self._now.clone(), None if self._factor is None else self._factor.clone()

    def values(self) -> Tensor:
        """What it stands for now, float32, in the weight's shape."""
        elements = self._elements(self._now)
        if self._zero is not None:
            elements = elements - self._zero
        return (elements * self._blocks.over(self._step(self._factor))).reshape(self._start.shape)

    def slopes(self, slope: Tensor) -> tuple[Tensor, Tensor | None]:
        """The slope of a loss by element (in steps) and by factor of a scale, from its slope by value."""
        laid = self._blocks.lay(slope.float())
        by_element = laid * self._blocks.over(self._step(self._factor))
        if self._factor is None:
            return by_element, None
        elements = self._elements(self._now)
        whole = (elements if self._zero is None else elements - self._zero).mul_(laid).reshape(self._start.shape)
        axes = tuple(range(1, 2 * len(self._start.shape), 2))
        return by_element, self._blocks.split(whole).sum(axes) * self._params.step

    def turn(self, slope: Tensor, rate: float) -> None:
        """Go one step of this size against the sign of the slopes."""
        (by_element, by_factor), (signs, factor_signs) = self.slopes(slope), self._signs
        self._now.sub_(signs.after(by_element), alpha=rate)
        torch.minimum(torch.maximum(self._now, self._first - _REACH), self._first + _REACH, out=self._now)
        if self._held is not None:
            torch.where(self._held, self._first, self._now, out=self._now)
        if self._factor is not None and by_factor is not None and factor_signs is not None:
            self._factor.sub_(factor_signs.after(by_factor), alpha=rate).clamp_(*_FACTORS)

    def keep(self, better: Tensor) -> None:
        """Remember what it is now, if that is better (a bool `[]`, where the tensors lie: nobody waits for it)."""
        place, factor = self._best
        torch.where(better, self._now, place, out=place)
        if factor is not None and self._factor is not None:
            torch.where(better, self._factor, factor, out=factor)

    def result(self) -> QTensor:
        """What was remembered."""
        place, factor = self._best
        elements, dtype = self._elements(place).reshape(self._start.shape), self._dtype
        if isinstance(dtype.value, Table):
            codes = place.round().clamp_(0, self._top).reshape(self._start.shape).to(dtype.storage)
        else:
            codes = encode(elements, dtype) if isinstance(dtype.value, Float) else elements.to(dtype.storage)
        known = self._params
        scale = known.scale if factor is None else round_scale(known.scale * factor, known.grid.scale_type)
        return QTensor.from_codes(codes, QParams(known.grid, known.block, scale, known.zero_point, known.super_scale))

    def _step(self, factor: Tensor | None) -> Tensor:
        known = self._params
        if factor is None:
            return known.step
        scale = round_scale(known.scale * factor, known.grid.scale_type)
        return scale if known.super_scale is None else scale * known.super_scale

    def _elements(self, place: Tensor) -> Tensor:
        """The values, before scaling, at the places nearest to these."""
        index = place.round().clamp_(0, self._top)
        return index + self._dtype.lowest if self._levels is None else self._levels[index.int()]

    def _place(self, element: Tensor) -> Tensor:
        """Where a value lies among those of the type; between two in the share of the way."""
        if self._levels is None:
            return element - self._dtype.lowest
        above = torch.searchsorted(self._levels, element.contiguous()).clamp_(1, self._top)
        low, high = self._levels[above - 1], self._levels[above]
        return (above - 1) + (element - low) / (high - low)


def is_tunable(dtype: Dtype) -> bool:
    """Whether a type is so coarse that its values are worth choosing among."""
    return not dtype.is_cast and dtype.bits <= 8


def _levels(dtype: Dtype, device: torch.device) -> Tensor | None:
    """The values of a type in ascending order, each once; none for integers, which are their own."""
    number: Any = dtype.value
    if dtype.is_integer:
        return None
    if isinstance(number, Table):
        return torch.tensor(number.values, device=device)
    codes = torch.arange(1 << dtype.bits, dtype=torch.int16).to(torch.uint8)
    found = decode(codes if dtype.storage is torch.uint8 else codes.view(dtype.storage), dtype)
    found = found[found.isfinite() & (found.abs() <= number.largest)]
    values: list[float] = sorted(set(found.tolist()))
    return torch.tensor(values, device=device)
