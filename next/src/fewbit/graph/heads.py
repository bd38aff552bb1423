# SPDX-License-Identifier: Apache-2.0
"""The heads of attention whose values can be rotated.

Attention mixes values over positions, head by head and all channels of a head alike. So the channels of a head can be
rotated between the layer that computes them and the one that reads what attention makes of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fewbit.graph.ir import Graph, Node, constant_view
from fewbit.graph.layers import weight_operand
from fewbit.graph.movement import MOVEMENT, move, with_indices

_PASSING = frozenset({"identity", "cast"})


@dataclass(frozen=True, eq=False)
class ValueHeads:
    """Heads of attention whose values can be rotated.

    Args:
        producer: node of the layer that computes the values.
        consumer: node of the layer that reads what attention makes of them.
        size: channels of a head.
        channels: for each input channel of the consumer the output channel of the producer; several heads of queries
            may share one of values.
    """

    producer: str
    consumer: str
    size: int
    channels: np.ndarray


def find_value_heads(graph: Graph) -> tuple[ValueHeads, ...]:
    """The heads of every attention whose values come from one layer and go to one layer, unchanged on the way."""
    heads = []
    for node in graph.nodes:
        operand = _values_of(graph, node)
        if operand is None:
            continue
        produced, read = _source(graph, operand), _reader(graph, node.outputs[0])
        size = (graph.dims(operand) or (1,))[-1]
        if produced is None or read is None or size == 1:
            continue
        channels = _followed(graph, produced, read, node, operand)
        starts = channels[::size] if channels is not None and len(channels) % size == 0 else None
        if channels is None or starts is None or not starts.all():
            continue
        if np.array_equal(channels, (starts[:, None] + np.arange(size)).reshape(-1)):
            heads.append(ValueHeads(produced.name, read[0].name, size, channels - 1))
    return tuple(heads)


def _values_of(graph: Graph, node: Node) -> str | None:
    """The values that a node mixes over positions: of attention, or of a product with a softmax."""
    if node.op == "attention":
        return node.operand(2)
    if node.op != "matmul" or weight_operand(graph, node) is not None or node.attrs.get("transpose_b"):
        return None
    source = graph.producers.get(node.operand(0) or "")
    while source is not None and (source.op in _PASSING or source.op in ("reshape", "expand", "slice")):
        source = graph.producers.get(source.operand(0) or "")
    return node.operand(1) if source is not None and source.op == "softmax" else None


def _source(graph: Graph, value: str) -> Node | None:
    """The layer that computes a value, with nothing but data movement in between."""
    node = graph.producers.get(value)
    while node is not None and _moves(graph, node):
        node = graph.producers.get(node.operand(0) or "")
    return node if node is not None and weight_operand(graph, node) is not None and node.op == "matmul" else None


def _moves(graph: Graph, node: Node) -> bool:
    """Whether a node only moves the data of its first input."""
    others_constant = all(constant_view(graph, name) is not None for name in node.reads[1:])
    return others_constant and (node.op in _PASSING or node.op in MOVEMENT - {"concat"})


def _reader(graph: Graph, value: str) -> tuple[Node, str] | None:
    """The one layer that reads a value, with nothing but data movement in between, and what it reads."""
    while True:
        readers = graph.consumers.get(value, [])
        if len(readers) != 1 or value in graph.outputs:
            return None
        node = readers[0][0]
        operand = weight_operand(graph, node)
        if operand is not None:
            return (node, value) if node.op == "matmul" and operand[0] == 1 else None
        if node.op not in _PASSING and node.op not in ("reshape", "transpose"):
            return None
        value = node.outputs[0]


def _followed(graph: Graph, source: Node, reader: tuple[Node, str], attention: Node, operand: str) -> np.ndarray | None:
    """The producer's output channel, counted from 1, behind each input channel of the reader.

    Returns:
        `None` if they cannot be followed, or if anything else reads the values.
    """
    shape = graph.dims(source.outputs[0]) or ()
    labels = {source.outputs[0]: np.arange(1, shape[-1] + 1).reshape([1] * (len(shape) - 1) + [-1])}
    others: list[np.ndarray] = []
    for node in graph.nodes:
        if node is attention:
            mixed = graph.dims(node.outputs[0])
            if operand not in labels or mixed is None or labels[operand].shape[-2] > 1:
                return None
            values = labels[operand]
            if values.ndim > 2 and values.shape[-3] > 1:
                values = np.repeat(values, mixed[-3] // values.shape[-3], -3)
            labels[node.outputs[0]] = values
            others += [labels[name] for name in node.reads if name in labels and name != operand]
        elif node.operand(0) in labels and _moves(graph, node):
            moved = _moved(graph, node, labels[node.inputs[0] or ""])
            labels.update(zip(node.outputs, moved or []))
            others += [labels[node.inputs[0] or ""]] if moved is None else []
        elif node is not reader[0]:
            others += [labels[name] for name in node.reads if name in labels]
    others += [labels[name] for name in graph.outputs if name in labels]
    result = labels.get(reader[1])
    if result is None or max(result.shape[:-1], default=1) > 1 or any(np.isin(result, other).any() for other in others):
        return None
    return result.reshape(-1)


def _moved(graph: Graph, node: Node, labels: np.ndarray) -> list[np.ndarray] | None:
    if node.op in _PASSING:
        return [labels]
    before, after = graph.dims(node.inputs[0] or "") or (), [graph.dims(name) or () for name in node.outputs]
    return move(with_indices(graph, node), [labels], [before], after)
