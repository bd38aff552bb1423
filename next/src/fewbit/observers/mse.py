# SPDX-License-Identifier: Apache-2.0
"""The range of least mean squared error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.quantize import fake_quantize, qparams_from_min_max
from fewbit.observers._histogram import Histogram
from fewbit.observers._search import Cost, SearchBase, best_range, in_batches


@dataclass(kw_only=True, eq=False)
class MSEObserver(SearchBase):
    """Tries ranges by quantizing the histogram on the very grid; for 8 bits and more the error has a closed form.

    >>> from fewbit.numerics.dtypes import Dtype
    >>> observer = MSEObserver()
    >>> observer.update(np.append(np.linspace(-1, 1, 9999), 8).astype(np.float32)[None])
    >>> low, high = observer.range(QuantizationGrid(Dtype.int4))
    >>> float(low[0]), 1 < float(high[0]) < 2
    (-1.0, True)
    """

    name = "mse"

    def search(
        self, histogram: Histogram, grid: QuantizationGrid, global_scale: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        if not grid.dtype.is_integer or grid.dtype.bits < 8 or grid.free_zero or global_scale is not None:
            return super().search(histogram, grid, global_scale)
        tails = _Tails(histogram, grid)
        ends = best_range(histogram, grid, tails.error, self.candidates)
        # The histogram decides between the range of the closed form and the complete one.
        lows, highs = np.stack([histogram.low, ends[0]]), np.stack([histogram.high, ends[1]])
        better = in_batches(self.cost(histogram, grid, None), histogram.counts.size)(lows, highs).argmin(0)[None]
        return np.take_along_axis(lows, better, 0)[0], np.take_along_axis(highs, better, 0)[0]

    def cost(self, histogram: Histogram, grid: QuantizationGrid, global_scale: np.ndarray | None) -> Cost:
        """The mean squared error in units of each row's largest magnitude."""
        values, shares = _points(histogram, grid)
        unit = _unit(histogram)[:, None]

        def error(low: np.ndarray, high: np.ndarray) -> np.ndarray:
            block = (1, 1, values.shape[1])
            qparams = qparams_from_min_max(low[..., None], high[..., None], grid, block, global_scale=global_scale)
            repeated = np.broadcast_to(values, (len(low), *values.shape))
            difference = fake_quantize(repeated, qparams) - repeated
            difference /= unit  # before it is squared: the square of 1e30 is no float32
            return np.asarray(np.einsum("crn,crn,rn->cr", difference, difference, shares, optimize=False))

        return error


class PerTensorMSEObserver(MSEObserver):
    """`mse` with one scale per tensor, unless the spec says otherwise."""

    granularity = QSchemeType.per_tensor


def _unit(histogram: Histogram) -> np.ndarray:
    return np.where(histogram.absmax > 0, histogram.absmax, np.float32(1))


def _points(histogram: Histogram, grid: QuantizationGrid) -> tuple[np.ndarray, np.ndarray]:
    """Values that represent the bins, and their shares: `[R, n]`.

    With fine steps, the middle of a bin may lie on a step by chance and seem free of error: three points see more.
    """
    places = np.array([0.5] if grid.dtype.bits <= 4 else [1 / 6, 0.5, 5 / 6], np.float32)
    rows = len(histogram.low)
    values = histogram.bottoms[..., None] + (histogram.tops - histogram.bottoms)[..., None] * places
    shares = histogram.counts[..., None] / (histogram.total[:, None, None] * len(places))
    return values.reshape((rows, -1)), np.broadcast_to(shares, values.shape).reshape((rows, -1)).astype(np.float32)


class _Tails:
    """The error of a grid with many steps for any range, from sums of counts, values and squares up to each bin.

    Inside the range it is step² / 12 per value (zeros have no error), outside the squared distance to the end.
    """

    def __init__(self, histogram: Histogram, grid: QuantizationGrid) -> None:
        self._grid, self._unit = grid, _unit(histogram).astype(np.float64)
        used = histogram.counts > 0
        # Unused columns lie behind all values, where they count nothing.
        self._centers = np.where(used, histogram.centers / self._unit[:, None], np.inf)
        share = histogram.counts / histogram.total[:, None]
        finite = np.where(used, self._centers, 0.0)
        self._inside = _cumulative(np.where((histogram.bottoms == 0) & (histogram.tops == 0), 0.0, share))
        self._sums = [_cumulative(x) for x in (share, share * finite, share * finite**2)]

    def error(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Mean squared error in units, `[C, R]`."""
        qparams = qparams_from_min_max(low, high, self._grid, (1, 1))
        zero = 0.0 if qparams.zero_point is None else qparams.zero_point.astype(np.float64)
        step = np.abs(qparams.step.astype(np.float64)) / self._unit
        bottom, top = step * (self._grid.dtype.lowest - zero), step * (self._grid.dtype.highest - zero)
        if self._grid.signed_scale:  # a negative scale mirrors the grid
            mirrored = qparams.step < 0
            bottom, top = np.where(mirrored, -top, bottom), np.where(mirrored, -bottom, top)
        first, last = self._index(bottom), self._index(top)
        inside = _at(self._inside, last) - _at(self._inside, first)
        below = self._distance(bottom, np.zeros_like(first), first)
        above = self._distance(top, last, np.full_like(last, self._centers.shape[1]))
        return np.asarray(inside * step**2 / 12 + below + above)

    def _index(self, ends: np.ndarray) -> np.ndarray:
        """How many bins lie below, `[C, R]`."""
        rows = [np.searchsorted(centers, ends[:, row]) for row, centers in enumerate(self._centers)]
        return np.stack(rows, 1)

    def _distance(self, end: np.ndarray, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """Σ (x - end)² over some bins."""
        count, first, second = (_at(sums, stop) - _at(sums, start) for sums in self._sums)
        return np.asarray(np.maximum(second - 2 * end * first + end**2 * count, 0.0))


def _cumulative(values: np.ndarray) -> np.ndarray:
    """Sums of all before each place, and of all: `[R, n + 1]`."""
    return np.pad(values.cumsum(1), ((0, 0), (1, 0)))


def _at(sums: np.ndarray, index: np.ndarray) -> np.ndarray:
    return np.take_along_axis(sums, index.T, 1).T


OBSERVER = MSEObserver
