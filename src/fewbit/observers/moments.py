# SPDX-License-Identifier: Apache-2.0
"""How many values there were, their sum and the sum of their squares; no range.

The mean of squares of a layer's inputs says how much an error in each weight costs; algorithms ask for it by this name.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fewbit.model.watch import COUNT, SQUARE, SUM, reductions
from fewbit.observers._base import Observer, State


@dataclass(kw_only=True, eq=False)
class MomentsObserver(Observer):
    """Sums in float64: the square of a float32 is exact in it, so the order of the batches shows in the last bits only.

    >>> import torch
    >>> observer = MomentsObserver()
    >>> observer.observe(torch.tensor([[3.0, 4.0]]))
    >>> observer.mean_square
    tensor([12.5000])
    """

    name = "moments"
    keeps = (SUM, SQUARE, COUNT)
    needs = frozenset(keeps)

    def measure(self, rows: Tensor) -> dict[str, Tensor]:
        return reductions(rows, self.needs, features=0)

    def gather(self, found: State) -> dict[str, Tensor]:
        sums = {name: found[name].sum(1) for name in (SUM, SQUARE)}
        return {**sums, COUNT: found[COUNT] * found[SUM].shape[1]}

    def combine(self, first: State, second: State) -> dict[str, Tensor]:
        return {name: first[name] + second[name] for name in self.keeps}

    @property
    def mean_square(self) -> Tensor:
        """E[x²] of each row: float32 `[R]`."""
        return (self.seen["square"] / self.seen["count"]).float()


OBSERVER = MomentsObserver
