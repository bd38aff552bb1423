# SPDX-License-Identifier: Apache-2.0
"""Which channels can be removed, and which only together, found on the neutral graph of a model.

A residual sum couples the layers it adds, a head split the channels of a head, a grouped convolution those of a group.
Without a group the model computes what it would if all that reads the group's channels had zero weights for them. That
is exact but for operators that count channels, such as norms; families name those as `inexact`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from fewbit.graph.channels import MOVEMENT, ChannelAnalysis, ChannelFamily, Role
from fewbit.graph.edits import RemoveChannels
from fewbit.graph.ir import ConstantView, Graph, Node, constant_view
from fewbit.graph.layers import WeightAxes, input_axis, output_axis, weight_operand
from fewbit.graph.movement import Labels, fixed, varying
from fewbit.graph.removal import removal_edit

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

    _follows_indices = False  # no edit changes them

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
            gone[[self._members[position][number] for number in numbers]] = True
        values = {name: gone[self._groups[labels]] for name, labels in self._labels.items()}
        return removal_edit(self.graph, values, [(use.constant, gone[self._groups[use.labels]]) for use in self._uses])

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
        if op != "split" and any(
            name in self.graph.consumers or name in self.graph.outputs for name in node.outputs[1:]
        ):
            self._opaque(node)  # indices beside values, which would shrink too
        elif op in ("conv", "conv_transpose"):
            self._conv(node)
        elif op == "matmul":
            self._matmul(node)
        elif op == "gather" and weight_operand(self.graph, node) is not None:
            self._embedding(node)
        elif op == "concat":
            self._concat(node)
        elif op == "gather" and constant_view(self.graph, node.operand(1)) is not None:
            self._constant_gather(node)
        elif (
            op == "slice"
            and node.attrs["step"] not in (1, -1)
            and self._get(node.operand(0)).shape[node.attrs["axis"]] > 1
        ):
            self._opaque(node)  # what is left of every second channel is no slice
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
        lines = [self._line(name) for name in values]
        across = [line for line in lines if varying(line) and (stacked or varying(line) != [axis])]
        if not across:
            self._move(node)
            return
        first = across[0]
        for line in lines:
            if varying(line) in ([], varying(first)):
                self._link(line, first)
            else:
                self._fix(line)
                self._fix(first)
        for name in names:
            if name not in values:
                self._follow(node, name, first)
        self._put(node.outputs[0], np.expand_dims(first, axis) if stacked else first)

    def _constant_gather(self, node: Node) -> None:
        """No edit changes indices that are stored, so the axis they count stays as long as it is."""
        labels = self._get(node.operand(0))
        others = [axis for axis in varying(labels) if axis != node.attrs["axis"]]
        if others and node.inputs[0] is not None:
            self._labels[node.inputs[0]] = self._collapse(labels, others[0])
        self._move(node)

    def _attention(self, node: Node) -> None:
        query, key, value = (self._line(name) for name in node.inputs[:3])
        heads = [(self.graph.dims(name or "") or ())[:-2] for name in node.inputs[:3]]
        if min(query.ndim, key.ndim, value.ndim) < 4:
            self._opaque(node)
            return
        times = heads[0][-1] // max(heads[1][-1], 1)
        key, value = (np.repeat(x, times, -3) if x.shape[-3] > 1 else x for x in (key, value))
        for labels in (query, key):  # the number of features is part of the softmax's scale
            self._fix_along(labels, (-1, -2))
        mask = node.operand(3)
        bias = self._line(mask) if mask is not None else fixed(1)
        bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
        if all(labels.shape[-3] > 1 for labels in (query, key, value)):
            self._link(query, key)
            self._link(query, value)
            if mask is not None and self._lift_dims(mask, 4)[-3] > 1:
                self._link(query, self._fix_along(bias, (-1, -2)))
            else:
                self._fix(bias)
            self._put(node.outputs[0], query)
        else:  # one head of keys and values: only the values' features pass
            for labels in (query, key, bias):
                self._fix(labels)
            self._put(node.outputs[0], self._fix_along(value, (-2, -3)))

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


def _mixed_axes(node: Node) -> Sequence[int]:
    """The axes along which an operator mixes elements."""
    if node.op in ("softmax", "cumsum"):
        return (node.attrs["axis"],)
    return [axis for axis, letter in enumerate(node.attrs["data"]) if letter not in "NC"]
