# SPDX-License-Identifier: Apache-2.0
"""Shapes of what flows through a graph, as far as they can be known without running it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir.passes import common as passes

from fewbit.backends.graph.constants import constant

Side = int | str | None  # a number, the name of an unknown one, or an unknown one without a name


def infer_shapes(model: ir.Model) -> None:
    """Write shapes and types to the values of a model.

    onnx gives up where a Reshape's target is computed from a Shape, and with it on everything behind; what the target
    is made of still says how many axes there are, and usually how long all but one of them.
    """
    infer = passes.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)
    infer(model)
    news = [node for node in model.graph.all_nodes() if _say_shape(node)]
    if news:
        infer(model)


def _say_shape(node: ir.Node) -> bool:
    """Write to the output of a Reshape what its target says; whether that was news."""
    if node.domain or node.op_type != "Reshape" or node.outputs[0].shape is not None or node.outputs[0].type is None:
        return False
    target = target_of(node.inputs[1] if len(node.inputs) > 1 else None)
    if target is not None:
        node.outputs[0].shape = ir.Shape([side if side is not None and side > 0 else None for side in target])
    return target is not None


def sides(value: ir.Value | None) -> list[Side] | None:
    """The lengths of a value's axes; none if not even their number is known."""
    if value is None or value.shape is None:
        return None
    named = [side.value if isinstance(side, ir.SymbolicDim) else side for side in value.shape]
    return [None if side in ("", "?") or (isinstance(side, int) and side < 0) else side for side in named]


def rank(value: ir.Value | None) -> int | None:
    """How many axes a value has, if that is known."""
    return None if value is None or value.shape is None else len(value.shape)


def integers(node: ir.Node, name: str, index: int | None = None) -> list[int] | None:
    """A list that older operator sets have as an attribute and newer ones as an input; none if it is not constant."""
    if name in node.attributes:
        return [int(number) for number in node.attributes[name].as_ints()]
    if index is None or len(node.inputs) <= index:
        return None
    found = constant(node.inputs[index])
    return None if found is None else [int(number) for number in found.reshape(-1)]


def target_of(value: ir.Value | None, depth: int = 8) -> Sequence[int | None] | None:
    """What is known of a shape that a graph computes: its numbers, none for those that depend on the input.

    Args:
        value: a list of whole numbers: a constant, or a Concat of constants and of sides of other values.
        depth: how far to look back.
    """
    found = constant(value)
    if found is not None:
        return [int(number) for number in found.reshape(-1)] if found.ndim <= 1 else None
    node = None if value is None else value.producer()
    if node is None or node.domain or depth == 0:
        return None
    if node.op_type == "Concat":
        parts = [target_of(part, depth - 1) for part in node.inputs]
        return None if any(part is None for part in parts) else [side for part in parts if part for side in part]
    if node.op_type == "Cast":
        return target_of(node.inputs[0], depth - 1)
    if node.op_type == "Unsqueeze":  # of one number, as exporters do
        return [None]
    if node.op_type == "Gather" and (picked := constant(node.inputs[1])) is not None and picked.ndim == 1:
        return [None] * picked.size
    if node.op_type == "Slice" and (ends := _slice_length(node)) is not None:
        return [None] * ends
    known = sides(value)
    return [None] * known[0] if known is not None and len(known) == 1 and isinstance(known[0], int) else None


def _slice_length(node: ir.Node) -> int | None:
    """How many numbers a slice of a shape has, where both of its ends are counted from the same side."""
    start, end = integers(node, "starts", 1), integers(node, "ends", 2)
    steps = integers(node, "steps", 4) or [1]
    if start is None or end is None or len(start) != 1 or steps != [1] or (start[0] < 0) != (end[0] < 0):
        return None
    return end[0] - start[0] if 0 < end[0] - start[0] <= 8 else None
