# SPDX-License-Identifier: Apache-2.0
"""Which channels can be removed, and which only together, found on the neutral graph of a model.

A residual sum couples the layers it adds, a head split the channels of a head, a grouped convolution those of a group.
Without a group the model computes what it would if all that reads the group's channels had zero weights for them. That
is exact but for operators that count channels, such as norms; families name those as `inexact`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from fewbit.errors import UsageError
from fewbit.graph.channels import MOVEMENT, ChannelAnalysis, ChannelFamily, Role
from fewbit.graph.edits import RemoveChannels
from fewbit.graph.ir import ConstantView, Graph, Node, constant_view
from fewbit.graph.layers import WeightAxes, input_axis, output_axis, weight_operand
from fewbit.graph.movement import Labels, fixed, varying

ELEMENTWISE = frozenset(
    {
        "relu",
        "leaky_relu",
        "neg",
        "abs",
        "clip",
        "unary",
        "add",
        "sub",
        "mul",
        "div",
        "max",
        "min",
        "pow",
        "where",
        "prelu",
    }
)


def prune_families(graph: Graph) -> tuple[ChannelFamily, ...]:
    """Every family of removable channels; check those without `inexact` nodes with `check_removable`."""
    return PruneAnalysis(graph).families


class PruneAnalysis(ChannelAnalysis):
    """The channels that are removed together.

    Attributes:
        families: see `prune_families`.
    """

    def __init__(self, graph: Graph):
        super().__init__(graph)
        self._run()
        while self._make_rectangular():
            pass
        families = self._collect()
        # A group that is all the channels of a layer cannot go.
        partial = [f.size > 1 or all((use.index < 0).any() for use in f.uses) for f in families]
        self.families = tuple(family for family, removable in zip(families, partial) if removable)
        self._members = [members for members, removable in zip(self._members, partial) if removable]

    def removal(self, chosen: Mapping[int, Sequence[int]]) -> RemoveChannels:
        """The edit that removes groups.

        Args:
            chosen: for each family, by its position in `families`, the numbers of the groups to remove.

        Raises:
            UsageError: a layer would lose all its channels.
        """
        gone = np.zeros(self._count + 1, bool)  # [-1] is "not free"
        for position, numbers in chosen.items():
            members = self._members[position]
            gone[[members[number] for number in numbers]] = True
        keep: dict[tuple[str, int], np.ndarray] = {}
        for use in self._uses:
            mask = ~gone[self._groups[use.labels]]
            for axis in varying(use.labels):
                keep[use.constant, axis] = np.flatnonzero(mask.reshape(-1))
        keep = {place: kept for place, kept in keep.items() if len(kept) < self._size(place)}
        shapes = {}
        for name, labels in self._labels.items():
            shape = self._shape_without(name, gone[self._groups[labels]])
            if shape != self.graph.dims(name):
                shapes[name] = shape
        for name in self.graph.producers:  # weights behind casts, transpositions and the like
            view = constant_view(self.graph, name)
            if view is not None:
                sizes = zip(self.graph.dims(name) or (), view.axes)
                shape = tuple(size if a is None else len(keep.get((view.constant, a), range(size))) for size, a in sizes)
                if shape != self.graph.dims(name):
                    shapes[name] = shape
        empty = [constant for (constant, _), kept in keep.items() if not len(kept)]
        if empty:
            raise UsageError(
                f"{', '.join(sorted(set(empty))[:4])} would lose all channels",
                code="prune-all",
                expected="at least one group left in every layer",
                hint="remove fewer",
            )
        attrs = {}
        for node in self.graph.nodes:
            changed = self._changed_attrs(node, shapes, gone)
            attrs[node.name] = {name: value for name, value in changed.items() if value != node.attrs[name]}
        return RemoveChannels(keep, shapes, {name: changed for name, changed in attrs.items() if changed})

    def _size(self, place: tuple[str, int]) -> int:
        return self.graph.constants[place[0]].shape[place[1]]

    def _shape_without(self, name: str, gone: np.ndarray) -> tuple[int, ...]:
        """A shape without the indices all of whose elements are removed."""
        dims = list(self.graph.dims(name) or ())
        for axis in varying(gone):
            dims[axis] = int(_staying(gone, axis).sum())
        return tuple(dims)

    def _changed_attrs(self, node: Node, shapes: Mapping[str, tuple[int, ...]], gone: np.ndarray) -> dict[str, Any]:
        """Attributes that count channels."""
        data, attrs = node.operand(0) or "", node.attrs
        if data not in shapes and not any(name in shapes for name in node.outputs):
            return {}
        if node.op in ("conv", "conv_transpose", "group_norm") and attrs.get("groups", 1) > 1:
            axis = attrs["axis"] if node.op == "group_norm" else str(attrs["data"]).index("C")
            before, after = (self.graph.dims(data) or ())[axis], shapes.get(data, self.graph.dims(data) or ())[axis]
            return {"groups": attrs["groups"] * after // before}
        if node.op == "split":
            sizes = [shapes.get(name, self.graph.dims(name) or ()) for name in node.outputs]
            return {} if attrs.get("drop") else {"sizes": tuple(size[attrs["axis"]] for size in sizes)}
        if node.op == "slice" and self._labels[data].shape[attrs["axis"]] > 1:
            return self._changed_slice(node, gone[self._groups[self._labels[data]]])
        if node.op == "gather" and "indices" in attrs and self._labels[data].shape[attrs["axis"]] > 1:
            stays = _staying(gone[self._groups[self._labels[data]]], attrs["axis"])
            number = np.cumsum(stays) - 1
            return {"indices": tuple(int(number[index]) for index in np.ravel(attrs["indices"]) if stays[index])}
        return {}

    def _changed_slice(self, node: Node, gone: np.ndarray) -> dict[str, Any]:
        axis = node.attrs["axis"]
        stays = _staying(gone, axis)
        chosen = np.arange(len(stays))[node.attrs["start"] : node.attrs["stop"] : node.attrs["step"]]
        chosen = chosen[stays[chosen]]
        number = np.cumsum(stays) - 1
        if not len(chosen):
            return {}
        first, last = int(number[chosen[0]]), int(number[chosen[-1]])
        if node.attrs["step"] < 0:
            return {"start": first, "stop": last - 1 if last else None}
        return {"start": first, "stop": last + 1}

    # Labels.

    def _put(self, name: str, labels: Labels) -> None:
        super()._put(name, labels)
        if labels.any() and not varying(self._labels[name]):
            # One channel: nothing would be left.
            self._fix(self._labels[name])
            self._labels[name] = fixed(labels.ndim)

    def _line(self, name: str | None) -> Labels:
        """Labels of a value that an operator reads as a rectangle: they depend on one axis, the outermost.

        Data movement in between may depend on several: [3, heads, features] of fused projections falls into three
        parts first.
        """
        labels = self._get(name)
        axes = varying(labels)
        if len(axes) > 1:
            labels = self._collapse(labels, axes[0])
            self._labels[name or ""] = labels
        return labels

    def _make_rectangular(self) -> bool:
        """Couple what has to be removed together so that every value stays a rectangle; whether that was needed."""
        before = len(self._equations)
        for labels in self._labels.values():
            groups = self._groups[labels]
            axes = [axis for axis in varying(labels) if (groups != groups.take([0], axis)).any()]
            if len(axes) > 1:
                self._collapse(labels, axes[0])
        if len(self._equations) == before:
            return False
        self._resolve()
        return True

    def _visit(self, node: Node) -> None:
        op, out = node.op, node.outputs[0]
        if op in ("conv", "conv_transpose"):
            self._conv(node)
        elif op == "matmul":
            self._matmul(node)
        elif op == "gather" and weight_operand(self.graph, node) is not None:
            self._embedding(node)
        elif op == "concat":
            self._concat(node)
        elif op in MOVEMENT:
            self._move(node)
        elif op in ("identity", "cast"):
            self._put(out, self._get(node.operand(0)))
        elif op in ELEMENTWISE:
            self._elementwise(node)
        elif op in ("softmax", "cumsum", "max_pool", "avg_pool", "resize"):
            self._put(out, self._fix_along(self._line(node.operand(0)), _mixed_axes(node)))
        elif op == "reduce":
            self._reduce(node)
        elif op in ("batch_norm", "layer_norm", "rms_norm", "group_norm"):
            self._norm(node)
        elif op == "attention":
            self._attention(node)
        else:
            self._opaque(node)

    # Layers.

    def _use_axis(self, node: Node, view: ConstantView, axis: int, labels: Labels, role: Role) -> None:
        """Channels along one stored axis of a constant."""
        shape = self.graph.constants[view.constant].shape
        stored = [1] * len(shape)
        stored[axis] = shape[axis]
        full = np.broadcast_to(labels.reshape(-1), shape[axis]).reshape(stored)
        self._use(node, view, full, role, axes=(axis,))

    def _outputs(self, node: Node, count: int, axis: int) -> Labels:
        rank = self._rank(node.outputs[0])
        return self._fresh(node, count, rank, axis) if count > 1 else fixed(rank)

    def _bias(self, node: Node, labels: Labels) -> None:
        bias = node.operand(2)
        if bias is None:
            return
        if constant_view(self.graph, bias) is None:
            self._link(labels, self._lift(bias, labels.ndim))
        elif not self._use_vector(node, bias, labels.reshape(-1) if node.op != "matmul" else labels, "vector"):
            self._fix(labels)

    def _conv(self, node: Node) -> None:
        operand = weight_operand(self.graph, node)
        labels, channels = self._line(node.operand(0)), input_axis(node, 1)
        if operand is None or varying(labels) not in ([], [channels]):
            self._opaque(node)
            return
        _, view, layout = operand
        shape, groups = self.graph.constants[view.constant].shape, int(node.attrs.get("groups", 1))
        axes = WeightAxes(layout, shape, groups, transposed=node.op == "conv_transpose")
        if groups == 1:
            new = self._outputs(node, prod(axes.out_shape), channels)
            self._use_axis(node, view, layout.index("I"), labels, "in")
            self._use_axis(node, view, layout.index("O"), new, "out")
        else:
            # Whole groups: their inputs, and their outputs with them.
            inputs = np.broadcast_to(labels.reshape(-1), prod(axes.in_shape)).reshape(groups, -1)
            self._link(inputs, inputs[:, :1])
            per_group = prod(axes.out_shape) // groups
            outputs = np.repeat(inputs[:, 0], per_group)
            new = outputs.reshape([len(outputs) if axis == channels else 1 for axis in range(labels.ndim)])
            stored = "G" if "G" in layout else "I" if node.op == "conv_transpose" else "O"
            along = {"G": inputs[:, 0], "I": inputs.reshape(-1), "O": outputs}[stored]
            self._use_axis(node, view, layout.index(stored), along, "out")
        self._bias(node, new)
        self._put(node.outputs[0], new)

    def _matmul(self, node: Node) -> None:
        operand = weight_operand(self.graph, node)
        if operand is None:
            self._product_of_values(node)
            return
        index, view, layout = operand
        labels, axis = self._line(node.operand(1 - index)), input_axis(node, index)
        if labels.ndim < 2:
            self._opaque(node)
            return
        if varying(labels) not in ([], [axis % labels.ndim]):
            # The weight mixes positions, and a channel passes as a row of the product.
            if (index, axis) == (1, -1):
                self._put(node.outputs[0], labels)
            else:
                self._opaque(node)
            return
        shape = self.graph.constants[view.constant].shape
        new = self._outputs(node, shape[layout.index("O")], output_axis(node, index))
        self._use_axis(node, view, layout.index("I"), labels, "in")
        self._use_axis(node, view, layout.index("O"), new, "out")
        self._bias(node, new)
        self._put(node.outputs[0], new)

    def _embedding(self, node: Node) -> None:
        view = constant_view(self.graph, node.operand(0))
        assert view is not None
        axis = view.axes[1] or 0
        new = self._outputs(node, self.graph.constants[view.constant].shape[axis], -1)
        self._use_axis(node, view, axis, new, "out")
        self._put(node.outputs[0], new)

    # Values that meet.

    def _product_of_values(self, node: Node) -> None:
        one, other = (self._line(name) for name in node.inputs[:2])
        if min(one.ndim, other.ndim) < 2 or node.operand(2) is not None:
            self._opaque(node)
            return
        one = one.swapaxes(-1, -2) if node.attrs.get("transpose_a") else one
        other = other.swapaxes(-1, -2) if node.attrs.get("transpose_b") else other
        self._put(node.outputs[0], self._contract(one, other, node))

    def _contract(self, one: Labels, other: Labels, node: Node) -> Labels:
        """one[…, m, k] @ other[…, k, n]: along k and along stacks both lose the same, m and n pass."""
        rank = self._rank(node.outputs[0])
        dims = [self._lift_dims(name or "", rank) for name in node.inputs[:2]]
        one, other = (labels.reshape((1,) * (rank - labels.ndim) + labels.shape) for labels in (one, other))
        places = [varying(labels) for labels in (one, other)]
        if [rank - 1] == places[0] or [rank - 2] == places[1]:
            if places == [[rank - 1], [rank - 2]]:
                self._link(one.swapaxes(-1, -2), other)
                self._counted.append((node.name, other))  # a sum over channels without weights
            else:
                self._fix(one)
                self._fix(other)
            return fixed(rank)
        return self._meet([one, other], dims, rank, own=(rank - 2, rank - 1))

    def _meet(
        self, labels: Sequence[Labels], dims: Sequence[tuple[int, ...]], rank: int, own: Sequence[int | None]
    ) -> Labels:
        """Operands that broadcast against one another; `own` are axes that exist in one operand only."""
        result = fixed(rank)
        for number, array in enumerate(labels):
            for axis in varying(array):
                for position, (other, shape) in enumerate(zip(labels, dims)):
                    if position == number or axis == own[number] or shape[axis] == 1:
                        continue
                    if varying(other) in ([axis], []):
                        self._link(array, other)
                    else:
                        self._fix(array)
            if array.any() and not result.any():
                result = array
            elif array.any() and varying(array) != varying(result):
                self._fix(array)
        return result

    def _elementwise(self, node: Node) -> None:
        rank = self._rank(node.outputs[0])
        operands = [name for name in node.inputs if name is not None]
        values = [name for name in operands if constant_view(self.graph, name) is None]
        if not values:
            return
        for name in values:
            self._line(name)
        labels = [self._lift(name, rank) for name in values]
        result = self._meet(labels, [self._lift_dims(name, rank) for name in values], rank, [None] * len(values))
        for name in operands:
            if name not in values:
                self._follow(node, name, result)
        self._put(node.outputs[0], result)

    def _follow(self, node: Node, operand: str, labels: Labels) -> None:
        """A constant loses what the value it meets loses; one that is broadcast along the channels stays."""
        dims = self._lift_dims(operand, labels.ndim)
        axes = varying(labels)
        if axes and dims[axes[0]] > 1 and not self._use_vector(node, operand, labels, "vector"):
            self._fix(labels)

    def _concat(self, node: Node) -> None:
        """Along the channels, one behind the other; along another axis, all operands lose the same channels."""
        axis, stacked = node.attrs["axis"], node.attrs.get("new_axis", False)
        names = [name for name in node.inputs if name is not None and prod(self.graph.dims(name) or ()) > 0]
        values = [name for name in names if constant_view(self.graph, name) is None]
        labels = [self._get(name) for name in values]
        across = [other for array in labels for other in varying(array) if stacked or other != axis]
        if not across:
            self._move(node)
            return
        lines = [self._collapse(array, across[0]) for array in labels]
        first = next(line for line in lines if line.shape[across[0]] > 1)
        for line in lines:
            self._link(line, first)
        for name in names:
            if name not in values:
                self._follow(node, name, first)
        self._put(node.outputs[0], np.expand_dims(first, axis) if stacked else first)

    def _attention(self, node: Node) -> None:
        query, key, value = (self._line(name) for name in node.inputs[:3])
        heads = [(self.graph.dims(name or "") or ())[:-2] for name in node.inputs[:3]]
        if min(query.ndim, key.ndim, value.ndim) < 4:
            self._opaque(node)
            return
        times = heads[0][-1] // max(heads[1][-1], 1)
        key, value = (np.repeat(x, times, -3) if x.shape[-3] > 1 else x for x in (key, value))
        by_head = [labels for labels in (query, key, value) if labels.shape[-3] > 1]
        for labels in by_head:
            for other in (query, key, value):
                self._link(labels, other if other.shape[-3] > 1 else fixed(4))
        for labels in (query, key):  # the number of features is part of the softmax's scale
            self._fix_along(labels, (-1, -2))
        value = self._fix_along(value, (-2,))
        if by_head and node.operand(3) is not None and self._lift_dims(node.operand(3) or "", 4)[-3] > 1:
            self._fix(by_head[0])
        self._put(node.outputs[0], by_head[0] if by_head else value)

    # Operators over channels.

    def _reduce(self, node: Node) -> None:
        labels, axes = self._line(node.operand(0)), tuple(node.attrs["axes"])
        if any(labels.shape[axis] > 1 for axis in axes):
            self._counted.append((node.name, labels))
            labels = fixed(labels.ndim)
        self._put(node.outputs[0], labels if node.attrs["keepdims"] else labels.squeeze(axes))

    def _norm(self, node: Node) -> None:
        labels = self._line(node.operand(0))
        axes = node.attrs["axes"] if node.op in ("layer_norm", "rms_norm") else (node.attrs["axis"],)
        along = varying(labels)
        if along and along[0] in axes:
            vector = labels.reshape(-1)
            if node.op == "group_norm":  # a group is normalized alone, so whole groups can go
                groups = vector.reshape(node.attrs["groups"], -1)
                self._link(groups, groups[:, :1])
            elif node.op != "batch_norm":
                self._counted.append((node.name, labels))
            for name in node.inputs[1:]:
                if name is not None and not self._use_vector(node, name, vector, "vector"):
                    self._fix(labels)
        elif along and along[0] > 0 and node.op == "group_norm":
            self._counted.append((node.name, labels))  # its statistics are over positions too
        self._put(node.outputs[0], labels)


def _staying(gone: np.ndarray, axis: int) -> np.ndarray:
    """Which indices of an axis have elements that are not removed."""
    others = tuple(other for other in range(gone.ndim) if other != axis)
    return np.atleast_1d(~gone.all(axis=others))


def _mixed_axes(node: Node) -> Sequence[int]:
    """The axes along which an operator mixes elements."""
    if node.op in ("softmax", "cumsum"):
        return (node.attrs["axis"],)
    return [axis for axis, letter in enumerate(node.attrs["data"]) if letter not in "NC"]
