# SPDX-License-Identifier: Apache-2.0
"""Lists of whole numbers that a graph computes from shapes: which of them are fixed, and which axes they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import add, floordiv, mul, sub

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.shapes import integers, sides
from fewbit.sparsity.shrinking.classes import Labels
from fewbit.sparsity.shrinking.graph_walk import Walk

_SAME = ("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape")
_TWO: dict[str, Callable[[int, int], int]] = {"Add": add, "Sub": sub, "Mul": mul, "Div": floordiv}


@dataclass(frozen=True)
class Number:
    """A number of a list.

    Args:
        value: what it is for every input; none where that depends on the input.
        axes: labels of the axes whose lengths it was computed from.
    """

    value: int | None
    axes: tuple[Labels, ...] = ()


def numbers(walk: Walk, value: ir.Value | None, depth: int = 24) -> list[Number]:
    """What is known of a list that a graph computes; nothing of those that are no lists of numbers."""
    held = constant(value)
    if held is not None:
        return [Number(int(number)) for number in held.reshape(-1)] if held.dtype.kind in "iu" else []
    node = None if value is None else value.producer()
    found = [] if node is None or node.domain or depth == 0 else _computed(walk, node, depth - 1)
    unknown = [Number(None)] * int(np.prod(walk.shape(value))) if len(walk.shape(value)) < 2 else []
    return found if len(found) == len(unknown) else unknown


def _computed(walk: Walk, node: ir.Node, depth: int) -> list[Number]:
    if node.op_type == "Shape":
        return _sides(walk, node)
    parts = [numbers(walk, value, depth) for value in node.inputs]
    if node.op_type == "Concat":
        return [number for part in parts for number in part]
    if node.op_type in _SAME:
        return parts[0]
    if node.op_type == "Gather" and (picked := constant(node.inputs[1])) is not None:
        return [parts[0][int(place)] for place in picked.reshape(-1)] if parts[0] else []
    if node.op_type == "Slice":
        start, end = integers(node, "starts", 1), integers(node, "ends", 2)
        step = integers(node, "steps", 4) or [1]
        return parts[0][start[0] : end[0] : step[0]] if start and end else []
    if node.op_type in _TWO and all(parts):
        long = max(len(part) for part in parts)
        pairs = zip(*(part * (long // len(part)) for part in parts))
        return [_both(_TWO[node.op_type], a, b) for a, b in pairs]
    return []


def _both(function: Callable[[int, int], int], a: Number, b: Number) -> Number:
    known = a.value is not None and b.value is not None and not (function is floordiv and b.value == 0)
    return Number(function(a.value or 0, b.value or 0) if known else None, a.axes + b.axes)


def _sides(walk: Walk, node: ir.Node) -> list[Number]:
    value = node.inputs[0]
    known, labels = sides(value), walk.axes(node)
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", len(labels))
    if known is None or len(known) != len(labels):
        known = [None] * len(labels)
    found = [Number(side if isinstance(side, int) else None, (axis,)) for side, axis in zip(known, labels)]
    return found[start:end]
