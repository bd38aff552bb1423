# SPDX-License-Identifier: Apache-2.0
"""The smallest and the largest value ever seen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.model.watch import HIGH, LOW
from fewbit.numerics.grid import Grid
from fewbit.observers._base import RangeObserver, State


@dataclass(kw_only=True, eq=False)
class MinMaxObserver(RangeObserver):
    """Nothing that was seen is clipped.

    >>> observer = MinMaxObserver()
    >>> observer.observe(torch.tensor([[1.0, -2.0]]))
    >>> observer.observe(torch.tensor([[3.0]]))
    >>> observer.state()
    {'low': tensor([-2.]), 'high': tensor([3.])}
    """

    name = "min_max"
    keeps = ("low", "high")
    needs = frozenset({LOW, HIGH})

    def measure(self, rows: Tensor) -> dict[str, Tensor]:
        return self.gather({LOW: rows, HIGH: rows})

    def gather(self, found: State) -> dict[str, Tensor]:
        # Two passes: torch's `aminmax` along an axis is ten times slower than both together.
        return {"low": found[LOW].float().amin(1), "high": found[HIGH].float().amax(1)}

    def combine(self, first: State, second: State) -> dict[str, Tensor]:
        low, high = torch.minimum(first["low"], second["low"]), torch.maximum(first["high"], second["high"])
        return {"low": low, "high": high}

    def range(self, grid: Grid) -> tuple[Tensor, Tensor]:
        return self.seen["low"], self.seen["high"]


OBSERVER = MinMaxObserver
