# SPDX-License-Identifier: Apache-2.0
"""Weights and biases of layers that compute in integers.

Weights are int8, one scale an output channel; biases int32 on the product of that scale and the input's, which is the
only form that every kernel takes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.layers import Layer
from fewbit.backends.graph.units import Unit
from fewbit.backends.graph.weights import to_node
from fewbit.backends.graph.writing import Writer
from fewbit.numerics.qtensor import QTensor

Floats = NDArray[np.float32]
_MOST = 2**30  # of a bias: half of int32, so that the sum of products has room


class Bias(NamedTuple):
    """Where a layer's bias is read, and its values, `[out]` or `[1]`."""

    node: ir.Node
    place: int
    values: NDArray[np.float64]


def write_layer(write: Writer, domain: str, unit: Unit, codes: QTensor, step: float) -> None:
    """Let a layer read its weight and its bias as codes.

    Args:
        write: of the model.
        domain: of DequantizeLinear.
        unit: with the layer.
        codes: of the weight: int8, symmetric, one scale an output channel.
        step: the scale of what the layer reads.
    """
    layer = unit.layer
    assert layer is not None
    weight = layer.weight_value
    bias = bias_of(unit, layer)
    own, scale = _holding(codes, bias, step)
    axis = 1 if layer.split else layer.axes[0]
    array = to_node(layer, own).contiguous().numpy().astype(np.int8)
    # Named for the weight, not for the layer: whoever shares it reads the same codes.
    read = _dequantized(write, domain, f"{weight.name}", f"{unit.name}.weight", array, scale, axis)
    read.type, read.shape = weight.type, weight.shape
    _read_by(layer.node, layer.weight, read)
    if bias is not None:
        product = scale * np.float32(step)
        whole = np.rint(np.broadcast_to(bias.values, product.shape) / product.astype(np.float64)).astype(np.int32)
        name = f"{unit.name}.bias"
        _read_by(bias.node, bias.place, _dequantized(write, domain, name, name, whole, product, 0))


def bias_of(unit: Unit, layer: Layer) -> Bias | None:
    """A layer's bias, in its own node or in the Add that follows."""
    node, index = (layer.node, layer.bias) if unit.bias is None else (unit.bias, None)
    if unit.bias is not None:
        index = next(place for place, value in enumerate(unit.bias.inputs) if constant(value) is not None)
    value = node.inputs[index] if index is not None and len(node.inputs) > index else None
    found = constant(value)
    return None if index is None or found is None else Bias(node, index, np.asarray(found, np.float64).reshape(-1))


def _holding(codes: QTensor, bias: Bias | None, step: float) -> tuple[Tensor, Floats]:
    """Codes and scales that are no smaller than an int32 bias needs: a row of almost nothing beside a large bias would
    have one, and gets fewer codes instead."""
    own, scale = codes.codes(), codes.qparams.step.reshape(-1).float()
    if bias is None:
        return own, scale.numpy()
    least = torch.from_numpy(np.abs(bias.values) / (step * _MOST)).float()
    held = torch.where(scale.abs() < least, least, scale)
    if bool((held != scale).any()):
        share = (scale / held).reshape(-1, *(1,) * (own.ndim - 1))
        own = (own * share).round().to(own.dtype)
    return own, held.numpy()


def _dequantized(
    write: Writer, domain: str, kept: str, name: str, codes: NDArray[np.integer], scale: Floats, axis: int
) -> ir.Value:
    inputs = [
        write.constant(f"{kept}.codes", codes),
        write.constant(f"{kept}.scale", scale),
        write.constant(f"{kept}.zero_point", np.zeros(scale.shape, codes.dtype)),
    ]
    node = write.node("DequantizeLinear", inputs, f"{name}.dequantize", {"axis": axis}, domain=domain)
    return node.outputs[0]


def _read_by(node: ir.Node, index: int, value: ir.Value) -> None:
    producer, graph = value.producer(), node.graph
    assert producer is not None and isinstance(graph, ir.Graph)
    graph.insert_before(node, producer)
    node.replace_input_with(index, value)
