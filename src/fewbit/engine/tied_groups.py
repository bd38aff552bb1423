# SPDX-License-Identifier: Apache-2.0
"""Weights that get the same format: runtimes make one layer of those that read the same tensor, and of all experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fewbit.engine.evidence import Evidence
from fewbit.engine.plan import WeightPlan
from fewbit.engine.store import Store
from fewbit.model.ops import EXPERTS
from fewbit.model.sensing import merged

Group = list[int]
"""Numbers of weights."""


def tied_groups(view: Any, weights: Sequence[WeightPlan], evidence: Evidence) -> tuple[list[Group], list[str]]:
    """The groups in model order, each weight in one of them, and what is worth a line in the record.

    They are found by running one item: of the data, or an example of the model's own. A store knows its stages.
    """
    item = evidence.first(view)
    known: list[tuple[str, ...]] = []
    if "gradients" in view.can:
        known = view.tied(item)
    elif "structure" in view.can and (item is not None or "place" in view.can):  # a graph shows it without an item
        known = list(view.structure(item).shared)
    if item is None and evidence.statistics is not None:
        known = merged([*known, *Store.open(evidence.statistics)])
    first = {layer: layers[0] for layers in known for layer in layers}
    found: dict[str, Group] = {}
    for i, w in enumerate(weights):
        found.setdefault(first.get(w.point.layer, w.point.layer), []).append(i)
    if known or item is not None or len(found) < 2:
        return list(found.values()), []
    reason = "there is no sample to see which layers read the same tensor: each layer has a format of its own"
    return list(found.values()), [reason]


def experts_together(groups: Sequence[Group], weights: Sequence[WeightPlan]) -> list[Group]:
    """The groups with all that hold stacked experts, of whichever block, as one."""
    experts = [group for group in groups if any(weights[i].point.op is EXPERTS for i in group)]
    others = [group for group in groups if group not in experts]
    return [*others, [i for group in experts for i in group]] if experts else others
