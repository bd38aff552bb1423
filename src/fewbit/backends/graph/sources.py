# SPDX-License-Identifier: Apache-2.0
"""Nodes whose constants can scale their output channels: layers, norms, products with a constant a channel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.layers import Layer, layer_of
from fewbit.backends.graph.reshaping import Mark
from fewbit.backends.graph.shapes import rank
from fewbit.model.ops import EMBEDDING

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
_NORMS = {  # scale, shift, the axis of the channels
    "LayerNormalization": (1, 2, -1), "RMSNormalization": (1, None, -1), "SimplifiedLayerNormalization": (1, None, -1),
    "SkipLayerNormalization": (2, 3, -1), "SkipSimplifiedLayerNormalization": (2, None, -1),
    "InstanceNormalization": (1, 2, 1), "GroupNormalization": (1, 2, 1), "BatchNormalization": (1, 2, 1),
}  # fmt: skip


@dataclass(frozen=True)
class Edit:
    """A constant input of a node, and which channel each of its numbers belongs to.

    Args:
        node: the node.
        index: which input.
        channels: broadcast against the constant; -1 for what belongs to none.
    """

    node: ir.Node
    index: int
    channels: Mark


@dataclass(frozen=True)
class Source:
    """A node that can scale its output channels.

    Args:
        node: the node.
        mark: where the channels lie in its first output.
        edits: the constants that scale them.
        is_product: whether it is a product with a constant; a scale from before would pass through it as well.
    """

    node: ir.Node
    mark: Mark
    edits: tuple[Edit, ...]
    is_product: bool = False


def source_of(node: ir.Node) -> Source | None:
    """The node as a source; none if its constants do not scale its channels, or the number of axes is not known."""
    layer = layer_of(node)
    if layer is not None:
        return _layer(layer)
    if node.op_type in _NORMS and node.domain in ("", "ai.onnx", "com.microsoft"):
        return _norm(node)
    return _product(node) if node.op_type == "Mul" and not node.domain else None


def by_output(layer: Layer) -> Mark:
    """The output channel of each number of a layer's weight, in the weight's own layout, to be broadcast."""
    shape = shape_of(layer.weight_value)
    if layer.split:  # [in, out / groups, …]
        each = np.arange(shape[1] * layer.groups).reshape(layer.groups, -1)
        return np.repeat(each, shape[0] // layer.groups, 0).reshape(shape[0], shape[1], *(1,) * (len(shape) - 2))
    return _in_own_layout(layer, layer.stack, np.arange(shape[layer.axes[layer.stack]]))


def by_input(layer: Layer) -> Mark:
    """The input channel of each number of a layer's weight, in the weight's own layout, to be broadcast."""
    shape = shape_of(layer.weight_value)
    inner = shape[layer.axes[layer.stack + 1]]
    if layer.split or layer.groups == 1:
        return _in_own_layout(layer, layer.stack + 1, np.arange(inner))
    each = np.arange(inner * layer.groups).reshape(layer.groups, inner)
    return np.repeat(each, shape[0] // layer.groups, 0).reshape(shape[0], inner, *(1,) * (len(shape) - 2))


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """The shape of a constant."""
    assert value.const_value is not None
    return tuple(int(str(side)) for side in value.const_value.shape)


def has_floats(value: ir.Value | None) -> bool:
    """Whether a value is a constant of floats."""
    if value is None or value.is_graph_input() or value.const_value is None:
        return False
    return value.const_value.dtype in FLOATS


def _in_own_layout(layer: Layer, axis: int, numbers: Mark) -> Mark:
    ours = [1] * len(layer.axes)
    ours[axis] = numbers.size
    return numbers.reshape(ours).transpose(np.argsort(layer.axes))


def _layer(layer: Layer) -> Source | None:
    node, numbers = layer.node, by_output(layer)
    if layer.op is EMBEDDING or not has_floats(layer.weight_value):
        return None
    out = int(numbers.max()) + 1
    edits = [Edit(node, layer.weight, numbers)]
    bias = node.inputs[layer.bias] if layer.bias is not None and len(node.inputs) > layer.bias else None
    if bias is not None and layer.bias is not None:
        if not has_floats(bias):
            return None
        edits.append(Edit(node, layer.bias, np.arange(out)))
    axes = {"Gemm": 2, "MatMul": rank(node.outputs[0])}.get(node.op_type, numbers.ndim)
    if axes is None or axes == 0:
        return None
    axis = {"Gemm": 1, "MatMul": -1 if layer.weight or axes == 1 else -2}.get(node.op_type, 1)
    return Source(node, _along(axis, axes, out), tuple(edits))


def _norm(node: ir.Node) -> Source | None:
    scale, shift, axis = _NORMS[node.op_type]
    axes = rank(node.outputs[0])
    places = [scale] if shift is None or len(node.inputs) <= shift or node.inputs[shift] is None else [scale, shift]
    if axes is None or not all(has_floats(node.inputs[place]) for place in places):
        return None
    shapes = [shape_of(value) for value in (node.inputs[place] for place in places) if value is not None]
    if any(shape != shapes[0] for shape in shapes) or len(shapes[0]) != 1 or shapes[0][0] < 1:
        return None
    count = shapes[0][0]
    if count == node.attributes.get_int("num_groups", -1):  # before operator set 21 the scale is that of a group
        return None
    return Source(node, _along(axis, axes, count), tuple(Edit(node, place, np.arange(count)) for place in places))


def _product(node: ir.Node) -> Source | None:
    index = next((i for i, value in enumerate(node.inputs) if has_floats(value)), None)
    axes = rank(node.outputs[0])
    if index is None or axes is None or has_floats(node.inputs[1 - index]):
        return None
    value = node.inputs[index]
    assert value is not None
    shape = shape_of(value)
    if sum(side > 1 for side in shape) != 1 or len(shape) > axes:
        return None
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    mark = numbers.reshape((1,) * (axes - len(shape)) + shape)
    return Source(node, mark, (Edit(node, index, numbers),), is_product=True)


def _along(axis: int, axes: int, count: int) -> Mark:
    shape = [1] * axes
    shape[axis] = count
    return np.arange(count).reshape(shape)
