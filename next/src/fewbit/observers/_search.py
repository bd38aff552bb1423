# SPDX-License-Identifier: Apache-2.0
"""The range of least cost: a lattice of candidates for all rows at once, then finer ones around the best."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

import numpy as np

from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.quantize import qparams_from_min_max
from fewbit.observers._histogram import Histogram, HistogramBase

Cost = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""What candidate ranges cost: low and high `[C, R]` to `[C, R]`."""
_Ends = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Shares `[C, R, ends]` of the complete range to low and high `[C, R]`."""

_SMALLEST = 2.0**-12
"""Share of the range; a range of nothing would have any scale."""
_RESOLUTION = 2.0**-9
"""Ends are searched to this share of the range."""
_BATCH = 1 << 19
"""Elements of a temporary."""


@dataclass(kw_only=True, eq=False)
class SearchBase(HistogramBase):
    """An observer that takes the range of least cost, by its histogram; never one that costs more than `min_max`.

    Args:
        bins: of the histogram, on each side of zero.
        candidates: ranges tried in the first round; both ends of an asymmetric grid are searched together.
    """

    candidates: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("candidates", self.candidates >= 4, "an integer from 4 up")

    @abstractmethod
    def cost(self, histogram: Histogram, grid: QuantizationGrid, global_scale: np.ndarray | None) -> Cost:
        """What any range costs the values of a compact histogram."""

    def histogram_range(
        self, histogram: Histogram, grid: QuantizationGrid, global_scale: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        if grid.dtype.is_cast:
            return histogram.low, histogram.high
        low, high = histogram.low, histogram.high
        fixed = np.zeros(len(low), bool)
        if grid.two_level and global_scale is None:
            # The row with the largest value sets the global scale: clipping it would move the grids of all others.
            global_scale = qparams_from_min_max(low, high, grid, (1,)).global_scale
            fixed = histogram.absmax == histogram.absmax.max()
        values = histogram.compact()
        best_low, best_high = self.search(values, grid, global_scale)
        return np.where(fixed, low, best_low), np.where(fixed, high, best_high)

    def search(
        self, histogram: Histogram, grid: QuantizationGrid, global_scale: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The range of least cost of a compact histogram."""
        cost = in_batches(self.cost(histogram, grid, global_scale), histogram.counts.size)
        return best_range(histogram, grid, cost, self.candidates)


def best_range(
    histogram: Histogram, grid: QuantizationGrid, cost: Cost, candidates: int
) -> tuple[np.ndarray, np.ndarray]:
    """The range of least cost for each row; of equal costs the widest.

    Args:
        histogram: what was observed.
        grid: says which ranges there are: two ends, or a magnitude.
        cost: of a range.
        candidates: ranges of the first round.
    """
    ways = _two_ends(histogram, grid) if grid.asymmetric else _magnitudes(histogram, grid)
    results = [_zoom(len(histogram.low), ends, place, cost, candidates) for ends, place in ways]
    costs, lows, highs = (np.stack(parts) for parts in zip(*results))
    best = costs.argmin(0)[None]
    return np.take_along_axis(lows, best, 0)[0], np.take_along_axis(highs, best, 0)[0]


def in_batches(cost: Cost, elements: int) -> Cost:
    """A cost that looks at few candidates at a time, so that its temporaries stay small."""
    step = max(_BATCH // max(elements, 1), 1)

    def batched(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        parts = [cost(low[start : start + step], high[start : start + step]) for start in range(0, len(low), step)]
        return np.concatenate(parts)

    return batched


def _two_ends(histogram: Histogram, grid: QuantizationGrid) -> list[tuple[int, _Ends]]:
    """Shares of the distances of both ends from zero; a grid that need not contain zero is cut towards the median."""
    low, high = histogram.low.astype(np.float64), histogram.high.astype(np.float64)  # their distance may not be float32
    middle = histogram.median.astype(np.float64) if grid.free_zero else np.zeros_like(low)
    below, above = np.minimum(low - middle, 0), np.maximum(high - middle, 0)
    ends = 1 if not (below.any() and above.any()) else 2

    def place(share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        bottom, top = middle + share[..., 0] * below, middle + share[..., -1] * above
        return bottom.astype(np.float32), top.astype(np.float32)

    return [(ends, place)]


def _magnitudes(histogram: Histogram, grid: QuantizationGrid) -> list[tuple[int, _Ends]]:
    """Shares of the largest magnitude."""

    def way(down: float, up: float) -> tuple[int, _Ends]:
        def place(share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            top = share[..., 0] * histogram.absmax
            return histogram.low.clip(-top * down, top * up), histogram.high.clip(-top * down, top * up)

        return 1, place

    if not grid.signed_scale:
        return [way(1.0, 1.0)]
    # The sign of the scale gives the lowest integer to the longer side; the other reaches one step less far.
    short = -grid.dtype.highest / grid.dtype.lowest
    return [way(1.0, 1.0), way(1.0, short), way(short, 1.0)]


def _zoom(rows: int, ends: int, place: _Ends, cost: Cost, candidates: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cost, low and high of the best shares, `[R]` each."""
    count = max(candidates if ends == 1 else isqrt(candidates), 2)
    finer = max(count // 2, 2)
    shares = np.broadcast_to(_lattice(np.arange(count, 0, -1) / count, ends), (count**ends, rows, ends))
    around = _lattice(np.arange(finer, -finer - 1, -1) / finer, ends)  # the widest first: it wins if costs are equal
    radius = 1 / count
    while True:
        low, high = place(shares.astype(np.float32))
        costs = cost(low, high)
        index = costs.argmin(0)[None]
        best = np.take_along_axis(shares, index[..., None].repeat(ends, 2), 0)
        if radius <= _RESOLUTION:
            return (*(np.take_along_axis(x, index, 0)[0] for x in (costs, low, high)),)  # type: ignore[return-value]
        shares = (best + around * radius).clip(_SMALLEST, 1.0)
        radius /= finer


def _lattice(values: np.ndarray, ends: int) -> np.ndarray:
    """Every combination of values for each end: `[values ** ends, 1, ends]`."""
    return np.stack(np.meshgrid(*[values] * ends, indexing="ij"), -1).reshape((-1, 1, ends))
