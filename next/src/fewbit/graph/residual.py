# SPDX-License-Identifier: Apache-2.0
"""The residual stream of a transformer: a sum that can be rotated.

A stream is a sum that layers write to and norms read. Rotated, each x becomes x Q with an orthogonal Q: writers take Q
into their outputs, readers into their inputs. What lies between has to commute with Q: sums, norms without gains, and
factors that all channels share. The gain of a norm does not, so it moves into the layers that read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fewbit.errors import UsageError
from fewbit.graph.ir import Graph, Node, constant_view, scalar
from fewbit.graph.layers import input_axis, output_axis, own_name, weight_operand
from fewbit.graph.movement import MOVEMENT, move, with_indices

_PASSING = frozenset({"identity", "cast"})


@dataclass(frozen=True)
class StreamNorm:
    """A norm that reads a stream.

    Args:
        gain: the constant that multiplies, or `None`.
        bias: the constant that is added, or `None`.
        offset: the model multiplies by gain + offset.
        readers: nodes of the layers that read it.
    """

    gain: str | None = None
    bias: str | None = None
    offset: float = 0.0
    readers: tuple[str, ...] = ()


@dataclass(frozen=True)
class ResidualStream:
    """A sum of layers' outputs that can be rotated.

    Args:
        width: its channels.
        writers: nodes of the layers that add to it.
        vectors: constants that are added to it, the channels along their last axis: position embeddings, tokens.
        norms: norms that read it, with the layers behind them.
        readers: nodes of layers that read it without a norm.
        centered: a norm subtracts the mean, so only rotations that keep the direction (1, …, 1) commute.
    """

    width: int
    writers: tuple[str, ...]
    vectors: tuple[str, ...] = ()
    norms: tuple[StreamNorm, ...] = ()
    readers: tuple[str, ...] = ()
    centered: bool = False


def find_residual_stream(graph: Graph) -> ResidualStream:
    """The stream that most norms read.

    Raises:
        UsageError: there is none, or something does not commute with rotations; with every reason.
    """
    walk = _Walk(graph)
    streams = walk.streams()
    if not streams:
        raise _refusal(["no norm reads a sum of layers"])
    space = max(streams, key=lambda root: len(streams[root].norms))
    reasons = walk.reasons_against(space)
    if reasons:
        raise _refusal(reasons)
    return streams[space]


def _refusal(reasons: Sequence[str]) -> UsageError:
    more = [f"and {len(reasons) - 8} more"] if len(reasons) > 8 else []
    return UsageError(
        f"the residual stream cannot be rotated: {'; '.join([*reasons[:8], *more])}",
        code="rotation-stream",
        expected="layers that add to one stream, and a norm in front of each layer that reads it",
        hint="leave rotation out; smooth_quant evens out channels too",
    )


@dataclass(frozen=True)
class _Part:
    """What a value is to a stream: the sum (`plain`), behind a norm's gain (`scaled`), its squares, or its `mean`."""

    space: int
    axis: int
    kind: str
    norm: int | None = None


@dataclass
class _Norm:
    """A norm while its parts are collected."""

    space: int
    gain: str | None = None
    bias: str | None = None
    offset: float = 0.0
    readers: list[str] = field(default_factory=list)


