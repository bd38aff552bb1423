# SPDX-License-Identifier: Apache-2.0
"""Histograms that grow: bins whose width is a power of two and whose edges are multiples of it.

Row by row, the width is the smallest 2^k for which `bins` bins cover zero and everything seen. When the range grows, k
grows, and each new bin is exactly a run of old bins. So the counts depend on the values seen and on nothing else: not
on their order, not on how they came in batches, not on which side the range grew.

A bin is numbered by its distance from zero. Bin 0 holds the zeros alone (they are on every grid, and after a ReLU they
are most of the values). Bin i > 0 holds (i - 1) 2^k <= x < i 2^k; bin -i mirrors it. Column c of a row's counts is bin
c - negative, where `negative` is how many bins the row has below zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.errors import UsageError
from fewbit.observers._base import RangeObserver, State
from fewbit.observers._pieces import piece_size, pieces

# The zeros, and at each end one more bin for an extreme that lies on an edge: data in [0, 1] would otherwise need twice
# the width because of a single 1.0.
_MORE = 3
# Widths stay normal float32 numbers; no grid has scales below.
_NARROWEST = -126
_PART = 1 << 20  # bins looked at together


@dataclass(kw_only=True, eq=False)
class HistogramBase(RangeObserver):
    """An observer that keeps a histogram of each row.

    Args:
        bins: between half of them and all cover the range from the smallest to the largest value, zero included.
    """

    keeps = ("counts", "exponent", "low", "high")

    bins: int = 2048

    def __post_init__(self) -> None:
        if self.bins < 4:
            raise UsageError(f"bins={self.bins}", expected="at least 4")

    def measure(self, rows: Tensor) -> dict[str, Tensor]:
        low, high = rows.amin(1), rows.amax(1)
        exponent = exponents(low, high, self.bins)
        counts = torch.zeros(len(rows), self.bins + _MORE, dtype=torch.int64, device=rows.device)
        count(counts, rows, low, exponent)
        return {"counts": counts, "exponent": exponent, "low": low, "high": high}

    def combine(self, first: State, second: State) -> dict[str, Tensor]:
        grown = self._grown(first, second["low"], second["high"])
        return {**grown, "counts": grown["counts"] + moved(second, grown["low"], grown["exponent"])}

    @property
    def spectrum(self) -> Spectrum:
        """What was seen: bins from the lowest to the highest, and how many values each holds."""
        return spectrum(self.seen)

    @property
    def magnitudes(self) -> Spectrum:
        """The same without the signs."""
        return magnitudes(self.seen)

    def parts(self) -> Iterator[Spectrum]:
        """The spectrum a few rows at a time, without the bins that none of them uses."""
        rows, columns = self.seen["counts"].shape
        tall = max(1, _PART // columns)
        for top in range(0, rows, tall):
            yield spectrum({name: tensor[top : top + tall] for name, tensor in self.seen.items()}).compact()

    def _take(self, rows: Tensor) -> None:
        if self.empty:
            self._seen = self.measure(rows)
        else:
            # What `combine` of a `measure` gives, without a second set of counts.
            self._seen = self._grown(self._seen, rows.amin(1), rows.amax(1))
            count(self._seen["counts"], rows, self._seen["low"], self._seen["exponent"])

    def _grown(self, state: State, low: Tensor, high: Tensor) -> dict[str, Tensor]:
        low, high = torch.minimum(state["low"], low), torch.maximum(state["high"], high)
        exponent = exponents(low, high, self.bins)
        return {"counts": moved(state, low, exponent), "exponent": exponent, "low": low, "high": high}


@dataclass(frozen=True)
class Spectrum:
    """The bins of each row, from the lowest to the highest: `[R, n]` each, `[R]` for the extremes.

    Args:
        bottoms: the lower edges, held to the extremes that were seen.
        tops: the upper edges, likewise.
        counts: how many values lie between, int64.
        low: the smallest value.
        high: the largest value.
    """

    bottoms: Tensor
    tops: Tensor
    counts: Tensor
    low: Tensor
    high: Tensor

    @property
    def centres(self) -> Tensor:
        """The middles of the bins."""
        return self.bottoms + (self.tops - self.bottoms) / 2

    @property
    def median(self) -> Tensor:
        """The middle of the bin that holds the middle value: `[R]`."""
        upto = self.counts.cumsum(1)
        return self.centres.gather(1, torch.searchsorted(upto, (upto[:, -1:] + 1) // 2))[:, 0]

    @property
    def total(self) -> Tensor:
        """How many values each row has: int64 `[R]`."""
        return self.counts.sum(1)

    def compact(self) -> Spectrum:
        """Without the bins that are empty in every place: as many columns as the fullest row has bins in use."""
        used = self.counts > 0
        column = used.cumsum(1) - 1
        width = int(column.amax()) + 1
        column = torch.where(used, column, width)  # one column more, to throw away

        def gathered(x: Tensor) -> Tensor:
            return x.new_zeros(len(x), width + 1).scatter_(1, column, x)[:, :width]

        return Spectrum(gathered(self.bottoms), gathered(self.tops), gathered(self.counts), self.low, self.high)


def spectrum(state: State) -> Spectrum:
    """The bins of a state with their edges."""
    low, high, width = state["low"][:, None], state["high"][:, None], powers(state["exponent"])[:, None]
    number = (
        torch.arange(state["counts"].shape[1], device=low.device) - negative(state["low"], state["exponent"])[:, None]
    )
    ends = (number - (number > 0).long(), number + (number < 0).long())
    bottom, top = ((end * width).float().clamp(low, high) for end in ends)
    return Spectrum(bottom, top, state["counts"], state["low"], state["high"])


def magnitudes(state: State) -> Spectrum:
    """The bins of the absolute values, with their edges."""
    counts, width = state["counts"], powers(state["exponent"])[:, None]
    number = torch.arange(counts.shape[1], device=counts.device)
    largest = torch.maximum(-state["low"], state["high"])
    ends = ((number - 1).clamp(min=0), number)
    bottom, top = ((end * width).float().clamp(max=largest[:, None]) for end in ends)
    both = torch.zeros_like(counts).scatter_add_(1, numbers(state).abs(), counts)
    return Spectrum(bottom, top, both, torch.zeros_like(largest), largest)


def numbers(state: State) -> Tensor:
    """The number of the bin in each column: int64, `[R, columns]`."""
    columns = torch.arange(state["counts"].shape[1], device=state["low"].device)
    return columns - negative(state["low"], state["exponent"])[:, None]


def powers(exponent: Tensor) -> Tensor:
    """2 ** exponent in float64, exact on every device."""
    return ((exponent.long() + 1023) << 52).view(torch.float64)


def exponents(low: Tensor, high: Tensor, bins: int) -> Tensor:
    """The smallest k for which `bins` bins of width 2^k cover zero and [low, high]: int32 `[R]`."""
    below, above = (-low).clamp(min=0).double(), high.clamp(min=0).double()
    # 2^(k - 1) <= span / bins < 2^k: k - 1 is too small or just right; the bins cut by zero may cost two steps more.
    k = torch.frexp((below + above) / bins).exponent.long() - 1
    k = torch.where(below + above > 0, k, _NARROWEST).clamp_(min=_NARROWEST)
    for _ in range(2):
        width = powers(k)
        k = k + ((below / width).ceil() + (above / width).ceil() > bins).long()
    return k.int()


def negative(low: Tensor, exponent: Tensor) -> Tensor:
    """How many bins a row has below zero: int64 `[R]`."""
    return torch.where(low < 0, ((-low).double() / powers(exponent)).long() + 1, 0)


def count(counts: Tensor, rows: Tensor, low: Tensor, exponent: Tensor) -> None:
    """Add rows to counts, in place; the bins cover them."""
    columns = counts.shape[1]
    width = powers(exponent).float()[:, None]
    start = negative(low, exponent)[:, None]
    # Row r of a piece counts in columns of its own: one `bincount` for all of them, and not many more bins than values.
    size = piece_size(rows.device)
    most_rows = min(max(16, size // min(columns, rows.shape[1])), max(1, 32 * size // columns))
    for place, piece in pieces(rows, most_rows):
        first = torch.arange(len(piece), device=rows.device)[:, None] * columns + start[place]
        # Division by a power of two is exact, conversion to integers truncates: the bin, but for zero and the sign.
        number = (piece / width[place]).int().add_(piece.sign().int()).add_(first.int())
        flat = (number.T if number.stride(0) == 1 else number).reshape(-1)
        found = torch.bincount(flat, minlength=len(piece) * columns)
        counts[place] += found.view(-1, columns)


def moved(state: State, low: Tensor, exponent: Tensor) -> Tensor:
    """The counts of a state in the wider bins of a range that holds its own; the same tensor if nothing changes."""
    counts = state["counts"]
    before, after = negative(state["low"], state["exponent"])[:, None], negative(low, exponent)[:, None]
    shift = (exponent - state["exponent"]).long()[:, None]
    if counts.device.type == "cpu" and torch.equal(before, after) and not shift.any():
        return counts
    number = numbers(state)
    wider = number.sign() * (((number.abs() - 1) >> shift.clamp(max=62)) + 1)
    # Columns beyond the range are empty, and may fall off the end.
    column = (wider + after).clamp_(0, counts.shape[1] - 1)
    return torch.zeros_like(counts).scatter_add_(1, column, counts)
