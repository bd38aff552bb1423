# SPDX-License-Identifier: Apache-2.0
"""What layers do with channels: they sum over those they read, and make new ones."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fewbit.sparsity.shrinking.classes import Labels
from fewbit.sparsity.shrinking.graph_walk import Kept, Rule, Walk


def _conv(walk: Walk, node: ir.Node) -> None:
    """Conv, `[out, in / groups, …]`; of groups the same places go from each, and of a depthwise one whole groups."""
    if not walk.is_constant(node, 1):
        return
    groups, weight = node.attributes.get_int("group", 1), walk.shape(node.inputs[1])
    reads = walk.axis(node, 0, 1)
    if groups > 1 and weight[1] == 1:
        made = np.repeat(reads, weight[0] // groups)
        walk.tie(node, 1, 0, made)
        _count_groups(walk, node, reads)
    else:
        walk.read(node, 0, 1, reads)
        walk.tie(node, 1, 1, _first_group(walk, node, reads, groups))
        made = walk.axis(node, 1, 0)
        _first_group(walk, node, made, groups)
    _finish_conv(walk, node, made)


def _conv_transpose(walk: Walk, node: ir.Node) -> None:
    """ConvTranspose, `[in, out / groups, …]`."""
    if not walk.is_constant(node, 1):
        return
    groups, weight = node.attributes.get_int("group", 1), walk.shape(node.inputs[1])
    reads = walk.axis(node, 0, 1)
    if groups > 1 and weight[0] == groups and weight[1] == 1:
        made = reads
        walk.tie(node, 1, 0, reads)
        _count_groups(walk, node, reads)
    else:
        walk.read(node, 0, 1, reads)
        _first_group(walk, node, reads, groups)
        walk.tie(node, 1, 0, reads)
        made = np.tile(walk.axis(node, 1, 1), groups)
    _finish_conv(walk, node, made)


def _first_group(walk: Walk, node: ir.Node, labels: Labels, groups: int) -> Labels:
    """Let the same places of all groups go together; the labels of the first group."""
    parts = labels.reshape(groups, -1)
    for part in parts[1:]:
        walk.join(node, parts[0], part)
    return parts[0] if groups > 1 else labels


def _count_groups(walk: Walk, node: ir.Node, labels: Labels) -> None:
    def fix(kept: Kept) -> None:
        node.attributes["group"] = ir.AttrInt64("group", kept(labels))

    walk.fixes.append(fix)


def _finish_conv(walk: Walk, node: ir.Node, made: Labels) -> None:
    if walk.has(node, 2):
        walk.tie(node, 2, 0, made)
    walk.make(node, made)
    sides = [np.zeros(side, np.int64) for side in walk.shape(node.outputs[0])]
    walk.give(node, [walk.axis(node, 0, 0), made, *sides[2:]])


def _gemm(walk: Walk, node: ir.Node) -> None:
    """Gemm: a product of two matrices and a sum that is spread over it."""
    turned = [node.attributes.get_int(name, 0) for name in ("transA", "transB")]
    rows, inner = walk.axis(node, 0, turned[0]), walk.axis(node, 0, 1 - turned[0])
    walk.tie(node, 1, turned[1], inner)
    made = walk.axis(node, 1, 1 - turned[1])
    walk.read(node, 0, 1 - turned[0], inner)
    if walk.is_constant(node, 1):
        walk.make(node, made)
    if walk.has(node, 2):
        for axis, labels in zip((-1, -2), (made, rows)):
            shape = walk.shape(node.inputs[2])
            if len(shape) >= -axis and shape[axis] == len(labels):
                walk.tie(node, 2, axis, labels)
    walk.give(node, [rows, made])


def _matmul(walk: Walk, node: ir.Node) -> None:
    """MatMul, of a layer and of attention: leading axes of two activations are heads."""
    ranks = [len(walk.shape(value)) for value in node.inputs]
    if min(ranks) < 2:
        return
    inner = walk.axis(node, 0, -1)
    walk.tie(node, 1, -2, inner)
    fixed = [walk.is_constant(node, index) for index in (0, 1)]
    walk.read(node, 1 if fixed[0] else 0, -2 if fixed[0] else -1, inner)
    rows, made = walk.axis(node, 0, -2), walk.axis(node, 1, -1)
    if any(fixed):
        walk.make(node, rows if fixed[0] else made)
    lead = spread(walk, node, 2)
    if not any(fixed):
        walk.heads.extend(lead)
    walk.give(node, [*lead, rows, made])


def spread(walk: Walk, node: ir.Node, last: int = 0) -> list[Labels]:
    """The labels of a node's output where its inputs are spread over each other, but for so many last axes."""
    out = walk.shape(node.outputs[0])
    found: list[Labels] = []
    for back in range(len(out), last, -1):
        fits = [(i, walk.shape(v)) for i, v in enumerate(node.inputs) if v is not None and len(walk.shape(v)) >= back]
        same = [index for index, shape in fits if shape[-back] == out[-back]]
        first = next((index for index in same if not walk.is_constant(node, index)), same[0])
        labels = walk.axis(node, first, -back)
        for index in same:
            walk.tie(node, index, -back, labels)
        found.append(labels)  # an axis of length 1 that is spread is not asked about, and stays
    return found


def _elementwise(walk: Walk, node: ir.Node) -> None:
    """Any function of single numbers."""
    if not any(value is not None for value in node.inputs) or any(out.uses() for out in node.outputs[1:]):
        return
    walk.give(node, spread(walk, node))


def _by_channel(walk: Walk, node: ir.Node) -> None:
    """BatchNormalization and InstanceNormalization: each channel by itself, with constants of its own."""
    axes = walk.axes(node)
    for index in range(1, len(node.inputs)):
        if walk.has(node, index):
            walk.tie(node, index, 0, axes[1])
    walk.give(node, axes)


LAYERS: dict[str, Rule] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose, "Gemm": _gemm, "MatMul": _matmul,
    "BatchNormalization": _by_channel, "InstanceNormalization": _by_channel,
    **dict.fromkeys((
        "Abs", "Add", "And", "BitShift", "Cast", "Ceil", "Celu", "Clip", "Cos", "Div", "Dropout", "Elu", "Equal",
        "Erf", "Exp", "FastGelu", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish",
        "Identity", "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod",
        "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "QuickGelu", "Reciprocal", "Relu", "Round", "Selu", "Shrink",
        "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh",
        "ThresholdedRelu", "Where", "Xor",
    ), _elementwise),
}  # fmt: skip
"""Rules of operators that compute, by name."""
