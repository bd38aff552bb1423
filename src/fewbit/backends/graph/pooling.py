# SPDX-License-Identifier: Apache-2.0
"""The mean over all positions of a picture, said as the pooling that runtimes have integers for."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from fewbit.backends.graph.nodes import replace_value
from fewbit.backends.graph.shapes import integers, rank

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)


def name_global_pooling(graph: ir.Graph) -> Iterator[tuple[str, str]]:
    """Say a ReduceMean over every axis after the channels as GlobalAveragePool, followed by a Flatten if axes go."""
    for node in list(graph):
        if not _is_pooling(node):
            continue
        x, out = node.inputs[0], node.outputs[0]
        assert x is not None and x.shape is not None
        nodes = [ir.node("GlobalAveragePool", [x], name=node.name)]
        nodes[0].doc_string = node.doc_string
        nodes[0].metadata_props.update(node.metadata_props)
        if not node.attributes.get_int("keepdims", 1):
            nodes.append(ir.node("Flatten", nodes[0].outputs, {"axis": 1}, name=f"{node.name}.flatten"))
            nodes[0].outputs[0].name = f"{out.name}.pooled"
            nodes[0].outputs[0].shape = ir.Shape([*x.shape[:2], *(1 for _ in x.shape[2:])])
        made = nodes[-1].outputs[0]
        made.name = f"{out.name}.mean"
        made.shape = out.shape
        for each in nodes:
            each.outputs[0].type = x.type
        graph.insert_before(node, nodes)
        replace_value(graph, out, made)
        graph.remove(node, safe=True)
        yield nodes[0].name or "", "ReduceMean over all positions, said as GlobalAveragePool"


def _is_pooling(node: ir.Node) -> bool:
    if node.op_type != "ReduceMean" or node.domain:
        return False
    x, axes = node.inputs[0], integers(node, "axes", 1)
    count = rank(x)
    if x is None or axes is None or count not in (3, 4, 5) or x.dtype not in _FLOATS:
        return False
    return sorted(axis % count for axis in axes) == list(range(2, count)) and not _is_of_norm(node, x)


def _is_of_norm(node: ir.Node, x: ir.Value) -> bool:
    """Whether it is the mean or the variance of a spelled-out normalisation, which is known by its ReduceMean."""
    before = x.producer()
    if before is not None and (before.op_type == "Pow" or (before.op_type == "Mul" and len(set(before.inputs)) == 1)):
        return True
    return any(use.node.op_type == "Sub" for use in node.outputs[0].uses())
