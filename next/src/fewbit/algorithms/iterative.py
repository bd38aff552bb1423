# SPDX-License-Identifier: Apache-2.0
"""Iterative pruning: zeros come in steps, and after each one the weights that are left compensate for them.

A step removes the weights with the smallest w² / [H⁻¹]ⱼⱼ (optimal brain surgeon), then conjugate gradients move the
rest towards the least output error, which also tells which weights are next. No column waits for another as in
SparseGPT: a step is a few matrix products.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.algorithms._base import PruningProblem
from fewbit.algorithms._pruning import best_of, growing_patterns, reconstruction, refine
from fewbit.errors import UsageError, require
from fewbit.numerics.ops import Array

_BETWEEN = 3
"""Conjugate gradient steps before more zeros come."""


class Iterative:
    """Removes weights in steps; those left compensate. In torch."""

    name = "iterative"
    stage = "pruning"
    statistics = frozenset({"hessian"})
    requires = "torch"
    settings: Mapping[str, Any] = {
        "steps": 8, "refine_steps": 12, "damping": 0.01, "shrinkage": 0.5, "pull": 1.0, "within_rows": True,
    }  # fmt: skip

    def prune(
        self,
        problem: PruningProblem,
        *,
        steps: int = 8,
        refine_steps: int = 12,
        damping: float = 0.01,
        shrinkage: float = 0.5,
        pull: float = 1.0,
        within_rows: bool = True,
    ) -> Array:
        """The pruned weight; never worse than magnitude pruning on the measured inputs.

        Args:
            problem: with the Hessian of the inputs.
            steps: in which zeros come; N:M removes one of M per step.
            refine_steps: of conjugate gradients at the end.
            damping: see `reconstruction`.
            shrinkage: see `reconstruction`.
            pull: see `reconstruction`.
            within_rows: compare only weights of the same output.

        >>> import torch
        >>> from fewbit.algorithms._base import InputMoments
        >>> from fewbit.numerics.sparsity import SparsityPattern
        >>> equal = InputMoments(10, hessian=torch.ones(2, 2))  # both inputs are always the same
        >>> problem = PruningProblem("fc", torch.tensor([[3.0, 1.0]]), SparsityPattern(0.5), equal)
        >>> [round(value, 1) for value in ALGORITHM.prune(problem, shrinkage=0.0)[0].tolist()]
        [4.0, 0.0]
        """
        require("torch", extra="torch", purpose="iterative pruning")
        if steps < 1 or refine_steps < 0:
            raise UsageError(
                f"steps = {steps!r}, refine_steps = {refine_steps!r}", code="pruning-setting", where="steps",
                expected="at least one step", hint="steps=8, refine_steps=12",
            )  # fmt: skip
        case = reconstruction(problem, damping, shrinkage, pull)
        scale, values = case.cost.sqrt(), case.target
        mask = case.weight != 0
        for pattern in growing_patterns(problem.pattern, steps):
            mask = case.mask(values.abs() * scale, pattern, within_rows=within_rows)
            values = refine(values * mask, case.target, mask, case.hessian, _BETWEEN)
        values = refine(values, case.target, mask, case.hessian, refine_steps)
        plain = case.weight * case.mask(case.weight.abs(), problem.pattern, within_rows=False)
        return best_of(case, values, case.weight * mask, plain)


ALGORITHM = Iterative()
