# SPDX-License-Identifier: Apache-2.0
"""Constant folding: what follows from initializers alone is computed once, by the runtime itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.constants import constant, new_constant
from fewbit.errors import require

_RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli")
_MOST_GROWTH = 1 << 20  # bytes: a table that a small node unfolds stays folded


def fold_constants(graph: ir.Graph, opsets: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Replace nodes whose inputs are all constant by initializers; what would make the file much larger stays."""
    known: set[ir.Value] = set()
    nodes: list[ir.Node] = []
    for node in graph:
        given = [value for value in node.inputs if value is not None]
        constants = all(value in known or constant(value) is not None for value in given)
        if node.domain or not given or not constants or node.op_type in _RANDOM or _has_graph(node):
            continue
        nodes.append(node)
        known.update(node.outputs)
    wanted = [v for node in nodes for v in node.outputs if _is_read_outside(v, known)]
    if not wanted:
        return
    values = _computed(nodes, wanted, opsets)
    size = sum(value.const_value.nbytes for value in graph.initializers.values() if value.const_value is not None)
    for value, array in zip(wanted, values):
        if array.nbytes > _MOST_GROWTH and array.nbytes > size // 4:
            continue
        made = new_constant(graph, value, array, value.name and f"{value.name}.value")
        value.replace_all_uses_with(made)
    for node in reversed(nodes):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            graph.remove(node, safe=True)
            yield node.name or "", f"{node.op_type} of constants, computed"


def _is_read_outside(value: ir.Value, known: set[ir.Value]) -> bool:
    """Whether a constant is worth computing; loops and branches keep theirs, whose declared shapes are often wrong."""
    readers = [use.node for use in value.uses()]
    if value.is_graph_output() or any(_has_graph(node) or node.graph is not value.graph for node in readers):
        return False
    return any(not set(node.outputs) <= known for node in readers)


def _has_graph(node: ir.Node) -> bool:
    return any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())


def _computed(nodes: list[ir.Node], wanted: list[ir.Value], opsets: Mapping[str, int]) -> list[np.ndarray]:  # type: ignore[type-arg]
    runtime = require("onnxruntime", extra="onnx", purpose="computing constants of a graph")
    inside = {value for node in nodes for value in node.outputs}
    outer = {v for node in nodes for v in node.inputs if v is not None and v not in inside}
    copies: dict[ir.Value | None, ir.Value | None] = {None: None}
    for value in outer:
        copies[value] = ir.Value(name=value.name, shape=value.shape, type=value.type, const_value=value.const_value)
    made = []
    for node in nodes:
        outputs = [ir.Value(name=value.name) for value in node.outputs]
        copies |= dict(zip(node.outputs, outputs))
        inputs = [copies[value] for value in node.inputs]
        made.append(ir.Node("", node.op_type, inputs, list(node.attributes.values()), outputs=outputs))
    graph = ir.Graph(
        [],
        [copies[value] for value in wanted],  # type: ignore[misc]
        nodes=made,
        initializers=[copies[value] for value in outer],  # type: ignore[misc]
        opset_imports=dict(opsets),
        name="constants",
    )
    for value in graph.outputs:
        value.type = None
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    content = ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString()
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, {})  # type: ignore[type-arg]
    return found
