# SPDX-License-Identifier: Apache-2.0
"""Where channels lie after a Reshape, a Flatten, a Squeeze, an Unsqueeze: the same numbers, counted in other axes.

Axes before and after fall into blocks that hold the same numbers. In a block one axis on each side counts the channels;
a place along it goes only as a whole. `[channels, 7, 7]` as `[channels * 49]`: 49 places a channel. `[heads * size]` as
`[heads, size]`: a head goes as a whole if `heads` counts, or the same places of all heads if `size` does.
Where the places along an axis hold whole channels anyway, that axis counts, and nothing has to be joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import onnx_ir as ir

from fewbit.sparsity.shrinking.classes import Labels
from fewbit.sparsity.shrinking.graph_fixing import fix_sides
from fewbit.sparsity.shrinking.graph_walk import Rule, Walk

_WHAT = "it counts them together with another axis"


def _reshape(walk: Walk, node: ir.Node) -> None:
    before, sides = walk.axes(node), walk.shape(node.outputs[0])
    out = [np.zeros(side, np.int64) for side in sides]
    for labels in before:
        if len(labels) == 1:
            walk.stay(node, labels, _WHAT)
    for left, right in blocks([len(labels) for labels in before], sides):
        made = _block(walk, node, [before[axis] for axis in left], [sides[axis] for axis in right])
        for axis, labels in zip(right, made):
            out[axis] = labels
    walk.give(node, out)
    if node.op_type == "Reshape":
        fix_sides(walk, node, 1, out)


def blocks(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Axes before and after that hold the same numbers, as few as can be at a time; axes of length 1 are in none.

    >>> blocks([2, 12, 1, 5], [2, 3, 4, 5])
    [([0], [0]), ([1], [1, 2]), ([3], [3])]
    """
    waiting = [[axis for axis, side in enumerate(sides) if side != 1] for sides in (old, new)]
    found = []
    while waiting[0] and waiting[1]:
        left, right = [waiting[0].pop(0)], [waiting[1].pop(0)]
        while (a := prod(old[axis] for axis in left)) != (b := prod(new[axis] for axis in right)):
            (left if a < b else right).append(waiting[0 if a < b else 1].pop(0))
        found.append((left, right))
    return found


def _block(walk: Walk, node: ir.Node, before: list[Labels], sides: list[int]) -> list[Labels]:
    """The labels along the axes after, from those before."""
    if len(before) == len(sides) == 1:
        return before
    lengths = [len(labels) for labels in before]
    after = [np.zeros(side, np.int64) for side in sides]
    counting = [axis for axis, labels in enumerate(before) if np.any(labels)]
    if not counting:
        return after
    carrier = walk.carrier(tuple(lengths), counting)
    for axis in counting:
        if axis != carrier:
            walk.stay(node, before[axis], _WHAT)
    flat = np.broadcast_to(_along(before[carrier], carrier, lengths), lengths).reshape(sides)
    ways = [np.moveaxis(flat, axis, 0).reshape(side, -1) for axis, side in enumerate(sides)]
    apart = [axis for axis, rows in enumerate(ways) if np.all(rows == rows[:, :1])]
    chosen = apart[0] if apart else walk.carrier(tuple(sides), list(range(len(sides))))
    rows = ways[chosen]
    for column in np.unique(rows, axis=1).T:
        walk.join(node, rows[:, 0], column)
    after[chosen] = np.ascontiguousarray(rows[:, 0])
    return after


def _along(labels: Labels, axis: int, sides: Sequence[int]) -> Labels:
    return labels.reshape([len(labels) if place == axis else 1 for place in range(len(sides))])


RESHAPING: dict[str, Rule] = dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshape)
"""Rules of operators that count the same numbers in other axes, by name."""
