# SPDX-License-Identifier: Apache-2.0
"""Operators that only move values about: where each channel lies afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.nodes import flag
from fewbit.backends.graph.reshaping import Mark, reshaped, shortened
from fewbit.backends.graph.shapes import Side, integers, rank, sides, target_of

Moved = Sequence[Mark] | None


def moved(node: ir.Node, marks: Sequence[Mark | None]) -> Moved:
    """The marks of a node's outputs; none if the node does something else, or it cannot be known.

    Args:
        node: any node of the standard domain.
        marks: of its inputs.
    """
    if node.op_type == "Concat":
        return _concat(node, marks)
    mark = marks[0]
    if node.op_type not in _MOVES or mark is None or any(other is not None for other in marks[1:]):
        return None
    return _MOVES[node.op_type](node, mark)


def _reshape(node: ir.Node, mark: Mark) -> Moved:
    before = sides(node.inputs[0]) or [None] * mark.ndim
    target = target_of(node.inputs[1])
    after = sides(node.outputs[0])
    if target is None or flag(node, "allowzero"):
        target = None if after is None else [side if isinstance(side, int) else None for side in after]
    elif after is not None and len(after) == len(target):  # what inference found out besides
        target = [b if isinstance(b, int) and a in (-1, None) else a for a, b in zip(target, after)]
    return None if target is None or len(before) != mark.ndim else _one(reshaped(mark, before, target))


def _flatten(node: ir.Node, mark: Mark) -> Moved:
    before: list[Side] = sides(node.inputs[0]) or [None] * mark.ndim
    axis = node.attributes.get_int("axis", 1)
    cut = axis + mark.ndim if axis < 0 else axis
    ends = [before[:cut], before[cut:]]
    target: list[int | None] = []
    for part in ends:
        numbers = [side for side in part if isinstance(side, int)]
        target.append(int(np.prod(numbers)) if len(numbers) == len(part) else None)
    return _one(reshaped(mark, before, target))


def _transpose(node: ir.Node, mark: Mark) -> Moved:
    return [np.transpose(mark, integers(node, "perm"))]


def _unsqueeze(node: ir.Node, mark: Mark) -> Moved:
    axes = integers(node, "axes", 1)
    return None if axes is None else [np.expand_dims(mark, tuple(axes))]


def _squeeze(node: ir.Node, mark: Mark) -> Moved:
    axes = integers(node, "axes", 1)
    if axes is None:
        known = sides(node.inputs[0])
        if len(node.inputs) > 1 or known is None or not all(isinstance(side, int) for side in known):
            return None
        axes = [axis for axis, side in enumerate(known) if side == 1]
    return [np.squeeze(mark, tuple(axes))] if all(mark.shape[axis] == 1 for axis in axes) else None


def _slice(node: ir.Node, mark: Mark) -> Moved:
    starts, ends = integers(node, "starts", 1), integers(node, "ends", 2)
    axes = integers(node, "axes", 3)
    if axes is None:
        if len(node.inputs) > 3 and node.inputs[3] is not None:
            return None
        axes = list(range(len(starts) if starts is not None else mark.ndim))
    steps = integers(node, "steps", 4)
    if steps is None and len(node.inputs) > 4 and node.inputs[4] is not None:
        steps = [0] * len(axes)  # not known
    for place, axis in enumerate(axes):
        if mark.shape[axis] == 1:
            continue
        step = 1 if steps is None else steps[place]
        if starts is None or ends is None or step == 0:
            return None
        taken = np.arange(mark.shape[axis])[_reach(starts[place], ends[place], step)]
        mark = mark.take(taken, axis)
    return [shortened(mark)] if mark.size else None


def _reach(start: int, end: int, step: int) -> slice:
    """ONNX writes "to the very beginning" of a backward slice as a number below any length."""
    return slice(start, None if step < 0 and end < -(1 << 30) else end, step)


def _split(node: ir.Node, mark: Mark) -> Moved:
    axis = node.attributes.get_int("axis", 0)
    count = len(node.outputs)
    if mark.shape[axis] == 1:
        return [mark] * count
    lengths = integers(node, "split", 1)
    if lengths is None:
        if len(node.inputs) > 1 and node.inputs[1] is not None:
            return None
        each = -(-mark.shape[axis] // count)
        lengths = [each] * (count - 1) + [mark.shape[axis] - each * (count - 1)]
    return [shortened(part) for part in np.split(mark, np.cumsum(lengths)[:-1], axis)]


def _concat(node: ir.Node, marks: Sequence[Mark | None]) -> Moved:
    ranks = {mark.ndim for mark in marks if mark is not None}
    if len(ranks) != 1:
        return None
    axis = node.attributes.get_int("axis", 0) % ranks.pop()
    first = marks[0]
    alike = first is not None and all(mark is not None and np.array_equal(mark, first) for mark in marks)
    if first is not None and alike and first.shape[axis] == 1:
        return [first]
    parts = []
    for value, mark in zip(node.inputs, marks):
        part = np.full((1,) * (axis + 1), -1) if mark is None else mark
        known = sides(value)
        length = part.shape[axis] if part.shape[axis] > 1 else known[axis] if known is not None else None
        if not isinstance(length, int):
            return None
        part = part.reshape(part.shape + (1,) * (len(known or part.shape) - part.ndim))
        parts.append(np.broadcast_to(part, (*part.shape[:axis], length, *part.shape[axis + 1 :])))
    shapes = [tuple(1 if at == axis else side for at, side in enumerate(part.shape)) for part in parts]
    common = np.broadcast_shapes(*shapes)
    wide = [np.broadcast_to(p, (*common[:axis], p.shape[axis], *common[axis + 1 :])) for p in parts]
    return [shortened(np.concatenate(wide, axis))]


def _gather(node: ir.Node, mark: Mark) -> Moved:
    axis = node.attributes.get_int("axis", 0) % mark.ndim
    indices = constant(node.inputs[1])
    if mark.shape[axis] > 1:
        return None if indices is None else [shortened(np.take(mark, np.asarray(indices, np.int64), axis))]
    places = rank(node.inputs[1]) if indices is None else indices.ndim
    if places is None:
        return None
    return [mark.reshape((*mark.shape[:axis], *(1,) * places, *mark.shape[axis + 1 :]))]


def _pad(node: ir.Node, mark: Mark) -> Moved:
    pads = integers(node, "pads", 1)
    given = node.inputs[2] if len(node.inputs) > 2 else None
    fill = constant(given) if given is not None else node.attributes.get_float("value", 0.0)
    axes = integers(node, "axes", 3) or list(range(mark.ndim))
    is_constant = node.attributes.get_string("mode", "constant") == "constant"
    if pads is None or (is_constant and (fill is None or np.any(np.asarray(fill) != 0))):
        return None
    around = [(0, 0)] * mark.ndim
    for place, axis in enumerate(axes):
        if mark.shape[axis] > 1:
            around[axis] = pads[place], pads[place + len(axes)]
    if any(map(any, around)) and (not is_constant or min(map(min, around)) < 0):
        return None
    return [np.pad(mark, around, constant_values=-1)]


def _expand(node: ir.Node, mark: Mark) -> Moved:
    wanted = rank(node.outputs[0])
    return None if wanted is None or wanted < mark.ndim else [mark.reshape((1,) * (wanted - mark.ndim) + mark.shape)]


def _tile(node: ir.Node, mark: Mark) -> Moved:
    times = integers(node, "repeats", 1)
    if times is None:
        return None
    return [np.tile(mark, [count if side > 1 else 1 for count, side in zip(times, mark.shape)])]


def _one(mark: Mark | None) -> Moved:
    return None if mark is None else [mark]


_MOVES: dict[str, Callable[[ir.Node, Mark], Moved]] = {
    "Reshape": _reshape, "Flatten": _flatten, "Transpose": _transpose, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze,
    "Slice": _slice, "Split": _split, "Gather": _gather, "Pad": _pad, "Expand": _expand, "Tile": _tile,
}  # fmt: skip
