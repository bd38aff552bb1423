# SPDX-License-Identifier: Apache-2.0
"""How far a weight is off where only E[x²] of its inputs is known, or nothing: the sum of h (w - ŵ)²."""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.algorithms._base import Problem


class Diagonal:
    """What one part of the items says of a matrix; the same questions as to `Answers`.

    Args:
        problem: the weight `[out, in]`, and how much its elements matter.
        aside: by the items kept aside, if there are any.
    """

    name = "error"

    def __init__(self, problem: Problem, *, aside: bool = False):
        self.is_aside = aside and problem.held_out is not None
        self._weight = problem.weight.detach().float()
        self._importance = problem.held_out if self.is_aside else problem.importance

    def loss(self, values: Tensor, rows: slice) -> Tensor:
        """What some rows are off; float64 `[rows]`."""
        return self._sum(values - self._weight[rows], rows)

    def facts(self, name: str, plain: Tensor, chosen: Tensor, *, twin: str) -> dict[str, float]:
        """What the weight is off over what it is."""
        energy = self._sum(self._weight, slice(None)).sum().clamp(min=torch.finfo(torch.float64).tiny)
        return {name: float(chosen.sum() / energy), f"{name}_{twin}": float(plain.sum() / energy)}

    def _sum(self, off: Tensor, rows: slice) -> Tensor:
        square, h = off.square(), self._importance
        if h is not None:
            square = square * (h[rows] if h.ndim == 2 and len(h) > 1 else h)
        return square.sum(1, dtype=torch.float64)
