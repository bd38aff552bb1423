# SPDX-License-Identifier: Apache-2.0
"""The exponential average of each batch's smallest and largest value."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.errors import UsageError
from fewbit.model.watch import HIGH, LOW
from fewbit.numerics.grid import Grid
from fewbit.observers._base import RangeObserver, State


@dataclass(kw_only=True, eq=False)
class MovingAverageObserver(RangeObserver):
    """Batch t of n weighs c (1 - c)^(n - t), divided by the sum of all weights, so the first batch has no special part.

    The order of the batches matters. Merging multiplies what was seen first by (1 - c)^(number of later batches), which
    is what one pass does to it.

    Args:
        averaging_constant: c, the weight of the newest batch against all before it.

    >>> observer = MovingAverageObserver(averaging_constant=0.5)
    >>> for high in (1.0, 4.0):
    ...     observer.observe(torch.tensor([[0.0, high]]))
    >>> observer.range(None)
    (tensor([0.]), tensor([3.]))
    """

    name = "moving_average"
    keeps = ("low", "high", "batches")
    needs = frozenset({LOW, HIGH})

    averaging_constant: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.averaging_constant <= 1:
            what = f"averaging_constant={self.averaging_constant}"
            raise UsageError(what, where="averaging_constant", expected="above 0 and at most 1")

    def measure(self, rows: Tensor) -> dict[str, Tensor]:
        return self.gather({LOW: rows, HIGH: rows})

    def gather(self, found: State) -> dict[str, Tensor]:
        # Weighted sums, not averages: they can be added up. float64 keeps a thousand batches exact enough.
        ends = (found[LOW].float().amin(1), found[HIGH].float().amax(1))
        low, high = (end.double() * self.averaging_constant for end in ends)
        return {"low": low, "high": high, "batches": torch.ones((), dtype=torch.int64, device=low.device)}

    def combine(self, first: State, second: State) -> dict[str, Tensor]:
        fade = self._fade(second["batches"])
        return {
            "low": first["low"] * fade + second["low"],
            "high": first["high"] * fade + second["high"],
            "batches": first["batches"] + second["batches"],
        }

    def range(self, grid: Grid) -> tuple[Tensor, Tensor]:
        weights = 1 - self._fade(self.seen["batches"])
        return (self.seen["low"] / weights).float(), (self.seen["high"] / weights).float()

    def _fade(self, batches: Tensor) -> Tensor:
        return torch.pow(1 - self.averaging_constant, batches.double())


OBSERVER = MovingAverageObserver
