# SPDX-License-Identifier: Apache-2.0
"""The range that keeps a given percentage of the values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.errors import UsageError
from fewbit.numerics.grid import Grid
from fewbit.observers._cut import cut
from fewbit.observers._histogram import HistogramBase


@dataclass(kw_only=True, eq=False)
class PercentileObserver(HistogramBase):
    """At most 100 - `percentile` percent of the values are clipped, up to one bin's width as few as that allows.

    A symmetric grid clips by magnitude. An asymmetric one clips half of them at each end. Too few values to make up a
    single clipped one are all kept.

    Args:
        percentile: how many percent of the values are kept.
        bins: of the histogram.

    >>> observer = PercentileObserver(percentile=90)
    >>> observer.observe(torch.arange(1.0, 101.0)[None])
    >>> from fewbit.numerics.dtypes import Dtype
    >>> [end.item() for end in observer.range(Grid(Dtype.int8))]
    [1.0, 90.0625]
    """

    name = "percentile"

    percentile: float = 99.99

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.percentile <= 100:
            raise UsageError(f"percentile={self.percentile}", where="percentile", expected="above 0 and at most 100")

    def range(self, grid: Grid) -> tuple[Tensor, Tensor]:
        seen = self.spectrum if grid.asymmetric else self.magnitudes
        share = (100 - self.percentile) / 100 * (1 + 1e-12)  # 100 - 99.9 is a little below a tenth
        drop = (seen.total.double() * (share / 2 if grid.asymmetric else share)).long()[:, None]
        upto = seen.counts.cumsum(1)
        last = torch.searchsorted(upto, upto[:, -1:] - drop)  # the first bin that leaves at most `drop` above it
        first = torch.searchsorted(upto, drop, right=True) if grid.asymmetric else torch.zeros_like(last)
        return cut(self.seen, grid, seen.bottoms.gather(1, first)[:, 0], seen.tops.gather(1, last)[:, 0])


OBSERVER = PercentileObserver