class _Walk:
    """One pass over the graph: which values belong to which stream, and what happens to them."""

    def __init__(self, graph: Graph):
        self._graph = graph
        self._parent: list[int] = []
        self._width: list[int] = []
        self._parts: dict[str, _Part] = {}
        self._norms: list[_Norm] = []
        self._writers: list[tuple[int, str]] = []
        self._readers: list[tuple[int, str]] = []
        self._vectors: list[tuple[int, str]] = []
        self._centered: list[int] = []
        self._reasons: list[tuple[int, str]] = []
        for node in graph.nodes:
            self._visit(node)
        for name in graph.outputs:
            if name in self._parts:
                self._refuse(self._parts[name], f"the model returns {name}, which would be rotated")

    def streams(self) -> dict[int, ResidualStream]:
        """Sums that norms read, by number."""
        spaces = dict.fromkeys(self._root(norm.space) for norm in self._norms)
        return {space: self._stream(space) for space in spaces}

    def _stream(self, space: int) -> ResidualStream:
        def of(pairs: Sequence[tuple[int, str]]) -> tuple[str, ...]:
            return tuple(dict.fromkeys(name for number, name in pairs if self._root(number) == space))

        norms = [norm for norm in self._norms if self._root(norm.space) == space]
        return ResidualStream(
            self._width[space],
            of(self._writers),
            of(self._vectors),
            tuple(StreamNorm(norm.gain, norm.bias, norm.offset, tuple(norm.readers)) for norm in norms),
            of(self._readers),
            any(self._root(number) == space for number in self._centered),
        )

    def reasons_against(self, space: int) -> list[str]:
        """Why a stream cannot be rotated."""
        reasons = [reason for number, reason in self._reasons if self._root(number) == space]
        uses: dict[str, set[object]] = {}
        for node in self._graph.nodes:
            operand = weight_operand(self._graph, node)
            if operand is not None:
                name = own_name(self._graph.constants[operand[1].constant], node)
                uses.setdefault(name, set()).add(self._use_of(node.name, space))
        reasons += [f"{name} is used in several ways" for name, ways in uses.items() if len(ways) > 1]
        return list(dict.fromkeys(reasons))

    def _use_of(self, node: str, space: int) -> tuple[bool, bool, int | None]:
        """Whether a layer writes to a stream, whether it reads it, and behind which norm."""
        writes = any(name == node and self._root(number) == space for number, name in self._writers)
        reads = any(name == node and self._root(number) == space for number, name in self._readers)
        norms = [n for n, norm in enumerate(self._norms) if node in norm.readers and self._root(norm.space) == space]
        return writes, reads, norms[0] if norms else None

    # Spaces: sums that belong together.

    def _root(self, space: int) -> int:
        while self._parent[space] != space:
            self._parent[space] = space = self._parent[self._parent[space]]
        return space

    def _unite(self, one: int, other: int) -> int:
        one, other = sorted((self._root(one), self._root(other)))
        self._parent[other] = one
        return one

    def _refuse(self, part: _Part, reason: str) -> None:
        self._reasons.append((part.space, reason))

    def _stop(self, node: Node) -> None:
        """An operator that does not commute with rotations reads a stream."""
        for name in node.reads:
            if name in self._parts:
                self._refuse(self._parts[name], f"{node.label or node.name} ({node.native or node.op}) reads it")

    # Operators.

    def _visit(self, node: Node) -> None:
        operand = weight_operand(self._graph, node)
        if operand is not None:
            self._layer(node, operand[0])
        elif not any(name in self._parts for name in node.reads):
            return
        elif node.op in _PASSING or (node.op in MOVEMENT and node.op != "concat"):
            self._move(node)
        elif node.op == "concat":
            self._concat(node)
        elif node.op in ("add", "sub"):
            self._sum(node)
        elif node.op in ("mul", "div"):
            self._product(node)
        elif node.op in ("layer_norm", "rms_norm"):
            self._norm(node)
        elif node.attrs.get("fn") == "square" or (node.op == "pow" and scalar(self._graph, node.operand(1)) == 2):
            self._square(node)
        elif node.op == "reduce":
            self._reduce(node)
        else:
            self._stop(node)

    def _part(self, name: str | None) -> _Part | None:
        return self._parts.get(name or "")

    def _layer(self, node: Node, weight: int) -> None:
        """A layer reads a stream along its input channels, and begins another one."""
        read, shape = node.operand(1 - weight), self._graph.dims(node.outputs[0])
        part = self._part(read)
        if part is not None:
            along = input_axis(node, weight) % len(self._graph.dims(read or "") or ())
            if part.axis != along or part.kind not in ("plain", "scaled") or node.attrs.get("groups", 1) > 1:
                self._stop(node)
            elif part.norm is not None:
                self._norms[part.norm].readers.append(node.name)
            else:
                self._readers.append((part.space, node.name))
        if shape is None or node.attrs.get("groups", 1) > 1:
            return
        axis = output_axis(node, weight) % len(shape)
        if shape[axis] > 1:
            space = len(self._parent)
            self._parent.append(space)
            self._width.append(shape[axis])
            self._writers.append((space, node.name))
            self._parts[node.outputs[0]] = _Part(space, axis, "plain")

    def _move(self, node: Node) -> None:
        """Movement keeps a stream if its channels stay the elements of one axis, in order."""
        part, before = self._part(node.operand(0)), self._graph.dims(node.operand(0) or "")
        if part is None or before is None:
            self._stop(node)
            return
        shape = [1] * len(before)
        shape[part.axis] = before[part.axis]
        labels = np.arange(1, before[part.axis] + 1).reshape(shape)
        outputs = [self._graph.dims(name) or () for name in node.outputs]
        moved = [labels] if node.op in _PASSING else move(with_indices(self._graph, node), [labels], [before], outputs)
        for name, result in zip(node.outputs, moved or [np.zeros(0)]):
            axes = [axis for axis, size in enumerate(result.shape) if size > 1]
            if moved is None or len(axes) != 1 or not np.array_equal(result.reshape(-1), labels.reshape(-1)):
                self._stop(node)
                return
            self._parts[name] = replace(part, axis=axes[0])

    def _concat(self, node: Node) -> None:
        """Streams side by side along another axis are one stream: tokens of classes in front of patches."""
        axes = {self._parts[name].axis for name in node.reads if name in self._parts}
        if node.attrs.get("new_axis") or node.attrs["axis"] in axes:
            self._stop(node)
        else:
            self._sum(node)

    def _sum(self, node: Node) -> None:
        """Sums of streams are one stream; constants that are added rotate too, behind a gain they are its bias."""
        rank = len(self._graph.dims(node.outputs[0]) or ())
        constants = [name for name in node.reads if constant_view(self._graph, name) is not None]
        values = [name for name in node.reads if name not in constants]
        parts = [self._parts[name] for name in values if name in self._parts]
        axes = {self._axis_of(name, rank) for name in values}
        kinds = [part.kind for part in parts]
        centers = node.op == "sub" and kinds == ["plain", "mean"]
        alone = len(values) == 1 and kinds[0] in ("plain", "scaled")
        if len(parts) < len(values) or len(axes) > 1 or not (centers or alone or set(kinds) == {"plain"}):
            self._stop(node)
            return
        part = replace(parts[0], axis=axes.pop() or 0)
        for other in parts[1:]:
            self._unite(part.space, other.space)
        for name in constants:
            self._added(node, name, part, rank)
        self._parts[node.outputs[0]] = part

    def _axis_of(self, name: str, rank: int) -> int | None:
        """The channel axis of an operand, counted in the result that it broadcasts to."""
        part = self._parts.get(name)
        return None if part is None else part.axis + rank - len(self._graph.dims(name) or ())

    def _added(self, node: Node, operand: str, part: _Part, rank: int) -> None:
        view, dims = constant_view(self._graph, operand), self._graph.dims(operand) or ()
        position = part.axis - rank + len(dims)
        if scalar(self._graph, operand) == 0:
            return
        channels = dims[position] if position == len(dims) - 1 and dims else 1
        if view is None or channels == 1 or view.axes[position] is None:
            self._stop(node)
        elif part.norm is None:
            self._vectors.append((part.space, view.constant))
        elif self._norms[part.norm].bias is None and len([size for size in dims if size > 1]) == 1:
            self._norms[part.norm].bias = view.constant
        else:
            self._stop(node)

    def _product(self, node: Node) -> None:
        """Factors that all channels share pass; a vector of factors is a norm's gain; x * x is a square."""
        rank = len(self._graph.dims(node.outputs[0]) or ())
        names = [name for name in node.inputs if name is not None]
        if len(names) == 2 and names[0] == names[1] and node.op == "mul":
            self._square(node)
            return
        holders = [name for name in names if name in self._parts]
        if len(holders) != 1 or (node.op == "div" and holders[0] != names[0]):
            self._stop(node)
            return
        axis = self._axis_of(holders[0], rank)
        assert axis is not None
        part = replace(self._parts[holders[0]], axis=axis)
        (other,) = [name for name in names if name != holders[0]]
        dims = self._graph.dims(other) or ()
        position = axis - rank + len(dims)
        if part.kind not in ("plain", "scaled"):
            self._stop(node)
        elif position < 0 or dims[position] == 1:
            self._parts[node.outputs[0]] = part
        else:
            view = constant_view(self._graph, other)
            one_axis = len([size for size in dims if size > 1]) == 1
            if view is None or not one_axis or part.norm is not None or node.op == "div":
                self._stop(node)
                return
            self._norms.append(_Norm(part.space, view.constant, None, view.offset))
            self._parts[node.outputs[0]] = replace(part, kind="scaled", norm=len(self._norms) - 1)

    def _square(self, node: Node) -> None:
        part = self._part(node.operand(0))
        if part is None or part.kind != "plain":
            self._stop(node)
        else:
            self._parts[node.outputs[0]] = replace(part, kind="square")

    def _reduce(self, node: Node) -> None:
        part, fn, axes = self._part(node.operand(0)), node.attrs["fn"], tuple(node.attrs["axes"])
        assert part is not None
        if part.axis in axes:
            if (part.kind, fn) in (("square", "mean"), ("square", "sum"), ("plain", "norm")):
                return  # the length of a vector: the same in every direction
            if part.kind == "plain" and fn == "mean" and axes == (part.axis,) and node.attrs["keepdims"]:
                self._centered.append(part.space)
                self._parts[node.outputs[0]] = replace(part, kind="mean")
                return
            self._stop(node)
        elif part.kind in ("plain", "scaled") and fn in ("mean", "sum"):
            before = sum(axis < part.axis for axis in axes)
            axis = part.axis if node.attrs["keepdims"] else part.axis - before
            self._parts[node.outputs[0]] = replace(part, axis=axis)
        else:
            self._stop(node)

    def _norm(self, node: Node) -> None:
        part = self._part(node.operand(0))
        if part is None or part.kind != "plain" or tuple(node.attrs["axes"]) != (part.axis,):
            self._stop(node)
            return
        views = [constant_view(self._graph, node.operand(index)) for index in (1, 2)]
        if any(node.operand(index) is not None and view is None for index, view in zip((1, 2), views)):
            self._stop(node)
            return
        gain, bias = (view.constant if view is not None else None for view in views)
        self._norms.append(_Norm(part.space, gain, bias, views[0].offset if views[0] is not None else 0.0))
        if node.op == "layer_norm":
            self._centered.append(part.space)
        self._parts[node.outputs[0]] = replace(part, kind="scaled", norm=len(self._norms) - 1)
