# SPDX-License-Identifier: Apache-2.0
"""Norms in primitive operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.nodes import only_reader
from fewbit.backends.graph.patterns.pattern import Pattern, nodes_behind, variable

_OPS = frozenset((
    "Sqrt", "Add", "Sub", "Mul", "Div", "Pow", "Max", "Reciprocal", "Cast", "ReduceMean", "ReduceSum", "ReduceProd",
    "ReduceSumSquare", "Shape", "Gather", "Unsqueeze", "Squeeze", "Reshape", "Expand",
))  # fmt: skip
_TO_DIVISION = ("Add", "Max", "Reciprocal", "Div", "Mul", "Cast")


@dataclass(frozen=True)
class Norm(Pattern):
    """A norm over the last axes.

    Args:
        is_centered: whether the mean is taken off, as LayerNorm does and RMSNorm does not.
        scale: the Mul with γ; none if there is no γ.
        shift: the Add of β.
    """

    is_centered: bool
    scale: ir.Node | None
    shift: ir.Node | None


def norms(graph: ir.Graph) -> Iterator[Norm]:
    """Norms in primitive operators, however the variance is said: biased or not, ε inside the root or outside."""
    for node in graph:
        if node.op_type == "Sqrt" and not node.domain and (found := _norm(node)) is not None:
            yield found


def _norm(root: ir.Node) -> Norm | None:
    way = _to_division(root)
    if way is None:
        return None
    last = way[-1]
    denominator = (way[-2] if len(way) > 1 else root).outputs[0]
    numerator = next((value for value in last.inputs if value is not denominator), None)
    scale = next((node for node in way[:-1] if _has_vector(node)), None)  # γ may stand on either side, or behind
    if scale is None and (above := _producer(numerator)) is not None and _has_vector(above):
        scale, numerator = above, variable(above)
    sub = _producer(numerator)
    x, mean = numerator, None
    if sub is not None and sub.op_type == "Sub":
        mean = _mean_nodes(sub.inputs[1], sub.inputs[0])
        x = numerator if mean is None else sub.inputs[0]
    below = None if x is None else nodes_behind(denominator, _OPS, {x}, 24)
    if x is None or below is None or not any(node.op_type.startswith("Reduce") for node in below):
        return None
    nodes = [*(mean or []), *([sub] if mean and sub else []), *below, *([scale] if scale else []), last]
    shift = None
    after = only_reader(last)
    if scale is None and after is not None and _has_vector(after):
        scale, after = after, only_reader(after)
        nodes.append(scale)
    if after is not None and after.op_type == "Add" and variable(after) is not None:
        shift = after
        nodes.append(after)
    return Norm(tuple(dict.fromkeys(nodes)), x, nodes[-1].outputs[0], mean is not None, scale, shift)


def _to_division(root: ir.Node) -> list[ir.Node] | None:
    """The nodes from a root to the one that divides a computed value by it, or multiplies one with its reciprocal."""
    way = [root]
    for _ in range(4):
        node = only_reader(way[-1])
        if node is None or node.domain or node.op_type not in _TO_DIVISION:
            return None
        way.append(node)
        left, right = (*node.inputs, None)[:2]
        if node.op_type == "Div" and right is way[-2].outputs[0] and constant(left) is None:
            return way[1:]
        if node.op_type == "Mul" and variable(node) is None:
            return way[1:]
    return None


def _has_vector(node: ir.Node) -> bool:
    """Whether a node multiplies with a constant of more than one number."""
    sizes = [found.size for value in node.inputs if (found := constant(value)) is not None]
    return node.op_type == "Mul" and len(sizes) == 1 and sizes[0] > 1


def _mean_nodes(value: ir.Value | None, x: ir.Value | None) -> list[ir.Node] | None:
    """The nodes that compute the mean of a value; none if this is no mean of it."""
    found = None if x is None else nodes_behind(value, _OPS, {x}, 8)
    return found if found is not None and any(node.op_type.startswith("Reduce") for node in found) else None


def _producer(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()
