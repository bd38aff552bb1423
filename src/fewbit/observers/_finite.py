# SPDX-License-Identifier: Apache-2.0
"""A guard before the observers: what is not finite is counted, remembered and kept from the statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.model.watch import HIGH, LOW, SAMPLE, SQUARE, SUM, TAPS

_TELLING = (LOW, HIGH, SUM, SQUARE, TAPS, SAMPLE)


@dataclass(frozen=True)
class NonFinite:
    """What a guard saw.

    Args:
        item: the index of the first item it was in.
        nan: how many values were not a number.
        positive: how many were plus infinity.
        negative: how many were minus infinity.
        summed: whether values were not at hand, and the numbers are of their extremes and sums.
    """

    item: int
    nan: int
    positive: int
    negative: int
    summed: bool = False

    def __str__(self) -> str:
        parts = {"NaN": self.nan, "+inf": self.positive, "-inf": self.negative}
        there = {name: count for name, count in parts.items() if count}
        if self.summed:
            return " and ".join(there)
        return ", ".join(f"{count} {name}" for name, count in there.items())


class FiniteGuard:
    """Watches one point. Everything stays on the tensors' device until `found` is called.

    >>> guard = FiniteGuard()
    >>> guard.admit(torch.tensor([1.0, float("nan")]), item=7)
    tensor([1., 0.])
    >>> guard.found()
    NonFinite(item=7, nan=1, positive=0, negative=0, summed=False)
    """

    def __init__(self) -> None:
        self._counts: Tensor | None = None  # nan, +inf, -inf
        self._first: Tensor | None = None  # item index, -1 as long as there was none
        self._summed = False

    def admit(self, x: Tensor, item: int) -> Tensor:
        """The values for the observers: `x` itself if all are finite, else a copy with zeros for the others.

        Args:
            x: any shape.
            item: the index of the item that `x` comes from.
        """
        # On the host a result can be read at no cost, so the common case is two fast passes. On an accelerator reading
        # waits for everything before it, so the work is done in any case.
        if not x.is_floating_point() or not x.numel() or (x.device.type == "cpu" and _all_finite(x)):
            return x
        self._count(x, item)
        return torch.where(x.isfinite(), x, 0)

    def look(self, known: Mapping[str, Tensor], item: int) -> bool:
        """The same where the values are not at hand: what is not finite shows in their extremes and sums.

        Args:
            known: some of `fewbit.model.watch.NEEDS`.
            item: the index of the item that it comes from.

        Returns:
            Whether all is finite, for sure.
        """
        finite = True
        for name in _TELLING:
            x = known.get(name)
            if x is None or (name == SQUARE and SUM in known):  # a square may overflow by itself
                continue
            x = x.float() if name in (LOW, HIGH) else x  # in which observers keep them
            if x.device.type != "cpu" or not math.isfinite(x.sum(dtype=torch.float64)):
                self._summed, finite = True, False
                self._count(x, item)
        return finite

    def found(self) -> NonFinite | None:
        """What was seen that is not finite, or none; waits for the device."""
        if self._counts is None or self._first is None or int(self._first) < 0:
            return None
        nan, positive, negative = self._counts.tolist()
        return NonFinite(int(self._first), nan, positive, negative, self._summed)

    def _count(self, x: Tensor, item: int) -> None:
        found = torch.stack([x.isnan().sum(), (x == math.inf).sum(), (x == -math.inf).sum()])
        if self._counts is None or self._first is None:
            self._counts = torch.zeros_like(found)
            self._first = torch.full((), -1, device=x.device)
        self._counts += found
        self._first = torch.where((self._first < 0) & found.any(), item, self._first)


def _all_finite(x: Tensor) -> bool:
    # Not a number comes through a minimum and a maximum.
    return math.isfinite(x.amin()) and math.isfinite(x.amax())
