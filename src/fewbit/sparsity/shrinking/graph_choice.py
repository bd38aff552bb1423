# SPDX-License-Identifier: Apache-2.0
"""Which channels go: of each group the share that was asked for, those first whose readers lose least.

What a reader loses by a channel is the square of its weights times the variance of the channel, for the mean moves into
its bias; as a part of all that the reader sums up, so that a coupled group weighs its readers alike. Without data the
variance is taken to be the square of the weights that make the channel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.layers import Layer, layer_of
from fewbit.backends.graph.sources import by_input, by_output
from fewbit.model.ops import EMBEDDING
from fewbit.sparsity.shrinking.classes import Labels
from fewbit.sparsity.shrinking.graph_groups import Group
from fewbit.sparsity.shrinking.graph_naming import Wish, is_named
from fewbit.sparsity.shrinking.graph_statistics import Seen
from fewbit.sparsity.shrinking.graph_walk import Walk

Array = NDArray[np.float64]


def scores(walk: Walk, seen: Mapping[str, Seen]) -> dict[int, float]:
    """What the readers of each class lose without it.

    Args:
        walk: through the graph.
        seen: what layers read over the data; of none without data.
    """
    made: dict[int, float] = {}
    for node, labels in walk.made:
        _add(made, walk.classes.roots(labels), _squares(node, by_output, len(labels)))
    found: dict[int, float] = {}
    for read in walk.reads:
        name, roots = read.node.name or "", walk.classes.roots(read.labels)
        energy = seen[name].variance() if name in seen else np.array([made.get(int(root), 1.0) for root in roots])
        lost = _squares(read.node, by_input, len(roots)) * energy
        _add(found, roots, lost / max(float(lost.sum()), float(np.finfo(np.float64).tiny)))
    return found


def candidates(groups: list[Group], settings: Wish) -> set[int]:
    """The classes of which some go."""
    return {root for group in groups if how_many(group, settings) for root in group.classes if root not in group.stay}


def chosen(walk: Walk, groups: list[Group], lost: Mapping[int, float], settings: Wish) -> set[int]:
    """The classes that go; of equals the last.

    Args:
        walk: through the graph.
        groups: of the graph.
        lost: of `scores`.
        settings: what is wanted.
    """
    gone: set[int] = set()
    for group in groups:
        free = [root for root in group.classes if root not in group.stay]
        order = sorted(free, key=lambda root: (lost.get(root, 0.0), -root))
        gone |= set(order[: how_many(group, settings)])
    return _leave_one(walk, gone, lost)


def how_many(group: Group, settings: Wish) -> int:
    """How many classes of a group go."""
    share = settings.heads if group.kind == "heads" else settings.channels
    if not share or not is_named(group, settings):
        return 0
    free = len(group.classes) - len(group.stay)
    left = len(group.classes) - int(share * free + 1e-9)
    if group.kind == "channels":
        left = ceil(left / settings.multiple) * settings.multiple
    return max(0, len(group.classes) - max(left, 1))


def _leave_one(walk: Walk, gone: set[int], lost: Mapping[int, float]) -> set[int]:
    """Leave every axis of every value one place: a part of a group may be all that something reads."""
    for labels in (labels for held in walk.labels.values() for labels in held if labels is not None and len(labels)):
        roots = walk.classes.roots(labels)
        if roots.min() > 0 and gone.issuperset(found := np.unique(roots).tolist()):
            gone = gone - {max(found, key=lambda root: (lost.get(root, 0.0), -root))}
    return gone


def _squares(node: ir.Node, places: Callable[[Layer], Labels], count: int) -> Array:
    """The sum of squares of a layer's weights by channel; one each for a node without weights."""
    layer = layer_of(node)
    if layer is None or layer.op is EMBEDDING:
        return np.ones(count)
    weight = np.square(np.asarray(constant(layer.weight_value), np.float64))
    channels = np.broadcast_to(places(layer), weight.shape)
    return np.asarray(np.bincount(channels.ravel(), weight.ravel(), minlength=count), np.float64)


def _add(found: dict[int, float], roots: Labels, amounts: Array) -> None:
    for root, amount in zip(roots.tolist(), amounts.tolist()):
        found[root] = found.get(root, 0.0) + amount
