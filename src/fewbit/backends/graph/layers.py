# SPDX-License-Identifier: Apache-2.0
"""Nodes as layers: which of their inputs is the weight, and how its axes lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from fewbit.backends.graph.constants import constant
from fewbit.model.ops import CONV, CONV_TRANSPOSE, EMBEDDING, LINEAR, Op


@dataclass(frozen=True)
class Layer:
    """A node that multiplies what it reads with a constant.

    Args:
        node: the node.
        op: its kind.
        reads: which of the node's inputs is the activation.
        weight: which is the weight.
        axes: `weight.transpose(axes)` is `[stack…, out, in, kernel…]`; of a grouped transposed convolution see `split`.
        features: the axis of the activation that the weight's `in` axis is contracted with.
        groups: of a grouped convolution.
        stack: leading axes of the weight that number independent ones.
        split: whether `[in, out / groups, …]` has to be cut into groups before the axes are exchanged.
        bias: which input is the bias; none if the node can have none.
    """

    node: ir.Node
    op: Op
    reads: int
    weight: int
    axes: tuple[int, ...]
    features: int
    groups: int = 1
    stack: int = 0
    split: bool = False
    bias: int | None = None

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name or ""

    @property
    def weight_value(self) -> ir.Value:
        """The initializer."""
        value = self.node.inputs[self.weight]
        assert value is not None
        return value


def layers(graph: ir.Graph) -> Iterator[Layer]:
    """Every node of a graph that has a weight, in order; those inside branches and loops too."""
    for node in graph.all_nodes():
        found = layer_of(node)
        if found is not None:
            yield found


def layer_of(node: ir.Node) -> Layer | None:
    """The node as a layer; none if it has no constant weight of at least two axes."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in _KINDS:
        return None
    return _KINDS[node.op_type](node)


def _rank(node: ir.Node, index: int) -> int | None:
    value = node.inputs[index] if len(node.inputs) > index else None
    if value is None or value.is_graph_input() or value.const_value is None:
        return None
    return len(value.const_value.shape)


def _conv(node: ir.Node) -> Layer | None:
    rank = _rank(node, 1)
    if rank is None or rank < 3:
        return None
    groups = node.attributes.get_int("group", 1)
    return Layer(node, CONV, 0, 1, tuple(range(rank)), 1, groups, bias=2)


def _conv_transpose(node: ir.Node) -> Layer | None:
    rank = _rank(node, 1)
    if rank is None or rank < 3:
        return None
    groups = node.attributes.get_int("group", 1)
    return Layer(node, CONV_TRANSPOSE, 0, 1, (1, 0, *range(2, rank)), 1, groups, split=groups > 1, bias=2)


def _gemm(node: ir.Node) -> Layer | None:
    if _rank(node, 1) != 2 or constant(node.inputs[0]) is not None:
        return None
    axes = (0, 1) if node.attributes.get_int("transB", 0) else (1, 0)
    return Layer(node, LINEAR, 0, 1, axes, 0 if node.attributes.get_int("transA", 0) else -1, bias=2)


def _matmul(node: ir.Node) -> Layer | None:
    right, left = _rank(node, 1), _rank(node, 0)
    if right is not None and right >= 2 and left is None:
        lead = tuple(range(right - 2))
        return Layer(node, LINEAR, 0, 1, (*lead, right - 1, right - 2), -1, stack=right - 2)
    if left == 2 and right is None:
        return Layer(node, LINEAR, 1, 0, (0, 1), -2)
    return None


def _gather(node: ir.Node) -> Layer | None:
    if _rank(node, 0) != 2 or node.attributes.get_int("axis", 0) != 0 or constant(node.inputs[1]) is not None:
        return None
    floats = node.inputs[0] is not None and node.inputs[0].dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16)
    return Layer(node, EMBEDDING, 1, 0, (0, 1), -1) if floats else None


_KINDS = {"Conv": _conv, "ConvTranspose": _conv_transpose, "Gemm": _gemm, "MatMul": _matmul, "Gather": _gather}
