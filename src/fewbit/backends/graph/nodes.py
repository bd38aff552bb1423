# SPDX-License-Identifier: Apache-2.0
"""Small questions about nodes, and the changes that several make: who gives what others read."""

from __future__ import annotations

import onnx_ir as ir


def flag(node: ir.Node, name: str) -> bool:
    """An attribute that is 0 or 1."""
    return bool(node.attributes.get_int(name, 0))


def real(node: ir.Node, name: str, default: float) -> float:
    """An attribute that is a number."""
    return float(node.attributes.get_float(name, default))


def only_reader(node: ir.Node) -> ir.Node | None:
    """The node that alone reads what a node gives, in the same graph; none where an output of the graph is read."""
    readers = list(node.outputs[0].uses())
    if len(readers) != 1 or node.outputs[0].is_graph_output() or readers[0].node.graph is not node.graph:
        return None
    return readers[0].node


def give_out(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Let a value be the output of a graph that another was, with its name, doc string and metadata."""
    name, old.name = old.name, f"{old.name}.before"
    new.name = name
    new.doc_string, old.doc_string = old.doc_string, None
    new.metadata_props.update(old.metadata_props)
    for index, value in enumerate(graph.outputs):
        if value is old:
            graph.outputs[index] = new


def replace_value(graph: ir.Graph, old: ir.Value, new: ir.Value) -> bool:
    """Let everyone who reads `old` read `new`; an output of the graph keeps its name.

    Returns:
        False where that cannot be: the output would be an input, or another output.
    """
    if old.is_graph_output():
        if new.is_graph_input() or new.is_graph_output() or new.is_initializer() or new.graph is not graph:
            return False
        give_out(graph, old, new)
        if new.shape is None:
            new.shape, new.type = old.shape, old.type
    old.replace_all_uses_with(new)
    return True
