# SPDX-License-Identifier: Apache-2.0
"""What one pass over the data shows of a graph: of each activation that may become codes, and of each layer's input.

A graph shows a hundred small statistics an item. They are taken in many items at a time: one by one, adding them up
would take longer than the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import Protocol

import torch
from torch import Tensor

from fewbit.algorithms._base import Taps
from fewbit.engine.collect import is_held_out
from fewbit.model.watch import COUNT, HIGH, LOW, SAMPLE, SQUARE, SUM, TAPS, VALUES, WINDOWS
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams, from_range
from fewbit.numerics.quantize import fake_quantize
from fewbit.observers._base import RangeObserver
from fewbit.observers._finite import FiniteGuard
from fewbit.observers.gram import GramObserver
from fewbit.observers.moments import MomentsObserver

_TOGETHER = 32  # items taken in at a time
_KEPT = 1 << 12  # values of each activation that stay, to see what rounding does to them
_ENDLESS = 1e30  # what is beyond stands for infinity: a mask of attention, which no range is to hold

Found = Mapping[str, Tensor]


class Taker(Protocol):
    """Whoever takes in what items show.

    Attributes:
        endless: whether infinities are part of it.
    """

    endless: bool

    def take(self, found: Sequence[Found], items: Sequence[int]) -> None:
        """Take in what some items show; all of it is finite."""


class Gathering:
    """What items show of one point, until there are enough to be taken in.

    Args:
        taker: who takes them.
        guard: is told of what is not finite, which the taker never sees.
        together: how many items are taken in at a time.
    """

    def __init__(self, taker: Taker, guard: FiniteGuard, together: int = _TOGETHER):
        self._taker, self._guard, self._together = taker, guard, together
        self._found: list[Found] = []
        self._items: list[int] = []

    def add(self, found: Found, item: int) -> None:
        """One more item."""
        self._found.append(found)
        self._items.append(item)
        if len(self._items) == self._together:
            self.flush()

    def flush(self) -> None:
        """Let the taker have what there is."""
        found, items = self._found, self._items
        self._found, self._items = [], []
        if not found:
            return
        telling = [name for name in (LOW, HIGH, SUM, TAPS, SAMPLE) if name in found[0]]
        total = sum(float(torch.cat([each[name].flatten() for each in found]).double().sum()) for name in telling)
        if not isfinite(total):
            shown = [_without_ends(each) for each in found] if self._taker.endless else found
            sound = [self._guard.look(each, item) for each, item in zip(shown, items)]
            found = [each for each, fine in zip(found, sound) if fine]
            items = [item for item, fine in zip(items, sound) if fine]
        if found:
            self._taker.take(found, items)


def _without_ends(found: Found) -> Found:
    """The same without infinities: what is left that is not finite is not a number. A sum may only have overflown."""
    return {name: x.nan_to_num(torch.nan, 0.0, 0.0) for name, x in found.items() if name in (LOW, HIGH, SAMPLE)}


@dataclass
class Site:
    """What was seen of one activation; infinities, which a mask of attention holds, are no part of its range.

    Args:
        observer: of its range.
        limits: beyond these its readers do not tell values apart.
        kept: some of its values.
        ends: the smallest and the largest.
        sampled: of those that were sampled.
    """

    observer: RangeObserver
    limits: tuple[float, float] = (-inf, inf)
    kept: list[Tensor] = field(default_factory=list)
    ends: tuple[float, float] = (inf, -inf)
    sampled: tuple[float, float] = (inf, -inf)
    endless = True

    def take(self, found: Sequence[Found], items: Sequence[int]) -> None:
        """Take in what some items show."""
        values = torch.cat([each[SAMPLE].flatten() for each in found]).float().clamp(*self.limits)
        values = values[values.abs() < _ENDLESS]
        if not values.numel():
            return
        ends = torch.cat([each[name].float() for each in found for name in (LOW, HIGH)])
        ends = ends[ends.abs() < _ENDLESS]
        self.ends = min(self.ends[0], *ends.tolist(), inf), max(self.ends[1], *ends.tolist(), -inf)
        self.sampled = min(self.sampled[0], float(values.min())), max(self.sampled[1], float(values.max()))
        if sum(map(torch.numel, self.kept)) < _KEPT:
            self.kept.append(values[:: max(1, values.numel() // _KEPT)])
        self.observer.observe(values[None])

    @property
    def empty(self) -> bool:
        """Whether no item reached it."""
        return not self.kept

    def grid(self, grid: Grid) -> QParams:
        """Scale and zero point of its codes."""
        if self.empty:  # nothing ever flows there, so any codes will do
            return from_range(torch.zeros(1), torch.ones(1), grid, (1,))
        # Extremes that no sample held count once: how often values near them come, the samples say.
        ends = torch.tensor(self.ends).clamp(*self.limits)
        missed = ends[torch.tensor([ends[0] < self.sampled[0], ends[1] > self.sampled[1]])]
        if missed.numel():
            self.observer.observe(missed[None])
        low, high = self.observer.range(grid)
        return from_range(low, high, grid, (1,))

    def noise(self, qparams: QParams) -> float:
        """The energy of rounding over that of the values."""
        if self.empty:
            return 0.0
        values = torch.cat(self.kept)
        spread = float(values.double().square().sum())
        off = fake_quantize(values, replace(qparams, block=(values.numel(),))) - values
        return float(off.double().square().sum()) / max(spread, 1e-30)


@dataclass
class Input:
    """What was seen of one layer's input: from the items that teach (False), and from those kept aside (True).

    Args:
        moments: sums by feature.
        taps: what each element of a kernel met.
        gram: second moments, where an algorithm asks for them.
    """

    moments: dict[bool, MomentsObserver] = field(default_factory=dict)
    taps: dict[bool, Taps] = field(default_factory=dict)
    gram: dict[bool, GramObserver] = field(default_factory=dict)
    endless = False

    def take(self, found: Sequence[Found], items: Sequence[int]) -> None:
        """Take in what some items show."""
        for aside in (False, True):
            mine = [each for each, item in zip(found, items) if is_held_out(item) is aside]
            if not mine:
                continue
            known = {name: torch.stack([each[name] for each in mine]).sum(0) for name in (SUM, SQUARE, COUNT)}
            self.moments.setdefault(aside, MomentsObserver()).absorb(
                {name: x.reshape(-1, 1) if x.ndim else x for name, x in known.items()}
            )
            sums, windows = (torch.stack([each[name] for each in mine]).sum(0) for name in (TAPS, WINDOWS))
            old = self.taps.get(aside)
            self.taps[aside] = Taps(sums, windows) if old is None else Taps(old.sums + sums, old.windows + windows)
            for each in mine:
                if VALUES in each:
                    self.gram.setdefault(aside, GramObserver()).observe(each[VALUES].float().T)
