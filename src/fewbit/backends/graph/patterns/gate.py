# SPDX-License-Identifier: Apache-2.0
"""Squeeze-and-excite blocks."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from fewbit.backends.graph.layers import layer_of
from fewbit.backends.graph.nodes import only_reader
from fewbit.backends.graph.patterns.pattern import Pattern, variable

_OPS = frozenset((
    "Relu", "LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Clip", "Reshape", "Squeeze", "Unsqueeze", "Flatten",
    "Add", "Mul", "Div", "BatchNormalization",
))  # fmt: skip


def gates(graph: ir.Graph) -> Iterator[Pattern]:
    """Squeeze-and-excite blocks: the mean of a value through one or two layers, as a factor of its channels."""
    for node in graph:
        if node.op_type in ("GlobalAveragePool", "ReduceMean") and not node.domain:
            found = _gate(node)
            if found is not None:
                yield found


def _gate(pool: ir.Node) -> Pattern | None:
    x = pool.inputs[0]
    nodes = [pool]
    has_layer = is_bounded = False
    while len(nodes) < 14:
        value = nodes[-1].outputs[0]
        readers = list(dict.fromkeys(use.node for use in value.uses()))
        if not readers or value.is_graph_output() or len(readers) > 2:
            return None
        swish = [node for node in readers if node.op_type == "Mul"] if len(readers) == 2 else []
        if len(readers) == 2 and not (len(swish) == 1 and swish[0] is only_reader((set(readers) - set(swish)).pop())):
            return None
        nodes += [node for node in readers if node not in swish] + swish
        node = nodes[-1]
        if node.op_type == "Mul" and x in node.inputs:
            return Pattern(tuple(nodes), x, node.outputs[0]) if x is not None and has_layer and is_bounded else None
        if layer_of(node) is not None:
            has_layer, is_bounded = True, False
        elif node.op_type not in _OPS or (node.op_type in ("Add", "Div") and variable(node) is None):
            return None
        is_bounded |= node.op_type in ("Sigmoid", "HardSigmoid", "Clip")
    return None
