# SPDX-License-Identifier: Apache-2.0
"""Layers with integer weights whose activations get their scale at run time.

x ─ DynamicQuantizeLinear ─ MatMulInteger ─ Cast ─ Mul(scale of x · scale of the weight) ─ Add(bias)

ONNX Runtime makes one kernel of a linear layer's chain, DynamicQuantizeMatMul; a convolution's stays as it is written.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from torch import Tensor

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.layers import Layer
from fewbit.backends.graph.linear import bias_of, linear_terms
from fewbit.backends.graph.unable import unable_dynamic
from fewbit.backends.graph.writing import Writer, drop_if_unused, replace_node
from fewbit.errors import UsageError
from fewbit.model.ops import CONV, LINEAR
from fewbit.numerics.qtensor import QTensor

_FLOAT = ir.DataType.FLOAT
_SINCE = 11  # the operator set of DynamicQuantizeLinear


def write_dynamic(graph: ir.Graph, layer: Layer, codes: QTensor) -> ir.Node:
    """Put integer nodes in the place of a MatMul, a Gemm or a convolution.

    Args:
        graph: the model's main graph.
        layer: the layer; the integer node has its name. What several layers read is quantized once.
        codes: int8 or uint8 in fewbit's layout, with one scale or one a channel; a convolution's are symmetric.

    Returns:
        The integer node.

    Raises:
        UsageError: a layer or codes that there are no integer nodes for, or an operator set older than 11.
    """
    write = Writer(graph)
    _refuse(write, layer, codes)
    weight, name, node = layer.weight_value, layer.name, layer.node
    owner, result = weight.graph or graph, weight.dtype or _FLOAT
    scale, zero = (_by_row(numbers, codes) for numbers in (codes.qparams.step, codes.qparams.zero_point))
    assert scale is not None
    if layer.op is LINEAR:
        terms = linear_terms(layer)
        bias, rest = bias_of(layer, terms, codes.shape[0])
        scale, matrix = scale * terms.factor, codes.codes().t()
    else:
        given = node.inputs[2] if len(node.inputs) > 2 else None
        known = constant(given)
        bias, rest = (None, given) if known is None else (np.asarray(known, np.float32), None)
        matrix = codes.codes()
    quantized = _quantized(write, node, node.inputs[layer.reads])
    inputs: list[ir.Value | None] = [
        quantized[0],
        write.constant(f"{weight.name}.codes", matrix.contiguous().numpy(), owner),
    ]
    inputs.append(quantized[2])
    if zero is not None:
        inputs.append(write.constant(f"{weight.name}.zero_point", zero.to(matrix.dtype).numpy(), owner))
    tail = (1,) * (len(codes.shape) - 2) if layer.op is CONV else ()
    shape = scale.shape + tail if scale.ndim else scale.shape
    factor = write.constant(f"{weight.name}.scale", scale.reshape(shape).numpy(), owner)
    integer = write.node(
        "MatMulInteger" if layer.op is LINEAR else "ConvInteger",
        inputs,
        name,
        {} if layer.op is LINEAR else {key: attribute.value for key, attribute in node.attributes.items()},
        dtype=ir.DataType.INT32,
    )
    both = write.node("Mul", [quantized[1], factor], f"{name}.scales", dtype=_FLOAT)
    cast = write.node("Cast", integer.outputs, f"{name}.cast", {"to": _FLOAT.value}, dtype=_FLOAT)
    nodes = [integer, both, cast, write.node("Mul", [cast.outputs[0], both.outputs[0]], f"{name}.scale")]
    nodes[-1].outputs[0].type = ir.TensorType(_FLOAT)
    if bias is not None:
        added = write.constant(f"{name}.bias", bias.reshape(bias.shape + tail), owner)
        nodes.append(write.node("Add", [nodes[-1].outputs[0], added], f"{name}.add", dtype=_FLOAT))
    if result != _FLOAT:
        nodes.append(write.node("Cast", nodes[-1].outputs, f"{name}.back", {"to": result.value}, dtype=result))
    if rest is not None:
        nodes.append(write.node("Add", [nodes[-1].outputs[0], rest], f"{name}.add", dtype=result))
    replace_node(node, nodes, integer)
    drop_if_unused(weight)
    return integer


def round_input(graph: ir.Graph, layer: Layer) -> None:
    """Let a layer with a float weight read its activation as rounded to 8 bits in each call."""
    write, node = Writer(graph), layer.node
    value = node.inputs[layer.reads]
    codes = _quantized(write, node, value)
    read = write.node("DequantizeLinear", codes, f"{layer.name}.input.dequantize", dtype=_FLOAT)
    assert node.graph is not None
    node.graph.insert_before(node, read)
    node.replace_input_with(layer.reads, read.outputs[0])


def _refuse(write: Writer, layer: Layer, codes: QTensor) -> None:
    grid, row = codes.grid, (1, *codes.shape[1:])
    by_row = codes.block == row or codes.scale.numel() == 1
    per_channel_zero = codes.zero_point is not None and codes.zero_point.numel() > 1
    wrong = (
        why if (why := unable_dynamic(layer)) is not None
        else f"codes of {grid.dtype.name}" if not grid.dtype.is_integer or grid.dtype.bits > 8 or grid.free_zero
        else "scales of groups" if not by_row
        else "zero points of channels in a convolution" if layer.op is CONV and per_channel_zero
        else f"operator set {write.opset}" if write.opset < _SINCE
        else None
    )  # fmt: skip
    if wrong:
        raise UsageError(
            f"{wrong}, for a dynamic layer",
            where=layer.name,
            expected="MatMul, Gemm or Conv with int8 or uint8 codes by tensor or channel, in operator set 11 or later",
            try_="keep its weight behind DequantizeLinear, or raise the operator set",
        )


def _by_row(numbers: Tensor | None, codes: QTensor) -> Tensor | None:
    """One number, or one a row."""
    if numbers is None:
        return None
    return numbers.reshape(()) if numbers.numel() == 1 else numbers.reshape(-1)


def _quantized(write: Writer, node: ir.Node, x: ir.Value | None) -> Sequence[ir.Value]:
    """Codes, scale and zero point of an activation, made where the activation is, once for all who read it."""
    assert x is not None and node.graph is not None
    for use in x.uses():
        if use.node.op_type == "DynamicQuantizeLinear" and use.node.graph is node.graph:
            return use.node.outputs
    name, nodes, value = x.name or "", [], x
    if x.dtype == ir.DataType.FLOAT16:
        nodes.append(write.node("Cast", [x], f"{name}.float", {"to": _FLOAT.value}, dtype=_FLOAT))
        value = nodes[0].outputs[0]
    parts = ("codes", "scale", "zero_point")
    nodes.append(write.node("DynamicQuantizeLinear", [value], f"{name}.quantize", outputs=parts))
    producer = x.producer()
    if producer is not None and producer.graph is node.graph:
        node.graph.insert_after(producer, nodes)
    else:
        node.graph.insert_before(node.graph[0], nodes)
    return nodes[-1].outputs
