# SPDX-License-Identifier: Apache-2.0
"""How many values there were, their sum and the sum of their squares; no range.

The mean of squares of a layer's inputs says how much an error in each weight costs; algorithms ask for it by this name.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.observers._base import Observer, State
from fewbit.observers._pieces import pieces


@dataclass(kw_only=True, eq=False)
class MomentsObserver(Observer):
    """Sums in float64: the square of a float32 is exact in it, so the order of the batches shows in the last bits only.

    >>> observer = MomentsObserver()
    >>> observer.observe(torch.tensor([[3.0, 4.0]]))
    >>> observer.mean_square
    tensor([12.5000])
    """

    name = "moments"
    keeps = ("sum", "square", "count")

    def measure(self, rows: Tensor) -> dict[str, Tensor]:
        total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
        square = torch.zeros_like(total)
        for place, piece in pieces(rows):
            wide = piece.double()
            total[place] += wide.sum(1)
            square[place] += wide.square_().sum(1)
        count = torch.full((), rows.shape[1], dtype=torch.int64, device=rows.device)
        return {"sum": total, "square": square, "count": count}

    def combine(self, first: State, second: State) -> dict[str, Tensor]:
        return {name: first[name] + second[name] for name in self.keeps}

    @property
    def mean_square(self) -> Tensor:
        """E[x²] of each row: float32 `[R]`."""
        return (self.seen["square"] / self.seen["count"]).float()


OBSERVER = MomentsObserver
