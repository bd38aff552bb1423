# SPDX-License-Identifier: Apache-2.0
"""Operators through which a positive scale of a channel passes unchanged: f(x · s) = f(x) · s.

What multiplies, averages, or keeps the larger passes a scale on. So does the sum with a constant, if the constant is
scaled with the channel. Everything else (a sigmoid, a clip at 6, the sum with another layer's output) stops it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.moving import moved
from fewbit.backends.graph.nodes import real
from fewbit.backends.graph.reshaping import Mark, shortened
from fewbit.backends.graph.shapes import integers, rank, sides

Marks = Sequence[Mark | None]


@dataclass
class Step:
    """What becomes of marked values in one node.

    Args:
        outputs: the marks of the node's outputs.
        lost: channels whose scale the node does not pass on.
        added: a constant input of the node that has to be scaled with the channels, and where they lie in it.
    """

    outputs: Marks
    lost: set[int] = field(default_factory=set)
    added: tuple[int, Mark] | None = None


def step(node: ir.Node, marks: Marks) -> Step | None:
    """How a node passes on what is marked; none if not at all.

    Args:
        node: the node.
        marks: of its inputs; none for an input without marked channels.
    """
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type in _STEPS:
        return _STEPS[node.op_type](node, marks)
    found = moved(node, marks)
    return None if found is None else Step(found)


def _only_first(marks: Marks) -> Mark | None:
    return marks[0] if all(mark is None for mark in marks[1:]) else None


def _same(node: ir.Node, marks: Marks) -> Step | None:
    mark = _only_first(marks)
    if mark is None or any(out.uses() or out.is_graph_output() for out in node.outputs[1:]):
        return None
    return Step([mark])


def _cast(node: ir.Node, marks: Marks) -> Step | None:
    to = ir.DataType(node.attributes.get_int("to", 0))
    return _same(node, marks) if to.is_floating_point() and to.bitwidth >= 16 else None


def _shape(node: ir.Node, marks: Marks) -> Step:
    return Step([])


def _clip(node: ir.Node, marks: Marks) -> Step | None:
    """As a ReLU: from zero, or from nowhere, to nowhere."""
    given = [*node.inputs[1:3], None, None][:2]
    ends = [real(node, "min", -np.inf), real(node, "max", np.inf)]
    for index, value in enumerate(given):
        if value is not None:
            known = constant(value)
            ends[index] = np.nan if known is None else float(known.reshape(()))
    return _same(node, marks) if ends[0] in (0, -np.inf) and ends[1] == np.inf else None


def _prelu(node: ir.Node, marks: Marks) -> Step | None:
    return _same(node, marks) if constant(node.inputs[1]) is not None else None


def _pool(node: ir.Node, marks: Marks) -> Step | None:
    mark = _only_first(marks)
    return None if mark is None or any(side > 1 for side in mark.shape[2:]) else _same(node, marks)


def _reduce(node: ir.Node, marks: Marks) -> Step | None:
    mark, axes = _only_first(marks), integers(node, "axes", 1)
    if mark is None or not axes or any(mark.shape[axis] > 1 for axis in axes):
        return None
    return Step([mark if node.attributes.get_int("keepdims", 1) else np.squeeze(mark, tuple(axes))])


def _resize(node: ir.Node, marks: Marks) -> Step | None:
    """Along axes without channels only, and without a filling that is no zero."""
    mark, before, after = _only_first(marks), sides(node.inputs[0]), sides(node.outputs[0])
    scales = constant(node.inputs[-1]) if len(node.inputs) in (2, 3) else None
    if mark is None or real(node, "extrapolation_value", 0.0) != 0:
        return None
    for axis in np.flatnonzero(np.array(mark.shape) > 1):
        by_scale = scales is not None and scales.size == mark.ndim and scales.reshape(-1)[axis] == 1
        by_side = before is not None and after is not None and before[axis] is not None and before[axis] == after[axis]
        if not (by_scale or by_side):
            return None
    return Step([mark])


def _sum(node: ir.Node, marks: Marks) -> Step | None:
    """Two values with the same channels at the same places; or a constant, scaled with them."""
    if len(marks) != 2:
        return None
    both = [mark for mark in marks if mark is not None]
    if len(both) == 2:
        wide = max(both[0].ndim, both[1].ndim)
        a, b = np.broadcast_arrays(*(_aligned(mark, wide) for mark in both))
        differ = a != b
        return Step([shortened(np.where(differ, -1, a))], {*a[differ].tolist(), *b[differ].tolist()})
    index = 0 if marks[0] is None else 1
    other = constant(node.inputs[index])
    if other is None or node.op_type in ("Max", "Min"):
        return None
    mark = _aligned(both[0], max(both[0].ndim, other.ndim))
    if not np.any(other):
        return Step([mark])
    size = np.prod(np.broadcast_shapes(mark.shape, other.shape))
    if size > max(mark.size, other.size):  # a table that would grow with every channel
        return None
    return Step([mark], added=(index, mark))


def _product(node: ir.Node, marks: Marks) -> Step | None:
    """A channel times, or divided by, anything that does not change with it."""
    if node.op_type == "Div" and marks[1] is not None:
        return None
    ranks = [rank(value) if mark is None else mark.ndim for value, mark in zip(node.inputs, marks)]
    known = [axes for axes in ranks if axes is not None]
    if len(known) < len(ranks):
        return None
    both = [_aligned(mark, max(known)) for mark in marks if mark is not None]
    if len(both) == 1:
        return Step(both)
    a, b = np.broadcast_arrays(*both)
    squared = (a >= 0) & (b >= 0)
    return Step([shortened(np.where(squared, -1, np.maximum(a, b)))], {*a[squared].tolist(), *b[squared].tolist()})


def _matmul(node: ir.Node, marks: Marks) -> Step | None:
    """Channels that are not summed over: those of the values that attention averages."""
    if all(mark is not None for mark in marks):
        return None
    index = 0 if marks[0] is not None else 1
    mark, other = marks[index], rank(node.inputs[1 - index])
    if mark is None or other is None or min(mark.ndim, other) < 2 or mark.shape[-2 if index else -1] > 1:
        return None
    return Step([_aligned(mark, max(mark.ndim, other))])


def _aligned(mark: Mark, axes: int) -> Mark:
    return mark.reshape((1,) * (axes - mark.ndim) + mark.shape)


_STEPS: dict[str, Callable[[ir.Node, Marks], Step | None]] = {
    **dict.fromkeys(("Relu", "LeakyRelu", "Identity", "Dropout", "Abs", "Neg"), _same),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"), _pool),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2"), _reduce),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **dict.fromkeys(("Add", "Sub", "Max", "Min"), _sum),
    **dict.fromkeys(("Mul", "Div"), _product),
    **dict.fromkeys(("Shape", "Size"), _shape),
    "Cast": _cast, "Clip": _clip, "PRelu": _prelu, "MatMul": _matmul,
}  # fmt: skip
