# SPDX-License-Identifier: Apache-2.0
"""Adding to a layer's output: to the bias it has, to a new one where it can have one, else in a node after it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from torch import Tensor

from fewbit.backends.graph.constants import constant, new_constant
from fewbit.backends.graph.editing import narrowed, put_constant
from fewbit.backends.graph.layers import Layer, layers
from fewbit.backends.graph.nodes import only_reader, real, replace_value
from fewbit.backends.graph.shapes import rank
from fewbit.backends.graph.sources import by_output
from fewbit.errors import UsageError, nearest
from fewbit.model.ops import EMBEDDING

Array = NDArray[np.float64]


def shift(model: ir.Model, name: str, amount: Tensor, known: Mapping[str, Layer] | None = None) -> None:
    """Add an amount to the output channels of a layer.

    Args:
        model: the graph.
        name: the layer's node; inside a branch or a loop too.
        amount: `[out]`.
        known: the model's layers by name, if there are many to shift; they stay what they are.

    Raises:
        UsageError: no such layer; an amount of another length, that is not finite, or too large for the layer's type.
    """
    known = {layer.name: layer for layer in layers(model.graph)} if known is None else known
    layer = known.get(name)
    if layer is None or layer.op is EMBEDDING:
        raise UsageError(f"{name!r} is no layer with float weights", expected=nearest(name, known))
    by = _checked(layer, amount)
    if not np.any(by):
        return
    if layer.node.op_type == "MatMul" or not _shift_bias(layer, by):
        _shift_after(layer, by)


def _checked(layer: Layer, amount: Tensor) -> Array:
    by = np.asarray(amount.detach().double().cpu().numpy(), np.float64)
    out = int(by_output(layer).max()) + 1
    if by.shape != (out,) or not np.all(np.isfinite(by)):
        found = f"an amount of shape {by.shape}" if by.shape != (out,) else "an amount that is not finite"
        raise UsageError(f"{found} for {layer.name}", where=layer.name, expected=f"{out} finite numbers")
    return by


def _shift_bias(layer: Layer, amount: Array) -> bool:
    """Into the bias of a convolution or a Gemm; false where the graph computes it."""
    node, index = layer.node, layer.bias
    assert index is not None
    bias = node.inputs[index] if len(node.inputs) > index else None
    before = constant(bias)
    if bias is not None and before is None:
        return False
    if node.op_type == "Gemm":
        beta = real(node, "beta", 1.0)
        if before is None or beta == 0:  # a bias that counts nothing is as good as none
            node.attributes["beta"], before, beta = ir.AttrFloat32("beta", 1.0), None, 1.0
        amount = amount / beta
    like = layer.weight_value if before is None else bias
    assert like is not None and like.const_value is not None
    wide = amount if before is None else np.asarray(before, np.float64) + amount
    made = narrowed(wide, like.const_value.numpy().dtype, layer.name)
    if before is not None:
        put_constant(node, index, made)
        return True
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    node.replace_input_with(index, new_constant(_home(node), like, made, f"{node.name}.bias"))
    return True


def _shift_after(layer: Layer, amount: Array) -> None:
    """Into the constant that is added to a layer's output, or into a new one."""
    node, value = layer.node, layer.node.outputs[0]
    by = _on_channels(layer, amount)
    dtype = layer.weight_value.const_value.numpy().dtype  # type: ignore[union-attr]
    follower = only_reader(node)
    if follower is not None and follower.op_type == "Add" and not follower.domain:
        index = 1 if follower.inputs[0] is value else 0
        added = constant(follower.inputs[index])
        if added is not None and np.prod(np.broadcast_shapes(added.shape, by.shape)) == max(added.size, by.size):
            put_constant(follower, index, narrowed(np.asarray(added, np.float64) + by, dtype, layer.name))
            return
    graph = _home(node)
    bias = new_constant(graph, layer.weight_value, narrowed(by, dtype, layer.name), f"{node.name}.bias")
    add = ir.node("Add", [value, bias], name=f"{node.name}.shift")
    shifted = add.outputs[0]
    shifted.name, shifted.shape, shifted.type = f"{value.name}.shifted", value.shape, value.type
    graph.insert_after(node, add)
    replace_value(graph, value, shifted)
    add.replace_input_with(0, value)  # everyone else reads the sum


def _on_channels(layer: Layer, amount: Array) -> Array:
    """An amount a channel, to be broadcast against the layer's output."""
    if layer.node.op_type == "Gemm" or (layer.node.op_type == "MatMul" and layer.weight == 1):
        return amount
    if layer.node.op_type == "MatMul":
        return amount if rank(layer.node.inputs[layer.reads]) == 1 else amount.reshape(-1, 1)
    return amount.reshape(-1, *(1,) * (len(layer.axes) - 2))


def _home(node: ir.Node) -> ir.Graph:
    assert isinstance(node.graph, ir.Graph)
    return node.graph
