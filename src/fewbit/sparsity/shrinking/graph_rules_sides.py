# SPDX-License-Identifier: Apache-2.0
"""Operators that change or use up whole axes: pools, sums, paddings, norms. What they do not touch passes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.nodes import flag
from fewbit.backends.graph.shapes import integers
from fewbit.sparsity.shrinking.classes import Labels
from fewbit.sparsity.shrinking.graph_fixing import fix_sides
from fewbit.sparsity.shrinking.graph_walk import Rule, Walk


def _pad(walk: Walk, node: ir.Node) -> None:
    """Axes that are not lengthened pass."""
    axes, out = walk.axes(node), walk.shape(node.outputs[0])
    pads = integers(node, "pads", 1)
    if pads is None or walk.has(node, 3):
        ends = [len(labels) != side for labels, side in zip(axes, out)]
    else:
        ends = [bool(pads[place] or pads[place + len(axes)]) for place in range(len(axes))]
    _changed_sides(walk, node, axes, ends, "it pads them")


def _resize(walk: Walk, node: ir.Node) -> None:
    """Axes that keep their length pass."""
    axes, out = walk.axes(node), walk.shape(node.outputs[0])
    _changed_sides(walk, node, axes, [len(a) != side for a, side in zip(axes, out)], "it interpolates between them")
    if node.op_type == "Resize" and walk.has(node, 3):
        named = integers(node, "axes")
        fix_sides(walk, node, 3, [axes[axis] for axis in named] if named else axes)


def _changed_sides(walk: Walk, node: ir.Node, axes: list[Labels], changed: list[bool], what: str) -> None:
    out = walk.shape(node.outputs[0])
    for labels, gone in zip(axes, changed):
        if gone:
            walk.stay(node, labels, what)
    walk.give(node, [np.zeros(side, np.int64) if gone else a for a, side, gone in zip(axes, out, changed)])


def _pool(walk: Walk, node: ir.Node) -> None:
    """Over positions; batch and channels pass."""
    axes = walk.axes(node)
    for labels in axes[2:]:
        walk.stay(node, labels, "it pools over them")
    sides = [np.zeros(side, np.int64) for side in walk.shape(node.outputs[0])]
    walk.give(node, [*axes[:2], *sides[2:]])


def _reduce(walk: Walk, node: ir.Node) -> None:
    """What is summed up stays: a mean over fewer channels is another."""
    axes = walk.axes(node)
    given = integers(node, "axes", 1)
    if given is None and walk.has(node, 1):
        over = set(range(len(axes)))
    else:
        over = {axis % len(axes) for axis in given or range(len(axes))}
    if not given and flag(node, "noop_with_empty_axes"):
        over = set()
    for axis in over:
        walk.stay(node, axes[axis], "it sums over them")
    left = [np.zeros(1, np.int64) if axis in over else labels for axis, labels in enumerate(axes)]
    if not node.attributes.get_int("keepdims", 1):
        left = [labels for axis, labels in enumerate(axes) if axis not in over]
    walk.give(node, left)


def _along_axis(walk: Walk, node: ir.Node) -> None:
    """Softmax and the like: one axis depends on all of its places, the others pass."""
    axes = walk.axes(node)
    old = node.op_type in ("Softmax", "LogSoftmax") and walk.opset < 13
    axis = node.attributes.get_int("axis", 1 if old else -1) % len(axes)
    for labels in axes[axis:] if old or node.op_type.endswith("Normalization") else [axes[axis]]:
        walk.stay(node, labels, "each of them depends on all others")
    walk.give(node, axes)


def _shape(walk: Walk, node: ir.Node) -> None:
    """Numbers of places, which follow by themselves where they are used as they are."""
    for labels in walk.axes(node):
        if walk.strict:
            walk.stay(node, labels, "the graph computes with their number")


SIDES: dict[str, Rule] = {
    "Pad": _pad, "Shape": _shape, "Size": _shape,
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), _pool),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceProd",
                     "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"), _reduce),
    **dict.fromkeys(("Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization",
                     "SimplifiedLayerNormalization"), _along_axis),
}  # fmt: skip
"""Rules of operators that change or use up axes, by name."""
