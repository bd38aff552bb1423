# SPDX-License-Identifier: Apache-2.0
"""GELU: x times the chance that a standard normal number is below it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.nodes import only_reader
from fewbit.backends.graph.patterns.pattern import Pattern, nodes_behind, variable


def gelus(graph: ir.Graph) -> Iterator[Pattern]:
    """GELU as Erf or Tanh with its sums and products, and as one node."""
    for node in graph:
        if node.op_type in ("Gelu", "FastGelu", "QuickGelu") and len(node.inputs) == 1 and node.inputs[0] is not None:
            yield Pattern((node,), node.inputs[0], node.outputs[0])
        elif node.op_type in ("Erf", "Tanh") and not node.domain and (found := _gelu(node)) is not None:
            yield found


def _gelu(middle: ir.Node) -> Pattern | None:
    one = only_reader(middle)
    if one is None or one.op_type != "Add" or not _is_about(one, 1.0):
        return None
    first = only_reader(one)
    if first is None or first.op_type != "Mul":
        return None
    other = next((value for value in first.inputs if value is not one.outputs[0]), None)
    half = other.producer() if other is not None and constant(other) is None else None
    if half is not None and half.op_type == "Mul" and _is_about(half, 0.5):
        x, tail = variable(half), [half, first]
    else:  # ½ and x one after the other, in either order
        second = only_reader(first)
        if second is None or second.op_type != "Mul" or not (_is_about(first, 0.5) or _is_about(second, 0.5)):
            return None
        tail = [first, second]
        product = first if _is_about(second, 0.5) else second
        x = next((value for value in product.inputs if value not in (one.outputs[0], first.outputs[0])), None)
    if x is None:
        return None
    inner = nodes_behind(middle.inputs[0], frozenset(("Mul", "Div", "Add", "Pow")), {x}, 8)
    if inner is None or not _holds(inner, middle.op_type):
        return None
    return Pattern((*inner[::-1], middle, one, *tail), x, tail[-1].outputs[0])


def _holds(inner: list[ir.Node], op_type: str) -> bool:
    """Whether the constants are those of GELU."""
    numbers = [abs(float(np.asarray(c, np.float64).reshape(-1)[0])) for node in inner for c in _constants(node)]
    wanted = [(0.70710678, 1.41421356)] if op_type == "Erf" else [(0.044715,), (0.79788456,)]
    return all(any(np.isclose(number, one, rtol=1e-3) for number in numbers for one in ones) for ones in wanted)


def _constants(node: ir.Node) -> list[np.ndarray]:  # type: ignore[type-arg]
    return [found for value in node.inputs if (found := constant(value)) is not None and found.size == 1]


def _is_about(node: ir.Node, number: float) -> bool:
    return any(np.isclose(float(np.asarray(found).reshape(-1)[0]), number, rtol=1e-3) for found in _constants(node))
