# SPDX-License-Identifier: Apache-2.0
"""The range that holds a share of all values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.observers._histogram import Histogram, HistogramBase, cut_range


@dataclass(kw_only=True, eq=False)
class PercentileObserver(HistogramBase):
    """Clips the farthest values: at most 100 - `percentile` percent of them, to the width of a bin.

    A symmetric grid clips by magnitude; an asymmetric one clips half of the share at each end.

    Args:
        percentile: percent of the values that are not clipped.
        bins: of the histogram, on each side of zero.

    >>> from fewbit.numerics.dtypes import Dtype
    >>> observer = PercentileObserver(percentile=90)
    >>> observer.update(np.arange(1, 101, dtype=np.float32)[None])
    >>> [end.tolist() for end in observer.range(QuantizationGrid(Dtype.int8))]
    [[1.0], [90.0625]]
    """

    name = "percentile"

    percentile: float = 99.99

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("percentile", 0 < self.percentile <= 100, "a number above 0 and at most 100")

    def histogram_range(
        self, histogram: Histogram, grid: QuantizationGrid, global_scale: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        values = histogram if grid.asymmetric else histogram.magnitudes()
        share = (100 - self.percentile) / 100 * (1 + 1e-12)  # 100 - 99.9 is a little less than a tenth
        clipped = (values.total * (share / 2 if grid.asymmetric else share)).astype(np.int64)[:, None]
        cumulative = values.counts.cumsum(1)
        first = (cumulative <= clipped).sum(1, keepdims=True)
        last = (cumulative < cumulative[:, -1:] - clipped).sum(1, keepdims=True)
        bottom, top = np.take_along_axis(values.bottoms, first, 1), np.take_along_axis(values.tops, last, 1)
        return cut_range(histogram, grid, bottom[:, 0], top[:, 0])


class PerTensorPercentileObserver(PercentileObserver):
    """`percentile` with one scale per tensor, unless the spec says otherwise."""

    granularity = QSchemeType.per_tensor


OBSERVER = PercentileObserver
