# SPDX-License-Identifier: Apache-2.0
"""The second moment of a layer's input, damped so that every system with it has an answer; and what is found from it.

A feature that no sample lit, or two that are always alike, or fewer samples than features: the share of the mean that
is added to the diagonal decides there, and weights stay near to what they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf
from typing import Any

import torch
from torch import Tensor

from fewbit.algorithms._answers import Answers
from fewbit.algorithms._base import Problem
from fewbit.algorithms._columns import factors

_LEAST = 1e-6  # of the mean: what a dead feature counts before the damping


@dataclass(frozen=True)
class Moment:
    """What is the same for all weights that read the same input.

    Args:
        gram: H, damped; float32 `[in, in]`.
        order: of the columns, in which they are taken.
        feedback: F of `factors`.
        sizes: D of `factors`, in the same order.
        costs: 1 / [H⁻¹]ⱼⱼ: what it costs to lose column j, all others making up for it; columns as they are.
        damping: what was added to the diagonal, as a share of its mean.
        facts: what is worth a word about it.
    """

    gram: Tensor
    order: Tensor
    feedback: Tensor
    sizes: Tensor
    costs: Tensor
    damping: float
    facts: dict[str, Any]


def moment(problem: Problem, teach: Answers, order: Tensor, damping: float, apart: float = 0.0) -> Moment:
    """The damped second moment of what a matrix reads.

    Args:
        problem: whose `shared` keeps it.
        teach: with the second moment.
        order: of the columns.
        damping: what is added to the diagonal, as a share of its mean; raised where it is not enough.
        apart: by which share features are taken not to go together: everything beside the diagonal is less by it.
            Other texts than those that were seen have much the same features, in other company.
    """
    key = ("prune", damping, apart, int(order[:2][-1]))  # columns as they are, or by the elements of a kernel
    if key not in problem.shared:
        seen = torch.lerp(teach.gram, torch.diag(teach.gram.diagonal()), apart) if apart else teach.gram
        problem.shared[key] = _found(problem, seen, order, damping)
    found: Moment = problem.shared[key]
    return found


def _found(problem: Problem, raw: Tensor, order: Tensor, damping: float) -> Moment:
    gram = raw.clone()
    diagonal = gram.diagonal()
    mean = float(diagonal.mean(dtype=torch.float64))
    dead = diagonal <= 0
    diagonal[dead] = _LEAST * mean or 1.0
    feedback, sizes, used = factors(gram, order, damping)
    if isinf(used):  # no moment of anything: features as if they did not go together
        costs = torch.empty_like(sizes)
        costs[order] = sizes
        gram = torch.diag(costs)
    else:
        diagonal += used * diagonal.mean()
        costs = _costs(gram)
    facts: dict[str, Any] = {} if used == damping else {"damping": used}
    if count := int(dead.sum()):
        facts["dead_features"] = count
    if (seen := int(problem.statistics["gram"]["count"])) < len(gram):
        facts["few_positions"] = seen
    return Moment(gram, order, feedback, sizes, costs, used, facts)


def _costs(gram: Tensor) -> Tensor:
    lower, failed = torch.linalg.cholesky_ex(gram.double())
    if int(failed):
        return gram.diagonal().clone()
    return torch.cholesky_inverse(lower).diagonal().reciprocal().float()
