# SPDX-License-Identifier: Apache-2.0
"""Which channels of which weights belong together: the part that rescaling and pruning have in common.

Every value carries labels (see `movement`), and operators relate them. `scaling` asks which factors cancel: an equation
between logarithms of factors. `pruning` asks which channels can only be removed together. Label 0 is a channel that
must stay as it is: of an input or output of the model, or of anything that an operator we do not know reads. So a
missing rule costs an opportunity, never correctness.

Both give families: groups of channels that lie in the same weights in the same way, such as the channels between a norm
and the query, key and value projections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fewbit.graph.ir import ConstantView, Graph, Node, constant_view
from fewbit.graph.movement import MOVEMENT, Labels, compact, fixed, move, varying, with_indices
from fewbit.graph.parity import Equation, solve

Role = Literal["in", "out", "vector"]
"""Input or output channels of a weight (or of a vector that multiplies); a vector that follows them: bias, mean."""


@dataclass(frozen=True, eq=False)
class ChannelUse:
    """Where the groups of a family lie in one constant.

    Args:
        constant: its name.
        node: the layer it belongs to.
        role: what the channels are to the layer.
        view: a shape that the constant is reshaped to; mostly its own.
        index: broadcasts to `view`: the number of the group within the family, -1 for elements of other groups.
        sign: the constant is multiplied by the group's factor (1) or divided by it (-1).
        offset: the model uses constant + offset.
    """

    constant: str
    node: str
    role: Role
    view: tuple[int, ...]
    index: np.ndarray
    sign: int = 1
    offset: float = 0.0

    @property
    def channels(self) -> np.ndarray:
        """For each input channel (role `in`) or output channel of the layer the number of its group, or -1."""
        return self.index.reshape(-1)


@dataclass(frozen=True, eq=False)
class ChannelFamily:
    """Groups of channels that lie in the same constants in the same way.

    Args:
        size: number of groups.
        uses: every place that changes if a group is rescaled or removed.
        inexact: nodes that count channels, such as norms: removing a group changes what they compute of the others.
    """

    size: int
    uses: tuple[ChannelUse, ...]
    inexact: tuple[str, ...] = ()

    def of_role(self, role: Role) -> tuple[ChannelUse, ...]:
        """The uses of one role: `out` are the producers of the channels, `in` their consumers."""
        return tuple(use for use in self.uses if use.role == role)

    def __str__(self) -> str:
        """One line: `16 x v_proj.weight out, o_proj.weight in`."""
        return f"{self.size} x " + ", ".join(f"{use.constant} {'+-'[use.sign < 0]}{use.role}" for use in self.uses)


@dataclass(frozen=True, eq=False)
class _Use:
    """A use before it is known which labels form a group; `axes` of the view are those it can vary along."""

    constant: str
    node: str
    role: Role
    view: tuple[int, ...]
    labels: Labels
    axes: tuple[int, ...]
    sign: int
    offset: float


class ChannelAnalysis:
    """Labels, equations between them, and where they lie in constants; subclasses say what operators do to them."""

    _follows_indices = True
    """Whether indices that are constants of the model are looked at."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self._first: dict[str, int] = {}
        self._count = 1
        self._known_fixed = np.zeros(0, np.int64)
        self.families: tuple[ChannelFamily, ...] = ()
        """The result, in the order in which the model computes the channels."""

    def _run(self) -> None:
        """One pass over the graph; labels have the same numbers in every pass."""
        self._labels: dict[str, Labels] = {}
        self._uses: list[_Use] = []
        self._equations: list[Equation] = []
        self._counted: list[tuple[str, Labels]] = []
        for node in self.graph.nodes:
            names = (*node.inputs, *node.outputs)
            if node.op == "opaque" or any(name is not None and self.graph.dims(name) is None for name in names):
                self._opaque(node)
            else:
                self._visit(node)
        for name in self.graph.outputs:
            self._fix(self._get(name))
        self._fix(self._known_fixed)
        self._tie_shared_constants()
        self._resolve()

    def _resolve(self) -> None:
        self._groups, self._signs = solve(self._count, self._equations)

    def _visit(self, node: Node) -> None:
        raise NotImplementedError

    def _opaque(self, node: Node) -> None:
        for name in node.reads:
            self._fix(self._get(name))

    # Labels of values.

    def _rank(self, name: str) -> int:
        return len(self.graph.dims(name) or ())

    def _get(self, name: str | None) -> Labels:
        """The labels of a value; inputs of the model, constants and what opaque nodes compute are fixed."""
        return self._labels.get(name or "", fixed(self._rank(name or "")))

    def _put(self, name: str, labels: Labels) -> None:
        self._labels[name] = compact(labels) if labels.any() else fixed(labels.ndim)

    def _lift(self, name: str, rank: int) -> Labels:
        """The labels of an operand that broadcasts to `rank` axes."""
        labels = self._get(name)
        return labels.reshape((1,) * (rank - labels.ndim) + labels.shape)

    def _lift_dims(self, name: str, rank: int) -> tuple[int, ...]:
        dims = self.graph.dims(name) or ()
        return (1,) * (rank - len(dims)) + dims

    def _fresh(self, node: Node, count: int, rank: int, axis: int) -> Labels:
        """New labels along one axis, for the channels that a node creates."""
        start = self._first.setdefault(node.name, self._count)
        self._count = max(self._count, start + count)
        shape = [1] * rank
        shape[axis] = count
        return np.arange(start, start + count).reshape(shape)

    def _move(self, node: Node) -> None:
        """Data movement: executed on the labels."""
        moved = [name for name in (node.inputs if node.op == "concat" else node.inputs[:1]) if name is not None]
        labels = [self._get(name) for name in moved]
        if not any(array.any() for array in labels):
            return
        shapes = [self.graph.dims(name) or () for name in moved]
        resolved = with_indices(self.graph, node) if self._follows_indices else node
        results = move(resolved, labels, shapes, [self.graph.dims(name) or () for name in node.outputs])
        if results is None:
            self._opaque(node)
            return
        for name, result in zip(node.outputs, results):
            self._put(name, result)

    # Equations.

    def _link(self, one: Labels, other: Labels, sign: int = 1) -> None:
        """The equation one = sign * other, elementwise."""
        one, other = np.broadcast_arrays(one, other)
        pairs = np.stack([one.reshape(-1), other.reshape(-1)])
        pairs = pairs[:, (pairs != 0).any(0)] if sign < 0 else pairs[:, pairs[0] != pairs[1]]
        if pairs.size:
            self._equations.append((pairs[0], pairs[1], sign))

    def _fix(self, labels: Labels) -> None:
        """These channels must stay as they are."""
        self._link(labels, np.zeros(1, np.int64))

    def _collapse(self, labels: Labels, axis: int) -> Labels:
        """Labels that depend on one axis only: along the others they have to be equal."""
        for other in varying(labels):
            if other != axis % labels.ndim:
                first = labels.take([0], other)
                self._link(labels, first)
                labels = first
        return labels

    def _fix_along(self, labels: Labels, axes: Sequence[int]) -> Labels:
        """Labels if they do not depend on some axes; otherwise they are fixed."""
        if all(labels.shape[axis] == 1 for axis in axes):
            return labels
        self._fix(labels)
        return fixed(labels.ndim)

    # Constants.

    def _use(
        self,
        node: Node,
        view: ConstantView,
        labels: Labels,
        role: Role,
        sign: int = 1,
        shape: tuple[int, ...] | None = None,
        axes: tuple[int, ...] | None = None,
    ) -> None:
        """Channels lie in a constant; `labels` broadcast to `shape`, by default that of the constant."""
        constant = self.graph.constants[view.constant]
        if not constant.stored:
            self._fix(labels)
            return
        shape = constant.shape if shape is None else shape
        axes = tuple(varying(labels)) if axes is None else axes
        self._uses.append(_Use(view.constant, node.name, role, shape, labels, axes, sign, view.offset))

    def _use_vector(self, node: Node, operand: str | None, labels: Labels, role: Role, sign: int = 1) -> bool:
        """Channels lie in an operand that broadcasts from the right to the rank of the labels.

        Returns:
            Whether it can follow: not if it is computed, or is one number for channels that differ.
        """
        view, dims = constant_view(self.graph, operand), self.graph.dims(operand or "")
        if view is None or dims is None or not labels.any():
            return view is not None
        more = labels.ndim - len(dims)
        sizes: tuple[int, ...] = labels.shape[more:]
        if more < 0 or max(labels.shape[:more], default=1) > 1:
            return False
        if any(size > 1 and (size != dim or axis is None) for size, dim, axis in zip(sizes, dims, view.axes)):
            return False
        pairs = sorted((axis, size) for axis, size in zip(view.axes, sizes) if axis is not None)
        order = np.argsort([axis for axis in view.axes if axis is not None])
        own = labels.reshape([size for axis, size in zip(view.axes, sizes) if axis is not None]).transpose(order)
        stored = [1] * len(self.graph.constants[view.constant].shape)
        for axis, size in pairs:
            stored[axis] = size
        self._use(node, view, own.reshape(stored), role, sign)
        return True

    def _tie_shared_constants(self) -> None:
        """A constant that several nodes read has to change in the same way for each of them."""
        readers: dict[str, list[str]] = {}
        for node in self.graph.nodes:
            if constant_view(self.graph, node.outputs[0] if node.outputs else None) is None:
                for name in node.reads:
                    view = constant_view(self.graph, name)
                    if view is not None:
                        readers.setdefault(view.constant, []).append(node.name)
        returned = {view.constant for name in self.graph.outputs if (view := constant_view(self.graph, name))}
        by_constant: dict[str, dict[str, list[_Use]]] = {}
        for use in self._uses:
            by_constant.setdefault(use.constant, {}).setdefault(use.node, []).append(use)
        for constant, by_node in by_constant.items():
            nodes = readers[constant]
            first, *others = by_node.values()
            if len(nodes) > len(by_node) or constant in returned:
                for use in [use for uses in by_node.values() for use in uses]:
                    self._fix(use.labels)
            for uses in others:
                self._tie(first, uses)
        self._uses = [use for use in self._uses if next(iter(by_constant[use.constant])) == use.node]

    def _tie(self, first: list[_Use], second: list[_Use]) -> None:
        """Two nodes read one constant: what each would multiply an axis by has to be the same."""
        places: dict[object, tuple[list[_Use], list[_Use]]] = {}
        for side, uses in enumerate((first, second)):
            for use in uses:
                places.setdefault((use.view, use.axes, use.offset), ([], []))[side].append(use)
        for ones, others in places.values():
            if len(ones) == len(others):
                for one, other in zip(ones, others):
                    self._link(one.labels, other.labels, one.sign * other.sign)
            else:
                for use in (*ones, *others):
                    self._fix(use.labels)

    # The result.

    def _collect(self) -> tuple[ChannelFamily, ...]:
        """Free groups, those that lie in the same constants in the same way together."""
        members: dict[int, list[tuple[int, int]]] = {}
        for number, use in enumerate(self._uses):
            signs = self._signs[use.labels] * use.sign
            pairs = np.unique(np.stack([self._groups[use.labels].reshape(-1), signs.reshape(-1)]), axis=1)
            for group, sign in pairs.T.tolist():
                if group >= 0:
                    members.setdefault(group, []).append((number, sign))
        families: dict[tuple[tuple[int, int], ...], list[tuple[int, int]]] = {}
        for group, uses in members.items():
            number, sign = uses[0]
            # The sign of a group is arbitrary: producers are multiplied, consumers divided.
            flip = sign if self._uses[number].role != "in" else -sign
            families.setdefault(tuple((number, sign * flip) for number, sign in uses), []).append((group, flip))
        self._members: list[list[int]] = []
        return tuple(self._family(places, groups) for places, groups in families.items())

    def _family(self, places: Sequence[tuple[int, int]], groups: list[tuple[int, int]]) -> ChannelFamily:
        first = self._groups[self._uses[places[0][0]].labels].reshape(-1)
        order = {int(group): position for position, group in reversed(list(enumerate(first)))}
        groups = sorted(groups, key=lambda pair: order[pair[0]])
        self._members.append([group for group, _ in groups])
        number_of, flips = np.full(self._count + 1, -1), np.ones(self._count + 1, np.int64)  # [-1] is "not free"
        for number, (group, flip) in enumerate(groups):
            number_of[group], flips[group] = number, flip
        uses = []
        for position, sign in places:
            use = self._uses[position]
            group = self._groups[use.labels]
            index = np.where(self._signs[use.labels] * use.sign * flips[group] == sign, number_of[group], -1)
            uses.append(ChannelUse(use.constant, use.node, use.role, use.view, index, sign, use.offset))
        ids = {group for group, _ in groups}
        inexact = [node for node, labels in self._counted if not ids.isdisjoint(self._groups[labels].reshape(-1))]
        return ChannelFamily(len(groups), tuple(uses), tuple(dict.fromkeys(inexact)))


__all__ = ["MOVEMENT", "ChannelAnalysis", "ChannelFamily", "ChannelUse", "Role"]
