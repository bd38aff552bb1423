# SPDX-License-Identifier: Apache-2.0
"""One threshold over the magnitudes of all layers, with exactly so many elements below it.

The bits of a positive float, read as a whole number, are in the order of the floats. So the threshold is found digit by
digit, sixteen bits at a time, from counts: exact, with one weight in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_HALF = 16


def zeros_of_each(weights: Sequence[Callable[[], Tensor]], zeros: int) -> list[int]:
    """How many elements of each weight are among the smallest of all.

    Args:
        weights: read one at a time, three times each; finite.
        zeros: how many there are in all.

    Returns:
        One number for each weight, that many in all. Of equal ones those that come first are kept.

    >>> zeros_of_each([lambda: torch.tensor([1.0, -3.0]), lambda: torch.tensor([2.0, 1.0])], 2)
    [1, 1]
    >>> zeros_of_each([lambda: torch.tensor([1.0, -3.0]), lambda: torch.tensor([2.0, 1.0])], 1)
    [0, 1]
    """
    if not zeros:
        return [0] * len(weights)
    high, before = _digit(weights, zeros, lambda bits: bits >> _HALF)
    low, _ = _digit(weights, zeros - before, lambda bits: (bits & 0xFFFF)[bits >> _HALF == high])
    threshold = (high << _HALF) + low
    counts = [(int((bits < threshold).sum()), int((bits == threshold).sum())) for bits in map(_bits, weights)]
    kept = sum(below + equal for below, equal in counts) - zeros  # of those at the threshold
    found = []
    for below, equal in counts:
        mine = min(equal, kept)
        kept -= mine
        found.append(below + equal - mine)
    return found


def _digit(weights: Sequence[Callable[[], Tensor]], place: int, digits: Callable[[Tensor], Tensor]) -> tuple[int, int]:
    """The digit of the element at a place of the order, counted from 1; and how many have a smaller one."""
    counts = torch.zeros(1 << _HALF, dtype=torch.int64)
    for read in weights:
        counts += torch.bincount(digits(_bits(read)), minlength=1 << _HALF).cpu()
    sums = counts.cumsum(0)
    digit = int(torch.searchsorted(sums, place))
    return digit, int(sums[digit] - counts[digit])


def _bits(read: Callable[[], Tensor]) -> Tensor:
    return read().detach().float().abs().contiguous().view(torch.int32).flatten()
