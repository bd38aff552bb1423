# SPDX-License-Identifier: Apache-2.0
"""Which of two models is nearer to the float model, rounded: items kept aside decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fewbit.data.findings import Progress
from fewbit.engine.collect import HELD_OUT_EVERY, Statistics, is_held_out
from fewbit.engine.nearness import nearness
from fewbit.engine.plan import Plan
from fewbit.engine.solve import solve
from fewbit.model.view import Item, ModelView
from fewbit.record import Record

_JUDGES = 8  # items, of those kept aside, that are run to judge by


def is_judge(item: int) -> bool:
    """Whether an item is one of the few that are kept to judge by."""
    return is_held_out(item) and item < _JUDGES * HELD_OUT_EVERY


def judged(
    view: ModelView, trial: ModelView, plan: Plan, statistics: tuple[Statistics, Statistics], judges: Sequence[Item]
) -> tuple[dict[str, Any], str | None]:
    """What rounding costs a model as it is, and as it was prepared.

    Args:
        view: of the float model.
        trial: of the same, prepared.
        plan: how they are rounded.
        statistics: of either.
        judges: items that no weight was settled by.

    Returns:
        What both lose, and the reason, if there is one, to leave the model as it is.
    """
    (plain, kept), (prepared, more) = (_rounded(each, plan, seen) for each, seen in zip((view, trial), statistics))
    without, found = apart(view, (plain, prepared), judges)
    reason = None
    if not more <= kept:  # what stays in float is near, but that is not what was asked for
        reason = f"weights such as {min(more - kept)} would lose so much that they stayed in float"
    elif not found < without:
        reason = "the answers would not be nearer to the float model's on the items kept aside"
    return {"items": len(judges), "error": found, "error_unprepared": without}, reason


def apart(wanted: ModelView, found: Sequence[ModelView], items: Sequence[Item]) -> list[float]:
    """How far the answers of models are from those that are wanted; one item after the other, since they are large."""
    sums = [0.0] * len(found)
    for item in items:
        answers = list(wanted.answers([item]))
        for index, each in enumerate(found):
            sums[index] += nearness(answers, list(each.answers([item])))["error"] / len(items)
    return sums


def _rounded(view: ModelView, plan: Plan, statistics: Statistics) -> tuple[ModelView, set[str]]:
    """A copy of a model, rounded; and the weights that stay in float, since nothing would be left of them."""
    made, record = view.copy(), Record("trial")
    solve(made, plan, statistics, record, Progress())
    floats = {str(line["where"]) for line in record.lines if line["what"] == "float"}
    if "place" not in view.can:
        return made, floats
    plain = view.copy()  # codes are written into a graph when all is known; what they stand for can be at once
    for w in plan.weights:
        plain.write(w.point, made.read(w.point))
    return plain, floats
