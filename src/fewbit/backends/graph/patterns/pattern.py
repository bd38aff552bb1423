# SPDX-License-Identifier: Apache-2.0
"""What a pattern is, and how to look back from one of its values."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from fewbit.backends.graph.constants import constant

_SHAPED = ("Reshape", "Expand", "Squeeze", "Unsqueeze")  # the other input only says how the result lies


@dataclass(frozen=True)
class Pattern:
    """Nodes that are one function of one value.

    Args:
        nodes: each once; the last one gives `y`.
        x: what it reads.
        y: what it gives.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    y: ir.Value


def nodes_behind(value: ir.Value | None, ops: frozenset[str], stops: set[ir.Value], most: int) -> list[ir.Node] | None:
    """The nodes that compute a value from the stops and constants alone, with these operators; none if others do."""
    found: dict[ir.Node, None] = {}
    waiting = [value]
    while waiting:
        value = waiting.pop()
        node = None if value is None else value.producer()
        if value is None or value in stops or constant(value) is not None or node in found:
            continue
        if node is None or node.domain or node.op_type not in ops or len(found) == most:
            return None
        found[node] = None
        waiting += node.inputs[:1] if node.op_type in _SHAPED else node.inputs
    return list(found)


def variable(node: ir.Node) -> ir.Value | None:
    """The input of a sum or a product whose other one is constant."""
    left, right = (*node.inputs, None)[:2]
    if (constant(left) is None) == (constant(right) is None):
        return None
    return left if constant(left) is None else right
