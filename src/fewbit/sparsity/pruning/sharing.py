# SPDX-License-Identifier: Apache-2.0
"""The zeros of a plan, shared out among its layers by what answers feel; judged against equal shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fewbit.engine.collect import HELD_OUT_EVERY, is_held_out
from fewbit.engine.evidence import Evidence
from fewbit.engine.nearer import apart
from fewbit.engine.plan import WeightPlan
from fewbit.model.view import Item, ModelView
from fewbit.numerics.sparsity import count
from fewbit.sparsity.pruning.budgets import split
from fewbit.sparsity.pruning.planning import Pruning
from fewbit.sparsity.pruning.sensing import Sensed, sensed

_JUDGES = 4  # items that answers are compared on


@dataclass(frozen=True)
class Shares:
    """How zeros are shared out.

    Args:
        zeros: of each weight, by name; none where equal shares are better.
        facts: what both ways lose, for the record.
    """

    zeros: dict[str, int] | None
    facts: dict[str, Any]


def shared_out(view: ModelView, found: Pruning, share: float, evidence: Evidence) -> Shares:
    """As many zeros in all, more of them where they do less harm.

    Both ways are tried, each layer pruned for what it reads in the float model. Equal shares stay where the answers to
    items kept aside are not nearer otherwise.

    Args:
        view: of the float model, which is not changed.
        found: with equal shares.
        share: of all elements that is zero.
        evidence: the data.

    Raises:
        DataError: the model fails on an item, or gives what is not finite.
    """
    weights, judges = found.plan.weights, _judges(view, evidence)
    seen = sensed(view, weights, share, evidence, judges)
    elements = [w.point.elements for w in weights]
    equal = [max(count(share, each), curve.zeros[0]) for each, curve in zip(elements, seen.curves)]
    other = split(seen.curves, count(share, sum(elements)))
    # One after the other: each is a whole model.
    plain, ours = (apart(view, [_pruned(view, weights, numbers, seen)], judges)[0] for numbers in (equal, other))
    facts = {"how": seen.how, "items": len(judges), "error": ours, "error_uniform": plain}
    zeros = {w.point.name: number for w, number in zip(weights, other)}
    return Shares(zeros if ours < plain else None, facts)


def _pruned(view: ModelView, weights: Sequence[WeightPlan], zeros: Sequence[int], seen: Sensed) -> ModelView:
    """A copy of a model with so many zeros in each weight."""
    made = view.copy()
    for w, number in zip(weights, zeros):
        made.write(w.point, seen.trial(w, number))
    return made


def _judges(view: ModelView, evidence: Evidence) -> Sequence[Item]:
    """Items kept aside; the last there is, if they are too few for that."""
    assert evidence.dataset is not None
    most = _JUDGES * HELD_OUT_EVERY
    some = evidence.dataset.subset(min(most, evidence.samples or most))
    items = list(islice(some.inputs(view.signature(), evidence.batch_size), most))
    return [item for index, item in enumerate(items) if is_held_out(index)] or items[-1:]
