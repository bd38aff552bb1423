# SPDX-License-Identifier: Apache-2.0
"""Folding: batch norms and other factors and shifts per channel become part of the layer in front of them.

A quantized layer then has one weight and one bias, and nothing between it and its activation. All is computed in
float64: a variance near zero would lose digits otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import dataclass

import numpy as np

from fewbit.graph.edits import AddBias, Edit, ReplaceNode, SetConstant
from fewbit.graph.ir import Graph, Node, constant_view
from fewbit.graph.layers import Layer, bias_of, layers, output_axis


@dataclass(frozen=True, eq=False)
class Folded:
    """A layer that took over the operators behind it.

    Args:
        layer: its name.
        nodes: the nodes that pass their input on afterwards.
        edits: what to apply.
    """

    layer: str
    nodes: tuple[str, ...]
    edits: tuple[Edit, ...]


def fold_channelwise(
    graph: Graph, operators: Collection[str] = ("batch_norm", "mul", "div", "add", "sub")
) -> tuple[Folded, ...]:
    """Fold batch norms, and products and sums with one number per channel, into the layers in front of them.

    A layer takes over what directly follows it, as long as nothing else reads the values between. Constants that are
    used elsewhere too are left alone.

    Args:
        graph: with example shapes.
        operators: those to fold; of a PyTorch module only norms, which are modules, can be replaced.

    Returns:
        One entry per layer; apply all edits, then read the graph again.
    """
    readers: dict[str, int] = {}
    for node in graph.nodes:
        for name in dict.fromkeys(node.reads):
            view = constant_view(graph, name)
            if view is not None and constant_view(graph, node.outputs[0] if node.outputs else None) is None:
                readers[view.constant] = readers.get(view.constant, 0) + 1
    shared = {name for name, count in readers.items() if count > 1 and graph.constants[name].stored}
    single = [layer for layer in layers(graph) if layer.op != "gather" and len(layer.nodes) == 1]
    folded = [_fold(graph, layer, operators, shared) for layer in single]
    return tuple(result for result in folded if result is not None)


def _fold(graph: Graph, layer: Layer, operators: Collection[str], shared: Set[str]) -> Folded | None:
    weight = graph.constants[layer.weight]
    node = graph.by_name[layer.nodes[0]]
    bias, value = bias_of(graph, node)
    own = [name for name in (layer.weight, bias) if name is not None]
    if any(not graph.constants[name].stored or name in shared for name in own):
        return None
    gain, shift = np.ones(layer.out_channels), np.zeros(layer.out_channels)
    nodes, edits = [], list[Edit]()
    while (step := _next_affine(graph, node, value)) is not None:
        follower, factor, term = step
        if follower.op not in operators or not shared.isdisjoint(follower.reads):
            break
        if not np.isfinite(factor).all() or not np.isfinite(term).all():
            break
        gain, shift = gain * factor, shift * factor + term
        nodes.append(follower.name)
        edits.append(ReplaceNode(follower.name, "identity", (value,)))
        value = follower.outputs[0]
    if not nodes:
        return None
    axes = layer.axes
    stored = weight.read().astype(np.float64).reshape(axes.view) * gain.reshape(axes.out_shape)
    changes: list[Edit] = [SetConstant(layer.weight, stored.reshape(layer.shape))]
    if bias is not None:
        old = graph.constants[bias].read().astype(np.float64)
        changes.append(SetConstant(bias, (old.reshape(-1) * gain + shift).reshape(old.shape)))
    elif shift.any():
        changes.append(AddBias(node.name, shift))
    return Folded(layer.name, tuple(nodes), (*changes, *edits))


def _next_affine(graph: Graph, layer: Node, value: str) -> tuple[Node, np.ndarray, np.ndarray] | None:
    """The node behind a value if it multiplies and shifts each channel: node, factors, terms."""
    consumers = graph.consumers.get(value, [])
    if len(consumers) != 1 or value in graph.outputs:
        return None
    node, index = consumers[0]
    dims = graph.dims(value)
    if dims is None or index is None:
        return None
    axis = output_axis(layer, 1) % len(dims)
    if node.op == "batch_norm" and index == 0 and node.attrs["axis"] == axis:
        return _batch_norm(graph, node)
    if node.op not in ("add", "sub", "mul", "div") or (node.op == "div" and index == 1):
        return None
    vector = _vector(graph, node.operand(1 - index), len(dims), axis, dims[axis])
    if vector is None or graph.dims(node.outputs[0]) != dims:
        return None
    one, zero = np.ones(dims[axis]), np.zeros(dims[axis])
    if node.op == "mul":
        return node, vector, zero
    if node.op == "div":
        return (node, 1 / vector, zero) if vector.all() else None
    if node.op == "add":
        return node, one, vector
    return (node, one, -vector) if index == 0 else (node, -one, vector)


def _batch_norm(graph: Graph, node: Node) -> tuple[Node, np.ndarray, np.ndarray] | None:
    names = [node.operand(index) for index in range(1, 5)]
    arrays = [None if name is None else _read(graph, name) for name in names]
    mean, variance = arrays[2], arrays[3]
    if mean is None or variance is None or any(name and array is None for name, array in zip(names, arrays)):
        return None
    weight = np.ones_like(mean) if arrays[0] is None else arrays[0]
    bias = np.zeros_like(mean) if arrays[1] is None else arrays[1]
    factor = weight / np.sqrt(variance + node.attrs["eps"])
    return node, factor, bias - mean * factor


def _read(graph: Graph, operand: str) -> np.ndarray | None:
    view = constant_view(graph, operand)
    if view is None:
        return None
    return graph.constants[view.constant].read().astype(np.float64).reshape(-1) + view.offset


def _vector(graph: Graph, operand: str | None, rank: int, axis: int, count: int) -> np.ndarray | None:
    """A constant with one number, or one per channel."""
    dims = graph.dims(operand or "")
    values = _read(graph, operand) if operand is not None else None
    if values is None or dims is None or len(dims) > rank:
        return None
    long = [position + rank - len(dims) for position, size in enumerate(dims) if size > 1]
    if long not in ([], [axis]) or values.size not in (1, count):
        return None
    return np.broadcast_to(values, count).astype(np.float64)


__all__ = ["Folded", "fold_channelwise"]
