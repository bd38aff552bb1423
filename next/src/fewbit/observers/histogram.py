# SPDX-License-Identifier: Apache-2.0
"""The range without thin tails."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.observers._histogram import Histogram, HistogramBase, cut_range


@dataclass(kw_only=True, eq=False)
class HistogramObserver(HistogramBase):
    """Clips outer bins as long as each holds less than `mass` of all values.

    A percentile clips the same share of every distribution; this clips only where a distribution is thin. Of fewer than
    1 / `mass` values all are in range.

    Args:
        mass: share of all values that the outermost bin must hold.
        bins: of the histogram, on each side of zero.
    """

    name = "histogram"

    mass: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("mass", 0 <= self.mass < 1, "a number from 0 up and below 1")

    def histogram_range(
        self, histogram: Histogram, grid: QuantizationGrid, global_scale: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        values = histogram if grid.asymmetric else histogram.magnitudes()
        filled = (values.counts > 0) & (values.counts >= values.total[:, None] * self.mass)
        first, last = filled.argmax(1)[:, None], filled.shape[1] - 1 - filled[:, ::-1].argmax(1)[:, None]
        bottom, top = np.take_along_axis(values.bottoms, first, 1), np.take_along_axis(values.tops, last, 1)
        return cut_range(histogram, grid, bottom[:, 0], top[:, 0])


class PerTensorHistogramObserver(HistogramObserver):
    """`histogram` with one scale per tensor, unless the spec says otherwise."""

    granularity = QSchemeType.per_tensor


OBSERVER = HistogramObserver
