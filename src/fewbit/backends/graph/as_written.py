# SPDX-License-Identifier: Apache-2.0
"""What an ONNX file says, next to what ONNX Runtime makes of it.

Without graph optimizations QuantizeLinear and DequantizeLinear are computed as they stand, and layers between them in
float. MatMulInteger and ConvInteger, whose sums saturate on some processors, are replaced by the same in float.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx_ir as ir

from fewbit.backends.graph.executed import FLOATING, INTEGER, WEIGHT_ONLY, kind_of, optimized
from fewbit.backends.graph.origins import Origins
from fewbit.backends.graph.writing import Writer, replace_node

_FLOAT_OF = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
_LAYOUT = frozenset(("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Identity", "Cast"))


def in_float(model: ir.Model) -> ir.Model:
    """A model that computes with integer operators in float; the model itself if it has none."""
    if not any(node.op_type in _FLOAT_OF for node in model.graph):
        return model
    model = model.clone(deep_copy=False)
    write = Writer(model.graph)
    for node in list(model.graph):
        if node.op_type in _FLOAT_OF:
            _replace(write, node)
    return model


def requantized(model: ir.Model) -> list[tuple[str, str]]:
    """Layers with float weights in the file that ONNX Runtime computes from quantized weights, with its operator."""
    with tempfile.TemporaryDirectory(prefix="fewbit-") as folder:
        nodes = [
            node
            for node in optimized(model, Path(folder)).graph.all_nodes()
            if kind_of(node) in ("integer", "weight_only", "floating")
        ]
    names = Origins(model, INTEGER | FLOATING | WEIGHT_ONLY).names(nodes)
    own = {node.name: node for node in model.graph.all_nodes() if node.op_type in FLOATING}
    return [
        (name, node.op_type)
        for name, node in zip(names, nodes)
        if kind_of(node) != "floating" and name in own and not _reads_codes(own[name])
    ]


def _reads_codes(node: ir.Node) -> bool:
    """Whether the weight of a layer, or its second operand, is quantized in the file."""
    value = node.inputs[1] if len(node.inputs) > 1 else None
    while value is not None and (before := value.producer()) is not None:
        if before.op_type == "DequantizeLinear":
            return True
        value = before.inputs[0] if before.op_type in _LAYOUT else None
    return False


def _replace(write: Writer, node: ir.Node) -> None:
    made: list[ir.Node] = []

    def floats(value: ir.Value | None, zero: ir.Value | None, part: str) -> ir.Value:
        made.append(write.node("Cast", [value], f"{node.name}.{part}.float", {"to": ir.DataType.FLOAT.value}))
        read = made[-1].outputs[0]
        if zero is not None:
            made.append(write.node("Cast", [zero], f"{node.name}.{part}.zero", {"to": ir.DataType.FLOAT.value}))
            made.append(write.node("Sub", [read, made[-1].outputs[0]], f"{node.name}.{part}.centred"))
        return made[-1].outputs[0]

    inputs = [*node.inputs, None, None][:4]
    operands = [floats(inputs[0], inputs[2], "input"), floats(inputs[1], inputs[3], "weight")]
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    made.append(write.node(_FLOAT_OF[node.op_type], operands, f"{node.name}.product", attributes))
    main = made[-1]
    made.append(write.node("Cast", main.outputs, f"{node.name}.sums", {"to": ir.DataType.INT32.value}))
    made[-1].outputs[0].type = ir.TensorType(ir.DataType.INT32)
    replace_node(node, made, main)
