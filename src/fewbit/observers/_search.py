# SPDX-License-Identifier: Apache-2.0
"""The range of least cost: all candidates and all rows at once, then finer candidates around the best."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor

from fewbit.errors import UsageError
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import from_range
from fewbit.observers._histogram import HistogramBase
from fewbit.observers._spectrum import Spectrum

# What a candidate range costs each row: low and high `[C, R]` in, `[C, R]` out.
Cost = Callable[[Tensor, Tensor], Tensor]
# Fractions `[C, R, ends]` of the whole range to low and high `[C, R]`.
_Place = Callable[[Tensor], tuple[Tensor, Tensor]]

_LEAST = 2.0**-12  # the smallest fraction: a range of nothing would mean any scale
_FINE = 2.0**-9  # ends are settled to this fraction of the whole range, or better
_BATCH = 1 << 18  # elements of a temporary


@dataclass(kw_only=True, eq=False)
class SearchBase(HistogramBase):
    """An observer that tries many ranges on its histogram and takes the one that costs least.

    An asymmetric grid has both its ends searched. The whole range is one of the candidates, so by its own measure the
    result is never worse than `min_max`.

    Args:
        bins: of the histogram.
        candidates: ranges tried in the first round, and again in each finer one.
    """

    candidates: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidates < 4:
            raise UsageError(f"candidates={self.candidates}", where="candidates", expected="at least 4")

    @abstractmethod
    def cost(self, seen: Spectrum, grid: Grid, super_scale: Tensor | None) -> Cost:
        """What any range costs the rows that were seen."""

    def range(self, grid: Grid) -> tuple[Tensor, Tensor]:
        whole = self.seen["low"], self.seen["high"]
        super_scale = from_range(*whole, grid, (1,)).super_scale
        ends = self.range_under(grid, super_scale)
        if super_scale is None:
            return ends
        # The row with the largest value of all sets the scale above the others: cutting it would move their grids.
        largest = torch.maximum(-whole[0], whole[1])
        keep = largest == largest.amax()
        return torch.where(keep, whole[0], ends[0]), torch.where(keep, whole[1], ends[1])

    def range_under(self, grid: Grid, super_scale: Tensor | None) -> tuple[Tensor, Tensor]:
        found = [
            best_range(part, grid, _in_batches(self.cost(part, grid, super_scale), part), self.candidates)
            for part in self.parts()
        ]
        return torch.cat([low for low, _ in found]), torch.cat([high for _, high in found])


def best_range(seen: Spectrum, grid: Grid, cost: Cost, candidates: int) -> tuple[Tensor, Tensor]:
    """The range of least cost for each row; never one that costs more than the whole range.

    Args:
        seen: what the range is for.
        grid: tells which ranges there are.
        cost: what a range costs.
        candidates: how many ranges are tried a round.
    """
    ways = _both_ends(seen, grid) if grid.asymmetric else _magnitudes(seen, grid)
    found = [_zoom(seen.low, ends, place, cost, candidates) for ends, place in ways]
    costs, lows, highs = (torch.stack(each) for each in zip(*found))
    best = costs.argmin(0, keepdim=True)
    return lows.gather(0, best)[0], highs.gather(0, best)[0]


def _both_ends(seen: Spectrum, grid: Grid) -> list[tuple[int, _Place]]:
    """Two fractions, one for each end's distance from zero; one where all values lie on one side."""
    # A grid that need not hold zero is cut towards the middle of the values instead.
    middle = seen.median if grid.free_zero else torch.zeros_like(seen.low)
    below, above = (seen.low - middle).clamp(max=0), (seen.high - middle).clamp(min=0)
    if bool((below == 0).all()):
        return [(1, lambda f: (middle.expand(f.shape[:2]), middle + f[..., 0] * above))]
    if bool((above == 0).all()):
        return [(1, lambda f: (middle + f[..., 0] * below, middle.expand(f.shape[:2])))]
    return [(2, lambda f: (middle + f[..., 0] * below, middle + f[..., 1] * above))]


def _magnitudes(seen: Spectrum, grid: Grid) -> list[tuple[int, _Place]]:
    """One fraction, of the largest magnitude."""
    low, high = seen.low, seen.high
    largest = torch.maximum(-low, high)

    def by_magnitude(down: float, up: float) -> tuple[int, _Place]:
        def place(f: Tensor) -> tuple[Tensor, Tensor]:
            top = f[..., 0] * largest
            bottom, top = -top * down, top * up
            return low.clamp(bottom, top), high.clamp(bottom, top)

        return 1, place

    ways = [by_magnitude(1.0, 1.0)]
    if grid.signed_scale:
        # One side reaches one code less far. `from_range` gives the longer side to the lowest code, so both are tried.
        short = -grid.dtype.highest / grid.dtype.lowest
        ways += [by_magnitude(1.0, short), by_magnitude(short, 1.0)]
    return ways


def _zoom(low: Tensor, ends: int, place: _Place, cost: Cost, candidates: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best of a lattice of fractions, then of finer ones around it: cost, low and high, `[R]` each."""
    each = max(2, candidates if ends == 1 else isqrt(candidates))
    finer = max(2, each // 2)
    steps = torch.arange(finer, -finer - 1, -1, device=low.device)  # the widest first: it wins where costs are equal
    around = _lattice(steps / finer, ends)
    fractions = _lattice(torch.arange(each, 0, -1, device=low.device) / each, ends).expand(-1, len(low), -1)
    radius = 1 / each
    while True:
        costs = cost(*place(fractions))
        index = costs.argmin(0, keepdim=True)
        best = fractions.gather(0, index[..., None].expand(-1, -1, ends))
        if radius <= _FINE:
            found_low, found_high = place(best)
            return costs.gather(0, index)[0], found_low[0], found_high[0]
        fractions = (best + around * radius).clamp(_LEAST, 1.0)
        radius /= finer


def _lattice(values: Tensor, ends: int) -> Tensor:
    """Every combination of values for each end: `[values ** ends, 1, ends]`."""
    return torch.cartesian_prod(*[values] * ends).view(-1, 1, ends)


def _in_batches(cost: Cost, seen: Spectrum) -> Cost:
    """A cost that takes few candidates at a time, so that its temporaries stay small."""
    few = max(1, _BATCH // max(1, seen.counts.numel()))

    def batched(low: Tensor, high: Tensor) -> Tensor:
        return torch.cat([cost(*ends) for ends in zip(torch.split(low, few), torch.split(high, few))])

    return batched
