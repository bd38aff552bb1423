# SPDX-License-Identifier: Apache-2.0
"""Which channels can be rescaled without changing what a model computes, found on its neutral graph.

A channel of an activation may be multiplied by a factor if whatever reads it divides by the factor again. In logarithms
of factors every operator is an equation between its inputs and outputs: a ReLU passes a factor, a sum needs equal ones,
a weight `W[o, i]` becomes `W[o, i] * s_o / s_i`, a product of two activations has opposite ones along the contraction.
AWQ, SmoothQuant and equalization choose the factors of what is left free.
"""

from __future__ import annotations

from math import prod

import numpy as np

from fewbit.errors import UsageError
from fewbit.graph.channels import MOVEMENT, ChannelAnalysis, ChannelFamily
from fewbit.graph.edits import ScaleChannels
from fewbit.graph.ir import ConstantView, Graph, Node, constant_view, is_float, scalar
from fewbit.graph.layers import WeightAxes, input_axis, output_axis, weight_operand
from fewbit.graph.movement import Labels, fixed, varying

HOMOGENEOUS = frozenset({"relu", "leaky_relu", "prelu", "neg", "abs", "identity"})
"""f(s x) = s f(x) for every s > 0."""
HOMOGENEOUS_REDUCTIONS = frozenset({"mean", "sum", "max", "min", "norm", "std"})
SUMS = frozenset({"add", "sub", "max", "min", "where"})


def scale_families(graph: Graph) -> tuple[ChannelFamily, ...]:
    """Every family of channels with a free factor; check them with `check_families` before they are used.

    Read the graph with a sample of at least two items, so that no axis of size one looks like broadcasting.

    >>> from fewbit.graph.ir import Constant, Value
    >>> shapes = {"x": (2, 3), "h": (2, 4), "r": (2, 4), "y": (2, 5)}
    >>> weights = {"up": (4, 3), "down": (5, 4)}
    >>> graph = Graph(
    ...     ("x",), ("y",),
    ...     (Node("1", "matmul", ("x", "up"), ("h",), {"transpose_b": True}), Node("2", "relu", ("h",), ("r",)),
    ...      Node("3", "matmul", ("r", "down"), ("y",), {"transpose_b": True})),
    ...     {name: Value(name, shape) for name, shape in shapes.items()},
    ...     {name: Constant(name, shape, "float32", lambda: np.zeros(1)) for name, shape in weights.items()},
    ... )
    >>> print(*scale_families(graph))
    4 x up +out, down -in
    """
    return ScaleAnalysis(graph).families


def scale_edits(family: ChannelFamily, factors: np.ndarray) -> list[ScaleChannels]:
    """The edits that multiply the channels of each group by a factor, and divide where they are read.

    Args:
        family: from `scale_families`.
        factors: one per group, finite and above zero.
    """
    factors = np.asarray(factors, np.float64)
    bad = np.flatnonzero(~(np.isfinite(factors) & (factors > 0))) if factors.shape == (family.size,) else None
    if bad is None or len(bad):
        shown = f"shape {factors.shape}" if bad is None else f"{len(bad)} are not, the first for group {bad[0]}"
        raise UsageError(
            f"factors of channels do not fit: {shown}",
            code="scale-factors",
            where=str(family),
            expected=f"{family.size} finite numbers above zero",
            hint="a factor of 1 for a channel that is always zero",
        )
    extended = np.append(factors, 1.0)  # index -1 is an element of another group
    edits = []
    for use in family.uses:
        by = extended[use.index] if use.sign > 0 else 1 / extended[use.index]
        edits.append(ScaleChannels(use.constant, by, use.view, use.offset))
    return edits


