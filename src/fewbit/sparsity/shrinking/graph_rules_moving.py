# SPDX-License-Identifier: Apache-2.0
"""Where channels lie after a node that moves numbers about: axes that are exchanged, cut, put together, left out."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.shapes import integers
from fewbit.sparsity.shrinking.classes import Labels
from fewbit.sparsity.shrinking.graph_fixing import fix_sides, put_numbers
from fewbit.sparsity.shrinking.graph_walk import Kept, Rule, Walk


def _transpose(walk: Walk, node: ir.Node) -> None:
    axes = walk.axes(node)
    order = integers(node, "perm") or list(range(len(axes)))[::-1]
    walk.give(node, [axes[place] for place in order])


def _concat(walk: Walk, node: ir.Node) -> None:
    out = walk.shape(node.outputs[0])
    joined = node.attributes.get_int("axis", 0) % len(out)
    found = []
    for axis in range(len(out)):
        parts = [walk.axis(node, index, axis) for index in range(len(node.inputs))]
        if axis != joined:
            for part in parts[1:]:
                walk.join(node, parts[0], part)
        found.append(np.concatenate(parts) if axis == joined else parts[0])
    walk.give(node, found)


def _split(walk: Walk, node: ir.Node) -> None:
    axes = walk.axes(node)
    cut = node.attributes.get_int("axis", 0) % len(axes)
    sizes = [walk.shape(out)[cut] for out in node.outputs]
    parts = np.split(axes[cut], list(accumulate(sizes))[:-1])
    walk.give(node, *([*axes[:cut], part, *axes[cut + 1 :]] for part in parts))

    def fix(kept: Kept) -> None:
        if kept(axes[cut]) == len(axes[cut]):
            return
        numbers = [kept(part) for part in parts]
        if walk.opset < 13:
            node.attributes["split"] = ir.AttrInt64s("split", numbers)
        else:
            node.attributes.pop("num_outputs", None)
            put_numbers(node, 1, numbers)

    walk.fixes.append(fix)


def _slice(walk: Walk, node: ir.Node) -> None:
    """A run of neighbours along some axes; what is cut in another way stays."""
    axes = walk.axes(node)
    starts, ends = integers(node, "starts", 1), integers(node, "ends", 2)
    along = integers(node, "axes", 3) if walk.has(node, 3) or "axes" in node.attributes else None
    steps = integers(node, "steps", 4) if walk.has(node, 4) else [1] * len(along or starts or axes)
    if along is None and (walk.has(node, 3) or starts is None):
        for labels in axes:
            walk.stay(node, labels, "it cuts along axes that are computed")
        return
    along = [axis % len(axes) for axis in along or range(len(starts or []))]
    known = starts is not None and ends is not None and steps is not None
    spans: dict[int, tuple[Labels, Labels]] = {}
    out = list(axes)
    for place, axis in enumerate(along):
        length = len(axes[axis])
        if known and starts and ends and steps and steps[place] == 1:
            start, end, _ = slice(starts[place], ends[place]).indices(length)
            out[axis] = axes[axis][start:end]
            spans[place] = axes[axis][:start], out[axis]
        else:
            walk.stay(node, axes[axis], "it takes some of them, in steps or by computed numbers")
            out[axis] = np.zeros(walk.shape(node.outputs[0])[axis], np.int64)
    walk.give(node, out)

    def fix(kept: Kept) -> None:
        lows, highs = list(starts or []), list(ends or [])
        for place, (before, part) in spans.items():
            if kept(axes[along[place]]) != len(axes[along[place]]):
                lows[place], highs[place] = kept(before), kept(before) + kept(part)
        if lows == starts and highs == ends:
            return
        if "starts" in node.attributes:
            node.attributes["starts"] = ir.AttrInt64s("starts", lows)
            node.attributes["ends"] = ir.AttrInt64s("ends", highs)
        else:
            put_numbers(node, 1, lows)
            put_numbers(node, 2, highs)

    if spans:
        walk.fixes.append(fix)


def _expand(walk: Walk, node: ir.Node) -> None:
    """Repeats are all the same, so that any of them may go; what is not repeated passes."""
    before, out = walk.axes(node), walk.shape(node.outputs[0])
    before = [np.zeros(1, np.int64)] * (len(out) - len(before)) + before
    found = [labels if len(labels) == side else walk.classes.new(side) for labels, side in zip(before, out)]
    for labels, after in zip(before, found):
        if labels is not after:
            walk.stay(node, labels, "it repeats them")
    walk.give(node, found)
    fix_sides(walk, node, 1, found)


def _gather(walk: Walk, node: ir.Node) -> None:
    """Rows of a table; what is picked from stays, the other axes pass."""
    axes, axis = walk.axes(node), node.attributes.get_int("axis", 0)
    axis %= len(axes)
    picked = [np.zeros(side, np.int64) for side in walk.shape(node.inputs[1])]
    walk.stay(node, axes[axis], "it picks some of them")
    if walk.is_constant(node, 0) and len(axes) == 2 and axis == 0:
        walk.make(node, axes[1])
    walk.give(node, [*axes[:axis], *picked, *axes[axis + 1 :]])


MOVING: dict[str, Rule] = {
    "Transpose": _transpose, "Concat": _concat, "Split": _split, "Slice": _slice, "Expand": _expand, "Gather": _gather,
}  # fmt: skip
"""Rules of operators that move numbers about, by name."""
