# SPDX-License-Identifier: Apache-2.0
"""Histograms that grow without losing a count.

Bins have the width 2^k with edges at multiples of it, numbered from zero: bin 0 holds the zeros alone (every grid has
them, and after a ReLU they are most of the values), bin n > 0 holds (n - 1) 2^k <= x < n 2^k, bin -n mirrors it. k is
the smallest for which `bins` bins reach the largest magnitude. When k grows, every new bin is a run of old ones. So
counts follow from the values alone, not from their order or how they came in batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.ops import Array, amax, amin, arange, bincount_rows, bitcast, cast, is_numpy, namespace, on_cpu
from fewbit.observers._base import RangeObserver, State, like_rows, to_numpy

_NARROWEST = -126
"""Widths stay normal float32 numbers; no grid has smaller scales."""
_PART = 1 << 20
"""Bins that are looked at together."""


@dataclass(frozen=True)
class Histogram:
    """Bins in ascending order, in numpy: `[R, n]`, and `[R]` for the extremes.

    Args:
        bottoms: lower edges, limited to the extremes.
        tops: upper edges, likewise.
        counts: int64; unused columns at the end of a row count nothing.
        low: the smallest value.
        high: the largest value.
        width: of a bin.
    """

    bottoms: np.ndarray
    tops: np.ndarray
    counts: np.ndarray
    low: np.ndarray
    high: np.ndarray
    width: np.ndarray

    @property
    def centers(self) -> np.ndarray:
        """The middle of each bin."""
        return np.asarray(self.bottoms + (self.tops - self.bottoms) / 2)

    @property
    def total(self) -> np.ndarray:
        """Values per row."""
        return np.asarray(self.counts.sum(1))

    @property
    def absmax(self) -> np.ndarray:
        """The largest magnitude per row."""
        return np.asarray(np.maximum(-self.low, self.high))

    @property
    def median(self) -> np.ndarray:
        """The middle of the bin that holds the middle value, per row."""
        cumulative = self.counts.cumsum(1)
        index = (cumulative < (cumulative[:, -1:] + 1) // 2).sum(1, keepdims=True)
        return np.asarray(np.take_along_axis(self.centers, index, 1)[:, 0])

    def magnitudes(self) -> Histogram:
        """The histogram of |x|; of a histogram with all its bins."""
        middle = self.counts.shape[1] // 2
        number = np.arange(middle + 1)
        edges = (number * self.width[:, None]).clip(None, self.absmax[:, None]).astype(np.float32)
        counts = self.counts[:, middle:].copy()
        counts[:, 1:] += self.counts[:, :middle][:, ::-1]
        bottoms = np.concatenate([edges[:, :1], edges[:, :-1]], axis=1)
        return Histogram(bottoms, edges, counts, np.zeros_like(self.low), self.absmax, self.width)

    def compact(self) -> Histogram:
        """Without bins that are empty; as many columns as the fullest row needs."""
        order = np.argsort(self.counts == 0, axis=1, kind="stable")
        order = order[:, : max(int((self.counts > 0).sum(1).max(initial=1)), 1)]
        bottoms, tops, counts = (np.take_along_axis(x, order, 1) for x in (self.bottoms, self.tops, self.counts))
        return replace(self, bottoms=bottoms, tops=tops, counts=counts)


@dataclass(kw_only=True, eq=False)
class HistogramBase(RangeObserver):
    """An observer that keeps a histogram of each row.

    Args:
        bins: on each side of zero; the largest magnitude lies in the upper half of them.
    """

    state_names = ("counts", "exponent", "low", "high")

    bins: int = 2048

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("bins", 4 <= self.bins <= 1 << 20, "an integer from 4 up")

    def measure(self, rows: Array) -> dict[str, Array]:
        low, high = amin(rows, 1), amax(rows, 1)
        exponent = _exponent(low, high, self.bins)
        return {"counts": _count(rows, exponent, self.bins), "exponent": exponent, "low": low, "high": high}

    def combine(self, first: State, second: State) -> dict[str, Array]:
        xp = namespace(first["low"])
        exponent = xp.maximum(first["exponent"], second["exponent"])
        return {
            "counts": _widen(first, exponent) + _widen(second, exponent),
            "exponent": exponent,
            "low": xp.minimum(first["low"], second["low"]),
            "high": xp.maximum(first["high"], second["high"]),
        }

    def range(self, grid: QuantizationGrid, global_scale: Array | None = None) -> tuple[Array, Array]:
        scale = None if global_scale is None else to_numpy(global_scale)
        with np.errstate(all="ignore"):
            ends = [self.histogram_range(part, grid, scale) for part in self.histograms()]
        low, high = (np.concatenate(parts) for parts in zip(*ends))
        return like_rows(low, self.observed["low"]), like_rows(high, self.observed["low"])

    def histogram_range(
        self, histogram: Histogram, grid: QuantizationGrid, global_scale: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The range for some rows; all of what was seen by default."""
        return histogram.low, histogram.high

    def histograms(self) -> Iterator[Histogram]:
        """Some rows at a time, with all bins."""
        columns = self.observed["counts"].shape[1]
        step = max(_PART // columns, 1)
        for start in range(0, self.observed["counts"].shape[0], step):
            yield _histogram({name: to_numpy(array[start : start + step]) for name, array in self.observed.items()})


def cut_range(
    histogram: Histogram, grid: QuantizationGrid, bottom: np.ndarray, top: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The range that is left if values beyond `bottom` and `top` are clipped.

    Args:
        histogram: what was observed.
        grid: asymmetric grids are cut at both ends; for others `top` is a magnitude.
        bottom: `[R]`.
        top: `[R]`.
    """
    low, high = histogram.low, histogram.high
    if not grid.asymmetric:
        # The shorter side stays as it is: a grid with a signed scale gives its extra integer to the longer one.
        bottom, top = low.clip(-top, top), high.clip(-top, top)
    # If nearly all values are zero, nothing else may be left; a range of nothing would lose every other value.
    empty = (bottom == 0) & (top == 0)
    return np.where(empty, low, bottom), np.where(empty, high, top)


def _exponent(low: Array, high: Array, bins: int) -> Array:
    """The smallest k with bins · 2^k >= the largest magnitude: int32 `[R]`."""
    xp = namespace(low)
    mantissa, exponent = xp.frexp(cast(xp.maximum(-low, high), "float64") / bins)
    exponent = cast(exponent, "int32") - cast(mantissa == 0.5, "int32")
    return xp.where(mantissa <= 0, xp.full_like(exponent, _NARROWEST), xp.clip(exponent, _NARROWEST, None))


def _width(exponent: Array) -> Array:
    """2^k in float64, exact on every device: `[R, 1]`."""
    return bitcast((cast(exponent, "int64") + 1023) << 52, "float64")[:, None]


def _count(rows: Array, exponent: Array, bins: int) -> Array:
    """int64 `[R, 2 bins + 3]`: one more bin per side for an extreme that lies on the last edge."""
    columns, (height, length) = 2 * bins + 3, rows.shape
    width, xp = cast(_width(exponent), "float32"), namespace(rows)
    # Temporaries of a few megabytes, for values and for bins.
    elements = 1 << 18 if on_cpu(rows) else 1 << 24
    tall = max(min(elements // min(length, elements), 4 * elements // columns), 1)
    wide = max(elements // tall, 1)
    parts = []
    for top in range(0, height, tall):
        counts = None
        for left in range(0, length, wide):
            piece = rows[top : top + tall, left : left + wide]
            # Dividing by a power of two is exact, the cast truncates: the bin, but for zero and the sign.
            number = cast(piece / width[top : top + tall], "int32") + cast(xp.sign(piece), "int32")
            found = bincount_rows(number + (bins + 1), columns)
            counts = found if counts is None else counts + found
        parts.append(counts)
    return parts[0] if len(parts) == 1 else xp.concatenate(parts)


def _widen(state: State, exponent: Array) -> Array:
    """The counts of a state in bins of the width 2^exponent, which is at least its own."""
    counts, xp = state["counts"], namespace(state["counts"])
    shift = cast(exponent - state["exponent"], "int64")[:, None]
    if on_cpu(counts) and not bool(shift.any()):
        return counts
    middle = counts.shape[1] // 2
    number = arange(counts.shape[1], counts) - middle
    wider = xp.sign(number) * (((xp.abs(number) - 1) >> xp.clip(shift, None, 62)) + 1)
    column = xp.where(number == 0, xp.zeros_like(wider), wider) + middle
    result = xp.zeros_like(counts)
    if is_numpy(counts):
        np.add.at(result, (np.arange(len(counts))[:, None], column), counts)
        return result
    return result.scatter_add_(1, column, counts)


def _histogram(state: State) -> Histogram:
    number = np.arange(state["counts"].shape[1]) - state["counts"].shape[1] // 2
    low, high, width = state["low"][:, None], state["high"][:, None], _width(state["exponent"])
    # Limited before the cast: the last edge may lie beyond float32.
    bottoms = ((number - (number > 0)) * width).clip(low, high).astype(np.float32)
    tops = ((number + (number < 0)) * width).clip(low, high).astype(np.float32)
    return Histogram(bottoms, tops, state["counts"], state["low"], state["high"], width[:, 0])
