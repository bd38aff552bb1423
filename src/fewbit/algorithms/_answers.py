# SPDX-License-Identifier: Apache-2.0
"""How far the answers of a layer are off, from the second moment of what it reads and what it shall answer."""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.algorithms._base import Problem

_LITTLE = 1e-6  # of the mean of H's diagonal: what holds back a feature that nothing is known of


class Answers:
    """What one part of the items says of a layer.

    Args:
        problem: with the `gram` of the input, and `wanted` if it is said what the layer shall answer.
        aside: by the items kept aside, if there are any.
    """

    name = "output_error"

    def __init__(self, problem: Problem, *, aside: bool = False):
        self.is_aside = aside and "gram" in problem.held_out_statistics
        given = problem.held_out_statistics if self.is_aside else problem.statistics
        device, count = problem.weight.device, given["gram"]["count"].to(problem.weight.device)
        self._weight = problem.weight.detach().float().flatten(1)
        self.gram = given["gram"]["gram"].to(device).float() / count
        wanted = given.get("wanted")
        self.wanted = None if wanted is None else wanted["wanted"].to(device).float() / count

    def damped_factor(self, pull: float) -> tuple[Tensor, float]:
        """L Lᵀ = H + λI, float32, and λ; it is `pull` of the mean of H's diagonal."""
        share = pull * float(self.gram.diagonal().mean(dtype=torch.float64)) or 1.0  # of inputs that are all zero
        damped = self.gram.double()
        damped.diagonal().add_(share)
        return torch.linalg.cholesky(damped).float(), share

    def factor_by_feature(self, pull: float) -> tuple[Tensor, Tensor]:
        """L Lᵀ = H + diag(λ), float32, and λ `[in]`: each feature is held back by `pull` of what it gives itself."""
        own = self.gram.diagonal().double()
        share = pull * own + (_LITTLE * own.mean() or 1.0)  # of a feature that is always zero too
        return torch.linalg.cholesky(self.gram.double() + torch.diag(share)).float(), share.float()

    def best(self, rows: slice, factor: Tensor, share: float | Tensor) -> Tensor:
        """The rows of a weight that answer best, held back towards those they were."""
        assert self.wanted is not None
        aim = self.wanted[rows] + share * self._weight[rows]
        return torch.cholesky_solve(aim.T, factor).T

    def loss(self, values: Tensor, rows: slice) -> Tensor:
        """What the answers of some rows are off; float64 `[rows]`.

        Where it is said what they shall be, but for a term that is the same for all values.
        """
        if self.wanted is None:
            return self._energy(values - self._weight[rows])
        return self._energy(values) - 2 * (values * self.wanted[rows]).sum(1).double()

    def facts(self, name: str, plain: Tensor, chosen: Tensor, *, twin: str = "rtn") -> dict[str, float]:
        """What the answers are off over what they are; where they have errors of other layers to make up for, by how
        much less than with what is plain: rounding, or what `twin` names."""
        energy = self._energy(self._weight).sum().clamp(min=torch.finfo(torch.float64).tiny)
        if self.wanted is not None:
            return {f"{name}_saved": float((plain - chosen).sum() / energy)}
        return {name: float(chosen.sum() / energy), f"{name}_{twin}": float(plain.sum() / energy)}

    def _energy(self, values: Tensor) -> Tensor:
        return ((values @ self.gram) * values).sum(1).double()
