# SPDX-License-Identifier: Apache-2.0
"""The range between the outermost bins that hold more than a stray value."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fewbit.errors import UsageError
from fewbit.numerics.grid import Grid
from fewbit.observers._cut import cut
from fewbit.observers._histogram import HistogramBase


@dataclass(kw_only=True, eq=False)
class HistogramObserver(HistogramBase):
    """Bins are dropped from the ends inwards as long as each holds less than `mass` of all values.

    A percentile cuts the same share of every distribution. This cuts where the distribution is thin: lone outliers go,
    a tail that is well filled stays. Of fewer than 1 / `mass` values all are kept.

    Args:
        mass: the share of all values that the outermost bin has to hold.
        bins: of the histogram.
    """

    name = "histogram"

    mass: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.mass < 1:
            raise UsageError(f"mass={self.mass}", where="mass", expected="at least 0 and below 1")

    def range(self, grid: Grid) -> tuple[Tensor, Tensor]:
        seen = self.spectrum if grid.asymmetric else self.magnitudes
        kept = (seen.counts >= seen.total[:, None].double() * self.mass) & (seen.counts > 0)
        first = kept.long().argmax(1, keepdim=True)
        last = kept.shape[1] - 1 - kept.flip(1).long().argmax(1, keepdim=True)
        return cut(self.seen, grid, seen.bottoms.gather(1, first)[:, 0], seen.tops.gather(1, last)[:, 0])


OBSERVER = HistogramObserver
