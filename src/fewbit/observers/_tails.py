# SPDX-License-Identifier: Apache-2.0
"""The squared error of a fine grid in closed form: a twelfth of a squared step inside, the distance to the end outside.

A grid of 256 steps or more is fine beside any density it is laid over, so nothing has to be quantized to know its
error: sums of counts, values and squares up to each bin give it for any range in the time of two look-ups.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import from_range
from fewbit.observers._spectrum import Spectrum


class Tails:
    """What lies within and beyond any range, row by row.

    Args:
        seen: bins in rising order.
        unit: what values are divided by before they are squared, `[R]`: the square of 1e30 is no float32.
    """

    def __init__(self, seen: Spectrum, unit: Tensor):
        self._unit = unit.double()
        centres = (seen.centres / unit[:, None]).double()
        weight = seen.counts.double() / seen.total[:, None]
        # Zeros have a bin of their own, and no error on any grid.
        zeros = (seen.bottoms == 0) & (seen.tops == 0)
        self._edges = centres.contiguous()
        self._mass = _upto(weight.masked_fill(zeros, 0.0))
        self._first = _upto(weight * centres)
        self._second = _upto(weight * centres.square())
        self._all = _upto(weight)

    def error(self, low: Tensor, high: Tensor, grid: Grid) -> Tensor:
        """The mean squared error of ranges `[C, R]` on a grid, in units: `[C, R]`."""
        qparams = from_range(low, high, grid, (1,))
        zero = 0.0 if qparams.zero_point is None else qparams.zero_point.double()
        step = qparams.step.double().abs() / self._unit
        bottom, top = step * (grid.dtype.lowest - zero), step * (grid.dtype.highest - zero)
        below, above = self._find(bottom), self._find(top)
        inside = self._at(self._mass, above) - self._at(self._mass, below)
        under = self._beyond(bottom, torch.zeros_like(below), below)
        last = torch.full_like(above, self._edges.shape[1])
        return (inside * step.square() / 12 + under + self._beyond(top, above, last)).float()

    def _find(self, ends: Tensor) -> Tensor:
        """How many bins lie below: int64 `[C, R]`."""
        return torch.searchsorted(self._edges, ends.T.contiguous()).T

    def _beyond(self, end: Tensor, start: Tensor, stop: Tensor) -> Tensor:
        """Σ (x - end)² over some bins."""
        count, first, second = (
            self._at(sums, stop) - self._at(sums, start) for sums in (self._all, self._first, self._second)
        )
        return (second - 2 * end * first + end.square() * count).clamp_(min=0.0)

    @staticmethod
    def _at(sums: Tensor, index: Tensor) -> Tensor:
        return sums.gather(1, index.T).T


def _upto(values: Tensor) -> Tensor:
    """Sums of all before each place, and of all: `[R, n + 1]`."""
    return torch.nn.functional.pad(values.cumsum(1), (1, 0))
