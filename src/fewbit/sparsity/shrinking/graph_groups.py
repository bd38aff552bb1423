# SPDX-License-Identifier: Apache-2.0
"""Groups of channels: all that the same layers make, in classes that go together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.shaping import Form
from fewbit.sparsity.shrinking.classes import Reason
from fewbit.sparsity.shrinking.graph_rules import RULES
from fewbit.sparsity.shrinking.graph_walk import Walk

Carriers = dict[tuple[int, ...], int]


@dataclass
class Group:
    """Classes of channels that the same layers make.

    Args:
        layers: nodes that make them.
        classes: the first label of each, in order.
        kind: `channels` or `heads`.
        stay: those of the classes that must stay, with the reason.
    """

    layers: list[ir.Node]
    classes: list[int]
    kind: str
    stay: dict[int, Reason] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The names of the layers."""
        return ", ".join(node.name or "" for node in self.layers)


def groups_of(walk: Walk) -> list[Group]:
    """The groups of a graph, in the order of its layers."""
    owner: dict[int, Group] = {}
    groups: dict[int, Group] = {}
    heads = {int(root) for labels in walk.heads for root in walk.classes.roots(labels)}
    for node, labels in walk.made:
        roots = [int(root) for root in np.unique(walk.classes.roots(labels)) if root > 0]
        group = Group([node], roots, "channels")
        for other in {id(owner[root]): owner[root] for root in roots if root in owner}.values():
            group.layers = [*other.layers, *group.layers]
            group.classes = sorted({*group.classes, *other.classes})
            groups.pop(id(other))
        groups[id(group)] = group
        owner |= dict.fromkeys(group.classes, group)
    for group in groups.values():
        group.layers = list(dict.fromkeys(group.layers))
        group.stay = {root: why for root in group.classes if (why := walk.classes.reason(root)) is not None}
        group.kind = "heads" if heads.intersection(group.classes) - set(group.stay) else "channels"
    return [group for group in groups.values() if group.classes]


def best_walk(model: ir.Model, forms: Mapping[str, Form], *, strict: bool = False) -> Walk:
    """Walk through a graph, with those axes as counting channels that leave most heads free, then most channels.

    The lengths that a Reshape cuts an axis into are one choice for the whole graph: queries, keys and values of all
    layers are cut alike.
    """
    carriers: Carriers = {}
    best = Walk(model, forms, RULES, carriers, strict=strict)
    tried: set[tuple[int, ...]] = set()
    while waiting := [sides for sides in best.choices if sides not in tried]:
        sides = waiting[0]
        tried.add(sides)
        for axis in range(1, len(sides)):
            other = Walk(model, forms, RULES, carriers | {sides: axis}, strict=strict)
            if _free(other) > _free(best):
                best, carriers = other, carriers | {sides: axis}
    return best


def _free(walk: Walk) -> tuple[int, int]:
    """How many heads and channels may go."""
    groups = groups_of(walk)
    counts = [len(group.classes) - len(group.stay) for group in groups]
    heads = sum(count for count, group in zip(counts, groups) if group.kind == "heads")
    return heads, sum(count for count in counts if count > 1)
