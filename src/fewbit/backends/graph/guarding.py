# SPDX-License-Identifier: Apache-2.0
"""Layers in float between codes, kept in float.

ONNX Runtime rounds the weight of a layer by itself where it reads codes and gives codes, and computes it in integers:
one that was left in float because rounding it does harm, or because someone asked for it, would be rounded all the
same. It does so only if what is read has one scale, so there the scale is written once a channel.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.layers import Layer, layer_of
from fewbit.backends.graph.nodes import only_reader
from fewbit.backends.graph.weights import shape_of
from fewbit.backends.graph.writing import Writer
from fewbit.model.ops import EMBEDDING

_STEPS = ("Relu", "Clip", "Add")  # what the runtime fuses with a layer before it looks for codes


def keep_float(graph: ir.Graph) -> None:
    """Keep layers with float weights between codes from being computed in integers, in place."""
    write = Writer(graph)
    for node in list(graph):
        layer = layer_of(node)
        if layer is None or layer.op is EMBEDDING or layer.stack or not _gives_codes(node):
            continue
        reader = node.inputs[layer.reads].producer()  # type: ignore[union-attr]
        if reader is not None and reader.op_type == "DequantizeLinear":
            _read_by_channel(write, layer, reader)


def _gives_codes(node: ir.Node) -> bool:
    after = only_reader(node)
    while after is not None and after.op_type in _STEPS:
        after = only_reader(after)
    return after is not None and after.op_type == "QuantizeLinear"


def _read_by_channel(write: Writer, layer: Layer, reader: ir.Node) -> None:
    codes, node = reader.inputs[0], layer.node
    channels = shape_of(layer)[1] * layer.groups
    grid = []
    for part, value in zip(("scales", "zero_points"), reader.inputs[1:]):
        one = constant(value)
        assert one is not None
        grid.append(write.constant(f"{layer.name}.{part}", np.full(channels, one)))
    made = write.node(
        "DequantizeLinear", [codes, *grid], f"{layer.name}.dequantize", {"axis": layer.features}, domain=reader.domain
    )
    made.outputs[0].type, made.outputs[0].shape = reader.outputs[0].type, reader.outputs[0].shape
    assert isinstance(node.graph, ir.Graph)
    node.graph.insert_before(node, made)
    node.replace_input_with(layer.reads, made.outputs[0])
