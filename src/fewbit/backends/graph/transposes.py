# SPDX-License-Identifier: Apache-2.0
"""Transposes that do nothing, alone or together with the one before, as exports from other layouts leave them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from fewbit.backends.graph.nodes import replace_value
from fewbit.backends.graph.shapes import integers


def drop_transposes(graph: ir.Graph) -> Iterator[tuple[str, str]]:
    """Take out a Transpose that keeps the order of the axes, or that undoes the Transpose before it."""
    for node in list(graph):
        if node.graph is not graph or not _is_transpose(node):
            continue
        before = node.inputs[0].producer() if node.inputs[0] is not None else None
        if _keeps(integers(node, "perm")):
            same, note = node.inputs[0], "Transpose passes its input on"
        elif before is not None and _is_transpose(before) and _undoes(node, before):
            same, note = before.inputs[0], f"Transpose undoes {before.name}"
        else:
            continue
        if same is None or not replace_value(graph, node.outputs[0], same):
            continue
        graph.remove(node, safe=True)
        yield node.name or "", note
        if before is not None and before.graph is graph and _is_transpose(before) and not _is_read(before):
            graph.remove(before, safe=True)


def _is_transpose(node: ir.Node) -> bool:
    return node.op_type == "Transpose" and not node.domain


def _is_read(node: ir.Node) -> bool:
    return bool(node.outputs[0].uses()) or node.outputs[0].is_graph_output()


def _keeps(order: list[int] | None) -> bool:
    return order is not None and order == sorted(order)


def _undoes(second: ir.Node, first: ir.Node) -> bool:
    orders = [integers(node, "perm") for node in (first, second)]
    count = next((len(order) for order in orders if order is not None), 0)
    turned = list(range(count))[::-1]  # what a Transpose does that names no order
    one, two = (turned if order is None else order for order in orders)
    return _keeps([one[axis] for axis in two])
