# SPDX-License-Identifier: Apache-2.0
"""Attention in primitive operators: what averages values with weights that sum to one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.nodes import only_reader

_BEFORE = ("Mul", "Div", "Add", "Where", "Cast", "Reshape")  # scales and masks
_AFTER = ("Cast", "Dropout", "Reshape")


@dataclass(frozen=True)
class Attention:
    """A product with weights that sum to one; the values are its `v`, whose channels pass through.

    Args:
        nodes: in the order they run.
        q: the left side of the first product.
        k: the right one, transposed already.
        v: the right side of the second product.
        y: what it gives.
    """

    nodes: tuple[ir.Node, ...]
    q: ir.Value
    k: ir.Value
    v: ir.Value
    y: ir.Value


def attentions(graph: ir.Graph) -> Iterator[Attention]:
    """Softmax between two products of computed values, with whatever scales and masks before it."""
    for node in graph:
        if node.op_type == "Softmax" and not node.domain and (found := _attention(node)) is not None:
            yield found


def _attention(softmax: ir.Node) -> Attention | None:
    before = _product_behind(softmax.inputs[0], 6)
    nodes = [softmax]
    while (last := only_reader(nodes[-1])) is not None and last.op_type in _AFTER:
        nodes.append(last)
    if before is None or last is None or last.op_type != "MatMul" or last.inputs[0] is not nodes[-1].outputs[0]:
        return None
    q, k, v = *before[0].inputs, last.inputs[1]
    if q is None or k is None or v is None or constant(v) is not None:
        return None
    return Attention((*before, *nodes, last), q, k, v, last.outputs[0])


def _product_behind(value: ir.Value | None, depth: int) -> list[ir.Node] | None:
    """The nodes from a product of two computed matrices to a value, with only scales and masks between."""
    node = None if value is None else value.producer()
    if node is None or node.domain or depth == 0:
        return None
    if node.op_type == "MatMul":
        return [node] if all(constant(side) is None for side in node.inputs) else None
    for side in node.inputs if node.op_type in _BEFORE else ():
        found = _product_behind(side, depth - 1)
        if found is not None:
            return [*found, node]
    return None
