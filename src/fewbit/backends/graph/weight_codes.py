# SPDX-License-Identifier: Apache-2.0
"""A weight kept as codes, and DequantizeLinear between it and the nodes that read it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewbit.backends.graph.layers import Layer
from fewbit.backends.graph.opset import BY_AXIS, BY_BLOCK, quantize_domain
from fewbit.backends.graph.scale_forms import form_of, own_blocks, own_scales
from fewbit.backends.graph.weights import to_node
from fewbit.backends.graph.writing import Writer, drop_if_unused
from fewbit.errors import UsageError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.packing import pack
from fewbit.numerics.qtensor import QTensor
from fewbit.schemes.modes import MODES, mode_spec

_HALF = 19  # the operator set in which the scale's type first decides the result's
_SINCE = {
    ir.DataType.INT8: 10, ir.DataType.UINT8: 10, ir.DataType.FLOAT8E4M3FN: 19, ir.DataType.FLOAT8E5M2: 19,
    ir.DataType.INT16: 21, ir.DataType.UINT16: 21, ir.DataType.INT4: 21, ir.DataType.UINT4: 21,
    ir.DataType.INT2: 25, ir.DataType.UINT2: 25,
}  # fmt: skip
_FLOATS = {Dtype.fp8_e4m3: ir.DataType.FLOAT8E4M3FN, Dtype.fp8_e5m2: ir.DataType.FLOAT8E5M2}


def storage_type(dtype: Dtype, where: str | None = None) -> ir.DataType:
    """The smallest ONNX type that holds a type's codes.

    Args:
        dtype: the type.
        where: the layer, for messages.

    Raises:
        UsageError: a type that DequantizeLinear does not know.

    >>> storage_type(Dtype.int3)
    INT4
    """
    if dtype in _FLOATS:
        return _FLOATS[dtype]
    width = _width(dtype)
    if width is None:
        modes = [mode for mode in MODES if (own := mode_spec(mode).grid().dtype) in _FLOATS or _width(own)]
        raise UsageError(
            f"codes of {dtype.name} in an ONNX model",
            where=where,
            expected="integers of up to 16 bits, fp8_e4m3 or fp8_e5m2",
            try_=f"a mode that ONNX has types for: {', '.join(modes)}",
        )
    return ir.DataType[f"{'INT' if dtype.signed else 'UINT'}{width}"]


def _width(dtype: Dtype) -> int | None:
    """The bits of the smallest integer that holds a type's codes, if one does."""
    return next((width for width in (2, 4, 8, 16) if dtype.is_integer and dtype.bits <= width), None)


def _checked(dtype: ir.DataType | None, codes: QTensor, where: str) -> ir.DataType:
    """The type that codes are kept in."""
    smallest = storage_type(codes.grid.dtype, where)
    if dtype is None or dtype == smallest:
        return smallest
    wide = dtype in _SINCE and smallest.is_integer() and dtype.is_integer() and dtype.bitwidth >= smallest.bitwidth
    if not wide or dtype.is_signed() != smallest.is_signed():
        raise UsageError(f"codes of {codes.grid.dtype.name} in {dtype.name}", where=where, expected=smallest.name)
    return dtype


def needed_opset(layer: Layer, codes: QTensor, dtype: ir.DataType | None = None) -> int:
    """The operator set that a model needs to keep these codes; see `keep_codes`."""
    form = form_of(own_blocks(layer, codes))
    by_form = BY_BLOCK if form.block is not None else BY_AXIS if form.axis is not None else 10
    return max(by_form, _SINCE[_checked(dtype, codes, layer.name)])


def keep_codes(graph: ir.Graph, layer: Layer, codes: QTensor, dtype: ir.DataType | None = None) -> ir.Value:
    """Keep a weight as codes; every node that reads it reads what one DequantizeLinear makes of them.

    Args:
        graph: the model's main graph.
        layer: the layer whose weight it is.
        codes: in fewbit's layout.
        dtype: the type to keep codes in; the smallest that holds them if not said.

    Returns:
        The dequantized weight, in the type the weight had.

    Raises:
        UsageError: a type or a granularity that the model's operator set does not have.
    """
    return keep_value(graph, layer.weight_value, layer, codes, dtype)


def keep_value(
    graph: ir.Graph, weight: ir.Value, layer: Layer, codes: QTensor, dtype: ir.DataType | None = None
) -> ir.Value:
    """`keep_codes` for the nodes that still read a weight whose layer was rewritten already."""
    write, name, owner = Writer(graph), layer.name, weight.graph or graph
    dtype = _checked(dtype, codes, name)
    domain, needed = quantize_domain(graph), needed_opset(layer, codes, dtype)
    if needed > max(write.opset, BY_AXIS if domain else 0):
        raise UsageError(
            f"codes of {codes.grid.dtype.name} by {codes.grid.granularity.value} in operator set {write.opset}",
            where=name,
            expected=f"operator set {needed} or later",
            try_=f"raise_opset(model, {needed})",
        )
    form, scale, zero = own_scales(layer, codes)
    own = to_node(layer, codes.codes()).contiguous()
    result = weight.dtype or ir.DataType.FLOAT
    inside = _scale_type(scale, result, write.opset)
    inputs = [
        write.constant(f"{weight.name}.codes", code_tensor(own, dtype), owner),
        write.constant(f"{weight.name}.scale", scale.numpy().astype(inside.numpy()), owner),
    ]
    is_float = codes.grid.dtype in _FLOATS
    if zero is not None or (form.block is None and not is_float):  # fused kernels look for one, if only of zeros
        zero = torch.zeros_like(scale) if zero is None else zero
        inputs.append(write.constant(f"{weight.name}.zero_point", code_tensor(zero, dtype), owner))
    nodes = [write.node("DequantizeLinear", inputs, f"{name}.dequantize", form.attributes, domain=domain, dtype=inside)]
    if inside != result:
        nodes.append(write.node("Cast", nodes[0].outputs, f"{name}.cast", {"to": result.value}, dtype=result))
    made = nodes[-1].outputs[0]
    made.shape = weight.shape
    readers = {use.node for use in weight.uses()}
    alone = next(iter(readers)) if len(readers) == 1 else owner[0]  # where it is read, so that it is held briefly
    weight.replace_all_uses_with(made, replace_graph_outputs=True)
    owner.insert_before(alone if alone.graph is owner else owner[0], nodes)
    drop_if_unused(weight)
    return made


def code_tensor(codes: Tensor, dtype: ir.DataType) -> NDArray[np.generic] | ir.TensorProtocol:
    """Codes as a tensor of an ONNX type; small ones packed."""
    if codes.is_floating_point() and dtype in _FLOATS.values():
        return ir.Tensor(codes.view(torch.uint8).numpy().view(dtype.numpy()), dtype)
    if dtype.bitwidth < 8:
        packed = pack(codes.reshape(-1).to(torch.int8), Dtype[dtype.name.lower()])
        return ir.PackedTensor(packed.numpy(), dtype, shape=list(codes.shape))
    return codes.numpy().astype(dtype.numpy(), copy=False)


def _scale_type(scale: Tensor, result: ir.DataType, opset: int) -> ir.DataType:
    """The type of the scales: the weight's own, where the operator set and their size allow it."""
    if result == ir.DataType.FLOAT16 and opset >= _HALF:
        half = scale.to(torch.float16)
        if bool(torch.all(half.isfinite() & (half.abs() >= torch.finfo(torch.float16).tiny))):
            return result
    return ir.DataType.FLOAT
