# SPDX-License-Identifier: Apache-2.0
"""Edits that rotate a residual stream and the heads of attention; the model computes what it did before.

With an orthogonal Q every x of the stream becomes x Q. A weight with the stream's channels along one of its axes is
multiplied by Q along that axis, whether it writes or reads: `W x = (W Q) (x Q)`. A norm commutes once its gain and bias
are part of the layers that read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fewbit.graph.edits import AddBias, Edit, SetConstant
from fewbit.graph.heads import ValueHeads
from fewbit.graph.ir import Graph, Node
from fewbit.graph.layers import bias_of, own_name, weight_operand
from fewbit.graph.residual import ResidualStream, StreamNorm


def rotation_edits(
    graph: Graph,
    stream: ResidualStream | None,
    rotation: np.ndarray | None,
    heads: Sequence[ValueHeads] = (),
    head_rotations: Mapping[int, np.ndarray] | None = None,
) -> list[Edit]:
    """The edits that rotate a stream and heads.

    A tied weight gets different values under its different names: an edit that names an alias unties it.

    Args:
        graph: of the model.
        stream: from `find_residual_stream`; `None` to leave the stream as it is.
        rotation: [width, width], orthogonal; it keeps the direction (1, …, 1) if the stream is centered.
        heads: from `find_value_heads`.
        head_rotations: by the size of a head.
    """
    work = _Rotation(graph)
    if stream is not None and rotation is not None:
        for name in stream.writers:
            work.rotate_outputs(name, rotation)
        for name in stream.readers:
            work.rotate_inputs(name, rotation)
        for norm in stream.norms:
            work.absorb(norm)
            for name in norm.readers:
                work.rotate_inputs(name, rotation)
        for name in stream.vectors:
            work.constants[name] = work.read(name) @ rotation
    for entry in heads:
        matrix = (head_rotations or {})[entry.size]
        starts = sorted({int(start) for start in entry.channels[:: entry.size]})
        work.rotate_outputs(entry.producer, _by_head(matrix, starts, work.channels(entry.producer, "O")))
        inputs = range(0, len(entry.channels), entry.size)
        work.rotate_inputs(entry.consumer, _by_head(matrix, inputs, len(entry.channels)))
    return work.edits()


def _by_head(matrix: np.ndarray, starts: Sequence[int], width: int) -> np.ndarray:
    """A rotation of some heads; other channels stay."""
    full = np.eye(width)
    for start in starts:
        full[start : start + len(matrix), start : start + len(matrix)] = matrix
    return full


class _Rotation:
    """Constants while they are changed, in float64."""

    def __init__(self, graph: Graph):
        self._graph = graph
        self.constants: dict[str, np.ndarray] = {}
        self._biases: dict[str, np.ndarray] = {}
        self._done: set[tuple[str, str]] = set()

    def read(self, name: str, constant: str | None = None) -> np.ndarray:
        """A constant as it is now; `name` may be an alias of `constant`."""
        if name not in self.constants:
            self.constants[name] = self._graph.constants[constant or name].read().astype(np.float64)
        return self.constants[name]

    def channels(self, node: str, letter: str) -> int:
        """The number of input (I) or output (O) channels of a layer."""
        _, constant, layout = self._weight(self._graph.by_name[node])
        return self._graph.constants[constant].shape[layout.index(letter)]

    def _weight(self, node: Node) -> tuple[str, str, str]:
        """The name of a layer's weight, of tied ones that of the layer itself, the constant, and its layout."""
        operand = weight_operand(self._graph, node)
        assert operand is not None
        constant = self._graph.constants[operand[1].constant]
        return own_name(constant, node), constant.name, operand[2]

    def _multiply(self, node: str, letter: str, matrix: np.ndarray) -> None:
        """Multiply a weight along one of its axes: by a matrix, or by a vector of factors."""
        name, constant, layout = self._weight(self._graph.by_name[node])
        axis = layout.index(letter)
        weight = np.moveaxis(self.read(name, constant), axis, -1)
        self.constants[name] = np.moveaxis(weight @ matrix if matrix.ndim == 2 else weight * matrix, -1, axis)

    def rotate_outputs(self, node: str, matrix: np.ndarray) -> None:
        """Rotate what a layer computes, its bias too."""
        if self._first(node, "O"):
            self._multiply(node, "O", matrix)
            bias, _ = bias_of(self._graph, self._graph.by_name[node])
            if bias is not None:
                self.constants[bias] = self.read(bias) @ matrix
            elif node in self._biases:
                self._biases[node] = self._biases[node] @ matrix

    def rotate_inputs(self, node: str, matrix: np.ndarray) -> None:
        """Let a layer read rotated inputs."""
        if self._first(node, "I"):
            self._multiply(node, "I", matrix)

    def _first(self, node: str, change: str) -> bool:
        """Whether a change of a layer is new: several nodes may call one layer."""
        key = (self._weight(self._graph.by_name[node])[0], change)
        is_new = key not in self._done
        self._done.add(key)
        return is_new

    def absorb(self, norm: StreamNorm) -> None:
        """Move the gain and bias of a norm into the layers that read it."""
        gain = None if norm.gain is None else self.read(norm.gain).reshape(-1) + norm.offset
        bias = None if norm.bias is None else self.read(norm.bias).reshape(-1)
        for node in norm.readers:
            if not self._first(node, "norm"):
                continue
            if bias is not None and bias.any():
                self._add_bias(node, bias)
            if gain is not None:
                self._multiply(node, "I", gain)
        if norm.gain is not None:
            self.constants[norm.gain] = np.full_like(self.read(norm.gain), 1 - norm.offset)
        if norm.bias is not None:
            self.constants[norm.bias] = np.zeros_like(self.read(norm.bias))

    def _add_bias(self, node: str, bias: np.ndarray) -> None:
        name, constant, layout = self._weight(self._graph.by_name[node])
        shift = np.tensordot(self.read(name, constant), bias, (layout.index("I"), 0))
        own, _ = bias_of(self._graph, self._graph.by_name[node])
        if own is not None:
            self.constants[own] = self.read(own) + shift.reshape(self.read(own).shape)
        else:
            self._biases[node] = self._biases.get(node, 0) + shift

    def edits(self) -> list[Edit]:
        """All changes; canonical names before aliases, which then differ."""
        aliases = {alias for constant in self._graph.constants.values() for alias in constant.aliases}
        order = sorted(self.constants, key=lambda name: name in aliases)
        return [
            *(SetConstant(name, self.constants[name]) for name in order),
            *(AddBias(node, bias) for node, bias in self._biases.items()),
        ]
