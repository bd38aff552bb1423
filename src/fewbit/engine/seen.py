# SPDX-License-Identifier: Apache-2.0
"""What one pass over the data shows of a graph: of each activation that may become codes, and of each layer's input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

import torch
from torch import Tensor

from fewbit.algorithms._base import Taps
from fewbit.engine.collect import is_held_out
from fewbit.model.watch import COUNT, HIGH, LOW, SAMPLE, SQUARE, SUM, TAPS, WINDOWS
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams, from_range
from fewbit.numerics.quantize import fake_quantize
from fewbit.observers._base import RangeObserver
from fewbit.observers.moments import MomentsObserver

_FLUSH = 1 << 14  # values gathered before an observer is told
_KEPT = 1 << 12  # values of each activation that stay, to see what rounding does to them


@dataclass
class Site:
    """What was seen of one activation.

    Args:
        observer: of its range.
        limits: beyond these its readers do not tell values apart.
        kept: some of its values.
    """

    observer: RangeObserver
    limits: tuple[float, float] = (-inf, inf)
    waiting: list[Tensor] = field(default_factory=list)
    kept: list[Tensor] = field(default_factory=list)
    count: int = 0
    ends: tuple[float, float] = (inf, -inf)

    def take(self, found: Mapping[str, Tensor], item: int) -> None:
        """Take in what one item shows."""
        values = found[SAMPLE].flatten().float().clamp(*self.limits)
        self.ends = (min(self.ends[0], float(found[LOW].min())), max(self.ends[1], float(found[HIGH].max())))
        self.waiting.append(values)
        self.count += values.numel()
        if sum(map(torch.numel, self.kept)) < _KEPT:
            self.kept.append(values)
        if self.count > _FLUSH:
            self.flush()

    @property
    def empty(self) -> bool:
        """Whether no item reached it."""
        return not self.kept

    def flush(self) -> None:
        """Tell the observer what was gathered."""
        if self.waiting:
            self.observer.observe(torch.cat(self.waiting)[None])
        self.waiting, self.count = [], 0

    def grid(self, grid: Grid) -> QParams:
        """Scale and zero point of its codes."""
        # The extremes count once: a sample says how often values near them come.
        self.waiting.append(torch.tensor(self.ends).clamp(*self.limits))
        self.flush()
        low, high = self.observer.range(grid)
        return from_range(low, high, grid, (1,))

    def noise(self, qparams: QParams) -> float:
        """The energy of rounding over that of the values."""
        values = torch.cat(self.kept)
        spread = float(values.double().square().sum())
        off = fake_quantize(values, replace(qparams, block=(values.numel(),))) - values
        return float(off.double().square().sum()) / max(spread, 1e-30)


@dataclass
class Input:
    """What was seen of one layer's input: from the items that teach, and from those kept aside."""

    moments: dict[bool, MomentsObserver] = field(default_factory=dict)
    taps: dict[bool, Taps] = field(default_factory=dict)

    def take(self, found: Mapping[str, Tensor], item: int) -> None:
        """Take in what one item shows."""
        aside = is_held_out(item)
        known = {name: found[name] for name in (SUM, SQUARE, COUNT)}
        self.moments.setdefault(aside, MomentsObserver()).absorb(
            {name: x.reshape(-1, 1) if x.ndim else x for name, x in known.items()}
        )
        before = self.taps.get(aside)
        sums, windows = found[TAPS], found[WINDOWS]
        self.taps[aside] = Taps(sums, windows) if before is None else Taps(before.sums + sums, before.windows + windows)
