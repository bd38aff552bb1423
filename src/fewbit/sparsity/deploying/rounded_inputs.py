# SPDX-License-Identifier: Apache-2.0
"""Layers that are multiplied as floats and read what is rounded, as they did in training."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.grids import CodeScale
from fewbit.backends.graph.layers import layer_of
from fewbit.backends.graph.opset import quantize_domain
from fewbit.backends.graph.writing import Writer


def round_inputs(graph: ir.Graph, reads: Mapping[str, CodeScale]) -> None:
    """Put QuantizeLinear and DequantizeLinear before what layers read, in place.

    Args:
        graph: the main graph.
        reads: by the name of a node, the grid of what it reads; what is on it already stays.
    """
    write, domain = Writer(graph), quantize_domain(graph)
    for node in [node for node in graph.all_nodes() if node.name in reads]:
        layer, grid = layer_of(node), reads[node.name or ""]
        assert layer is not None and isinstance(node.graph, ir.Graph)
        value = node.inputs[layer.reads]
        assert value is not None
        if _is_on(value, grid):
            continue
        numbers = [
            write.constant(f"{node.name}.input.scale", np.array(grid.scale, np.float32)),
            write.constant(f"{node.name}.input.zero_point", np.array(grid.zero, np.uint8)),
        ]
        codes = write.node("QuantizeLinear", [value, *numbers], f"{node.name}.input.quantize", domain=domain)
        codes.outputs[0].type = ir.TensorType(ir.DataType.UINT8)
        back = write.node(
            "DequantizeLinear", [codes.outputs[0], *numbers], f"{node.name}.input.dequantize", domain=domain
        )
        codes.outputs[0].shape = back.outputs[0].shape = value.shape
        back.outputs[0].type = value.type
        node.graph.insert_before(node, [codes, back])
        node.replace_input_with(layer.reads, back.outputs[0])


def _is_on(value: ir.Value, grid: CodeScale) -> bool:
    """Whether a value is read from codes of a grid already."""
    maker = value.producer()
    if maker is None or maker.op_type != "DequantizeLinear":
        return False
    numbers = [each.const_value for each in maker.inputs[1:3] if each is not None and each.const_value is not None]
    wanted = (np.float32(grid.scale), np.uint8(grid.zero))
    return len(numbers) == 2 and all(
        found.numpy().size == 1 and found.numpy() == each for found, each in zip(numbers, wanted)
    )
