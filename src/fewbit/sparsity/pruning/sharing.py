# SPDX-License-Identifier: Apache-2.0
"""The zeros of a plan, shared out among its layers by what answers feel; judged against equal shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fewbit.engine.evidence import Evidence
from fewbit.engine.nearer import apart
from fewbit.engine.plan import WeightPlan
from fewbit.model.view import ModelView
from fewbit.numerics.sparsity import count
from fewbit.sparsity.pruning.budgets import split
from fewbit.sparsity.pruning.parts import Parts
from fewbit.sparsity.pruning.planning import Pruning
from fewbit.sparsity.pruning.sensing import Sensed, sensed


@dataclass(frozen=True)
class Shares:
    """How zeros are shared out.

    Args:
        zeros: of each weight, by name; none where equal shares are better.
        facts: what both ways lose, for the record.
        why_not: why equal shares are better, where they are.
    """

    zeros: dict[str, int] | None
    facts: dict[str, Any]
    why_not: str = "answers to items kept aside would not be nearer otherwise"


def shared_out(view: ModelView, found: Pruning, share: float, evidence: Evidence) -> Shares:
    """As many zeros in all, more of them where they do less harm.

    Both ways are tried, each layer pruned for what it reads in the float model. Equal shares stay where the answers to
    items kept aside, which nothing was found out from, are not nearer otherwise.

    Args:
        view: of the float model, which is not changed.
        found: with equal shares.
        share: of all elements that is zero.
        evidence: the data.

    Raises:
        DataError: the model fails on an item, or gives what is not finite.
    """
    weights, parts = found.plan.weights, Parts(view, evidence)
    if not parts.judges:
        return Shares(None, {"items": 0}, "there is one item, and none to judge by what it says")
    seen = sensed(view, weights, share, parts, evidence.progress)
    elements = [w.point.elements for w in weights]
    equal = [max(count(share, each), curve.zeros[0]) for each, curve in zip(elements, seen.curves)]
    other = split(seen.curves, count(share, sum(elements)))
    # One after the other: each is a whole model.
    plain, ours = (apart(view, [_pruned(view, weights, numbers, seen)], parts.judges)[0] for numbers in (equal, other))
    facts = {"how": seen.how, "items": len(parts.judges), "error": ours, "error_uniform": plain}
    zeros = {w.point.name: number for w, number in zip(weights, other)}
    return Shares(zeros if ours < plain else None, facts)


def _pruned(view: ModelView, weights: Sequence[WeightPlan], zeros: Sequence[int], seen: Sensed) -> ModelView:
    """A copy of a model with so many zeros in each weight."""
    made = view.copy()
    for w, number in zip(weights, zeros):
        made.write(w.point, seen.trial(w, number))
    return made