class ScaleAnalysis(ChannelAnalysis):
    """The equations between the factors of channels.

    Attributes:
        families: see `scale_families`.
    """

    def __init__(self, graph: Graph):
        super().__init__(graph)
        # A product of two activations passes one free factor. The first pass learns which factors are fixed whatever
        # products do, so that of silu(gate) * up the second one is known to be free.
        self._draft = True
        self._run()
        self._draft, self._known_fixed = False, np.flatnonzero(self._groups < 0)
        self._run()
        families = self._collect()
        self.families = tuple(f for f in families if {use.sign for use in f.uses} == {1, -1})

    def _put(self, name: str, labels: Labels) -> None:
        if not self._draft and labels.any():
            labels = np.where(np.isin(labels, self._known_fixed), 0, labels)
        super()._put(name, labels)

    def _visit(self, node: Node) -> None:
        op = node.op
        if op in ("conv", "conv_transpose"):
            self._conv(node)
        elif op == "matmul":
            self._matmul(node)
        elif op == "gather" and weight_operand(self.graph, node) is not None:
            self._embedding(node)
        elif op in MOVEMENT:
            self._move(node)
        elif op in HOMOGENEOUS or (op == "cast" and is_float(self.graph.dtype(node.outputs[0]))):
            self._put(node.outputs[0], self._get(node.operand(0)))
        elif op in ("max_pool", "avg_pool", "resize", "cumsum", "reduce"):
            self._over_axes(node)
        elif op in SUMS:
            self._sum(node)
        elif op in ("mul", "div"):
            self._product(node)
        elif op == "batch_norm":
            self._batch_norm(node)
        elif op in ("layer_norm", "rms_norm", "group_norm"):
            self._norm(node)
        elif op == "attention":
            self._attention(node)
        else:  # clip, unary, pow, softmax, topk, quantize …: a factor does not pass
            self._opaque(node)

    # Layers.

    def _weighted(self, node: Node, view: ConstantView, layout: str, labels: Labels, rank: int, axis: int) -> None:
        """A layer: input channels are divided, output channels multiplied; `labels` depend on input channels only."""
        shape = self.graph.constants[view.constant].shape
        axes = WeightAxes(layout, shape, node.attrs.get("groups", 1), transposed=node.op == "conv_transpose")
        inputs = np.broadcast_to(labels.reshape(-1), prod(axes.in_shape)).reshape(axes.in_shape)
        new = self._fresh(node, prod(axes.out_shape), rank, axis)
        places = [tuple(i for i, letter in enumerate(axes.letters) if letter in pair) for pair in ("GI", "GO")]
        self._use(node, view, inputs, "in", -1, axes.view, places[0])
        self._use(node, view, new.reshape(axes.out_shape), "out", 1, axes.view, places[1])
        bias = node.operand(2)
        if bias is not None and constant_view(self.graph, bias) is None:
            self._link(new, self._lift(bias, rank))
        elif bias is not None:
            # The bias of a convolution is a vector of channels; that of a product broadcasts from the right.
            along = new.reshape(-1) if node.op != "matmul" else new
            if not self._use_vector(node, bias, along, "vector"):
                self._fix(new)
        self._put(node.outputs[0], new)

    def _conv(self, node: Node) -> None:
        operand = weight_operand(self.graph, node)
        if operand is None:
            self._opaque(node)
            return
        labels, axis = self._get(node.operand(0)), input_axis(node, 1)
        self._weighted(node, operand[1], operand[2], self._collapse(labels, axis), labels.ndim, axis)

    def _matmul(self, node: Node) -> None:
        operand = weight_operand(self.graph, node)
        if operand is None:
            self._put(node.outputs[0], self._contract_values(node))
            return
        index, view, layout = operand
        labels, axis = self._get(node.operand(1 - index)), input_axis(node, index)
        if labels.ndim < 2:
            self._opaque(node)
            return
        others = [other for other in varying(labels) if other != axis % labels.ndim]
        if others and labels.shape[axis] == 1 and node.operand(2) is None and (index, axis) == (1, -1):
            # The weight mixes positions: a factor per channel passes, as it does through a mean.
            self._put(node.outputs[0], labels)
            return
        rank = self._rank(node.outputs[0])
        self._weighted(node, view, layout, self._collapse(labels, axis), rank, output_axis(node, index))

    def _embedding(self, node: Node) -> None:
        view = constant_view(self.graph, node.operand(0))
        assert view is not None
        width = self.graph.constants[view.constant].shape[view.axes[1] or 0]
        new = self._fresh(node, width, self._rank(node.outputs[0]), -1)
        stored = [1, 1]
        stored[view.axes[1] or 0] = width
        self._use(node, view, new.reshape(stored), "out", 1, axes=(view.axes[1] or 0,))
        self._put(node.outputs[0], new)

    # Products of activations.

    def _contract_values(self, node: Node) -> Labels:
        one, other = (self._get(name) for name in node.inputs[:2])
        if min(one.ndim, other.ndim) < 2:
            self._opaque(node)
            return fixed(self._rank(node.outputs[0]))
        one = one.swapaxes(-1, -2) if node.attrs.get("transpose_a") else one
        other = other.swapaxes(-1, -2) if node.attrs.get("transpose_b") else other
        result = self._contract(one, other)
        if node.operand(2) is not None:
            return self._equal(result, self._lift(node.operand(2) or "", result.ndim))
        return result

    def _contract(self, one: Labels, other: Labels) -> Labels:
        """one[…, m, k] @ other[…, k, n]: factors along k cancel one another, others pass."""
        rank = max(one.ndim, other.ndim)
        one, other = (labels.reshape((1,) * (rank - labels.ndim) + labels.shape) for labels in (one, other))
        if one.shape[-1] > 1 or other.shape[-2] > 1:
            if one.shape[-2] == 1 and other.shape[-1] == 1:
                self._link(one.swapaxes(-1, -2), other, -1)
            else:
                self._fix(one)
                self._fix(other)
            return fixed(rank)
        return self._multiplied(one, other)

    def _multiplied(self, one: Labels, other: Labels) -> Labels:
        """Labels of a product of two values: only one of two free factors passes, the other is fixed."""
        if not (one.any() and other.any()):
            return one if one.any() else other
        if self._draft:
            return fixed(one.ndim)
        self._fix(one)
        return other

    def _attention(self, node: Node) -> None:
        query, key, value = (self._get(name) for name in node.inputs[:3])
        heads = [(self.graph.dims(name or "") or ())[:-2] for name in node.inputs[:3]]
        if min(query.ndim, key.ndim, value.ndim) < 3 or not all(heads):
            self._opaque(node)
            return
        times = heads[0][-1] // max(heads[1][-1], 1)
        key, value = (np.repeat(x, times, -3) if x.shape[-3] > 1 else x for x in (key, value))
        self._fix(self._contract(query, key.swapaxes(-1, -2)))
        if node.operand(3) is not None:
            self._fix(self._get(node.operand(3)))
        self._put(node.outputs[0], self._fix_along(value, (-2,)))

    # Elementwise operators with several operands.

    def _sum(self, node: Node) -> None:
        """Sums, maxima and choices need equal factors; constants follow."""
        rank = self._rank(node.outputs[0])
        operands = [name for name in node.inputs[node.op == "where" :] if name is not None]
        if node.op == "where":
            self._fix(self._get(node.operand(0)))
        values = [name for name in operands if constant_view(self.graph, name) is None]
        if not values:
            return
        labels = self._lift(values[0], rank)
        for name in values[1:]:
            labels = self._equal(labels, self._lift(name, rank))
        for name in operands:
            number = scalar(self.graph, name)
            # Zero and infinity stay what they are under every factor.
            neutral = number is not None and (number == 0 or np.isinf(number))
            if name in values or neutral or not labels.any():
                continue
            if not self._use_vector(node, name, labels, "vector"):
                self._fix(labels)
        self._put(node.outputs[0], labels)

    def _equal(self, one: Labels, other: Labels) -> Labels:
        self._link(one, other)
        return np.broadcast_to(one, np.broadcast_shapes(one.shape, other.shape)) if other.any() else fixed(one.ndim)

    def _product(self, node: Node) -> None:
        rank = self._rank(node.outputs[0])
        operands = [name for name in node.inputs if name is not None]
        values = [name for name in operands if constant_view(self.graph, name) is None]
        if not values:
            return
        labels = self._lift(values[0], rank)
        if node.op == "div" and operands[-1] in values:  # a factor of the divisor would come out inverted
            self._fix(self._get(operands[-1]))
            labels = labels if len(values) == 2 else fixed(rank)
        elif len(values) == 2:
            labels = self._multiplied(labels, self._lift(values[1], rank))
        for name in operands:
            if name not in values:
                labels = self._times_constant(node, name, labels)
        self._put(node.outputs[0], labels)

    def _times_constant(self, node: Node, operand: str, labels: Labels) -> Labels:
        """A vector that multiplies is a layer: factors of its inputs and of its outputs are separate."""
        dims = self._lift_dims(operand, labels.ndim)
        long = [axis for axis, size in enumerate(dims) if size > 1]
        view = constant_view(self.graph, operand)
        if len(long) != 1 or varying(labels) not in ([], long) or view is None:
            return labels
        if not self.graph.constants[view.constant].stored or (node.op == "div" and operand == node.inputs[0]):
            return labels
        sign = -1 if node.op == "div" else 1
        new = self._fresh(node, dims[long[0]], labels.ndim, long[0])
        inputs = np.broadcast_to(labels, new.shape)
        # Both or none: a vector whose axes are not understood stays as it is.
        if not self._use_vector(node, operand, new, "out", sign):
            return labels
        if labels.any():
            self._use_vector(node, operand, inputs, "in", -sign)
        return new

    # Norms.

    def _batch_norm(self, node: Node) -> None:
        data, weight, bias, mean = (node.operand(index) for index in range(4))
        labels, axis = self._get(data), node.attrs["axis"]
        labels = self._collapse(labels, axis)
        views = [constant_view(self.graph, name) for name in (weight, bias, mean)]
        if any(view is None or not self.graph.constants[view.constant].stored for view in views):
            self._opaque(node)
            return
        count = (self.graph.dims(data or "") or ())[axis]
        new = self._fresh(node, count, labels.ndim, axis)
        self._use_vector(node, weight, new.reshape(-1), "out")
        self._use_vector(node, bias, new.reshape(-1), "vector")
        if labels.any():
            inputs = np.broadcast_to(labels.reshape(-1), count)
            self._use_vector(node, weight, inputs, "in", -1)
            self._use_vector(node, mean, inputs, "vector")
        self._put(node.outputs[0], new)

    def _norm(self, node: Node) -> None:
        """Norms over channels fix their input; their gain creates channels."""
        self._fix(self._get(node.operand(0)))
        weight, bias = node.operand(1), node.operand(2)
        rank = self._rank(node.outputs[0])
        if weight is None or constant_view(self.graph, weight) is None:
            return
        axis = node.attrs["axis"] if node.op == "group_norm" else rank - 1
        count = (self.graph.dims(weight) or (1,))[-1]
        new = self._fresh(node, count, rank, axis)
        follows = self._use_vector(node, weight, new.reshape(-1), "out")
        if bias is not None:
            follows = self._use_vector(node, bias, new.reshape(-1), "vector") and follows
        if not follows:
            self._fix(new)
        self._put(node.outputs[0], new)

    def _over_axes(self, node: Node) -> None:
        """Pools and reductions pass factors of channels that they do not mix."""
        labels, attrs = self._get(node.operand(0)), node.attrs
        if node.op == "reduce" and attrs["fn"] not in HOMOGENEOUS_REDUCTIONS:
            self._opaque(node)
            return
        if node.op in ("reduce", "cumsum"):
            axes = attrs["axes"] if node.op == "reduce" else (attrs["axis"],)
        else:
            axes = tuple(axis for axis, letter in enumerate(attrs["data"]) if letter not in "NC")
        labels = self._fix_along(labels, axes)
        self._put(node.outputs[0], labels.squeeze(tuple(axes)) if attrs.get("keepdims") is False else labels)
