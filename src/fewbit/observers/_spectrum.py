# SPDX-License-Identifier: Apache-2.0
"""What a histogram tells: bins with their edges, and how many values each holds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.observers._base import State
from fewbit.observers._bins import numbers, powers


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
    number = numbers(state)
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
