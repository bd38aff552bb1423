# SPDX-License-Identifier: Apache-2.0
"""ALPS (Meng et al., arXiv 2406.07831): which weights to remove is decided for all of them at once, by ADMM.

Two matrices must agree: W has the least output error, Z the zeros of the pattern. In turn W is solved for with a
penalty ρ on its distance to Z, and Z is the projection of W on the pattern; V collects their differences, and ρ grows
until the zeros stay. Then conjugate gradients find the best values for them. Columns are in units of √Hⱼⱼ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fewbit.algorithms._base import PruningProblem
from fewbit.algorithms._pruning import Reconstruction, best_of, reconstruction, refine
from fewbit.errors import UsageError, require
from fewbit.numerics.ops import Array

if TYPE_CHECKING:
    from torch import Tensor

_FIRST_PENALTY = 0.03
"""ρ; the diagonal of H is 1."""
_UPDATE_EVERY = 3
_GROWTH = ((0.1, 1.3), (0.005, 1.2), (0.0, 1.1))
"""What ρ is multiplied by if at least such a share of the remaining weights changed."""


class Alps:
    """Removes weights by ADMM; more accurate and slower the fewer weights are left. In torch."""

    name = "alps"
    stage = "pruning"
    statistics = frozenset({"hessian"})
    requires = "torch"
    settings: Mapping[str, Any] = {
        "iterations": 64, "refine_steps": 32, "damping": 0.01, "shrinkage": 0.0, "pull": 1.0,
    }  # fmt: skip

    def prune(
        self,
        problem: PruningProblem,
        *,
        iterations: int = 64,
        refine_steps: int = 32,
        damping: float = 0.01,
        shrinkage: float = 0.0,
        pull: float = 1.0,
    ) -> Array:
        """The pruned weight; never worse than magnitude pruning on the measured inputs.

        Args:
            problem: with the Hessian of the inputs.
            iterations: of ADMM at most.
            refine_steps: of conjugate gradients at the end.
            damping: see `reconstruction`.
            shrinkage: see `reconstruction`.
            pull: see `reconstruction`.

        >>> import torch
        >>> from fewbit.algorithms._base import InputMoments
        >>> from fewbit.numerics.sparsity import SparsityPattern
        >>> equal = InputMoments(10, hessian=torch.ones(2, 2))  # both inputs are always the same
        >>> problem = PruningProblem("fc", torch.tensor([[3.0, 1.0]]), SparsityPattern(0.5), equal)
        >>> [round(value, 1) for value in ALGORITHM.prune(problem)[0].tolist()]
        [4.0, 0.0]
        """
        require("torch", extra="torch", purpose="ALPS")
        if iterations < 0 or refine_steps < 0:
            raise UsageError(
                f"iterations = {iterations!r}, refine_steps = {refine_steps!r}", code="pruning-setting",
                where="iterations", expected="numbers from 0 up", hint="iterations=64, refine_steps=32",
            )  # fmt: skip
        case = reconstruction(problem, damping, shrinkage, pull)
        key = f"alps {damping} {shrinkage}"
        if key not in problem.shared:
            problem.shared[key] = _eigen(case.hessian)
        mask, values = _admm(case, problem, problem.shared[key], iterations)
        refined = refine(values, case.target, mask, case.hessian, refine_steps)
        plain = case.weight * case.mask(case.weight.abs(), problem.pattern, within_rows=False)
        return best_of(case, refined, values, plain)


def _eigen(hessian: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvectors and eigenvalues of H with a diagonal of 1, and the units of its columns."""
    import torch

    units = hessian.diagonal().sqrt()
    values, vectors = torch.linalg.eigh((hessian / units / units[:, None]).double())
    return vectors.float(), values.clamp(min=0).float(), units


def _admm(
    case: Reconstruction, problem: PruningProblem, eigen: tuple[Tensor, Tensor, Tensor], iterations: int
) -> tuple[Tensor, Tensor]:
    """The mask, and the values of Z."""
    import torch

    vectors, eigenvalues, units = eigen
    target = case.target * units
    linear = (target @ vectors) * eigenvalues  # W H in the basis of the eigenvectors
    mask = case.mask(target.abs(), problem.pattern, within_rows=False)
    sparse, dual, penalty = target * mask, torch.zeros_like(target), _FIRST_PENALTY
    for step in range(1, iterations + 1):
        dense = ((linear + (penalty * sparse - dual) @ vectors) / (eigenvalues + penalty)) @ vectors.T
        shifted = dense + dual / penalty
        previous, mask = mask, case.mask(shifted.abs(), problem.pattern, within_rows=False)
        sparse = shifted * mask
        dual += penalty * (dense - sparse)
        if step % _UPDATE_EVERY == 0:
            changed = int((mask != previous).sum()) / max(int(mask.sum()), 1)
            if not changed:
                break
            penalty *= next(growth for share, growth in _GROWTH if changed >= share)
    return mask, sparse / units


ALGORITHM = Alps()
