# SPDX-License-Identifier: Apache-2.0
"""Labels through data movement: reshapes, transpositions, slices and the like are executed on the labels themselves.

A value's labels are an integer array of the value's rank that says which channel each element belongs to. Along an axis
on which they do not depend they have size one, so labels stay as small as the number of channels. Head splits, rotary
halves and repeated heads need no rules this way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from fewbit.graph.ir import Graph, Node, constant_view

Labels = np.ndarray
"""int64, of the rank of a value; of size one along axes on which the label does not depend."""

MOVEMENT = frozenset({"reshape", "transpose", "concat", "slice", "split", "expand", "repeat", "pad", "gather"})


def move(
    node: Node, labels: Sequence[Labels], inputs: Sequence[tuple[int, ...]], outputs: Sequence[tuple[int, ...]]
) -> list[Labels] | None:
    """The labels of a movement's outputs.

    Args:
        node: its operator and attributes.
        labels: of the inputs that are moved.
        inputs: their shapes.
        outputs: the shapes of the outputs.

    Returns:
        `None` if the labels cannot be followed: an index that is only known at run time, say.
    """
    attrs, first = node.attrs, labels[0]
    if node.op == "reshape":
        return [reshape(first, inputs[0], outputs[0])]
    if node.op == "transpose":
        return [first.transpose(attrs["perm"])]
    if node.op == "concat":
        return [_concat(labels, inputs, attrs["axis"], attrs.get("new_axis", False))]
    if node.op == "slice":
        part = _slice(first, attrs["axis"], attrs["start"], attrs["stop"], attrs["step"])
        return None if part is None else [part.squeeze(attrs["axis"]) if attrs.get("drop") else part]
    if node.op == "split":
        return _split(first, attrs["axis"], attrs["sizes"], attrs.get("drop", False))
    if node.op == "expand":
        return [first.reshape((1,) * (len(outputs[0]) - first.ndim) + first.shape)]
    if node.op == "repeat":
        return [_repeat(first, attrs["axis"], attrs["times"], attrs["interleave"])]
    if node.op == "pad":
        return _pad(first, attrs["pads"], attrs["value"], inputs[0])
    return _gather(first, attrs["axis"], attrs.get("indices"), len(outputs[0]))


def with_indices(graph: Graph, node: Node) -> Node:
    """A gather whose indices are a constant, with the indices as an attribute; any other node as it is."""
    view = constant_view(graph, node.operand(1)) if node.op == "gather" else None
    if view is None or view.axes != tuple(range(len(graph.constants[view.constant].shape))) or view.offset:
        return node
    return replace(node, attrs={**node.attrs, "indices": graph.constants[view.constant].read()})


def compact(labels: Labels) -> Labels:
    """Size one along every axis on which the labels do not depend.

    >>> compact(np.array([[3, 3], [5, 5]])).tolist()
    [[3], [5]]
    """
    for axis, size in enumerate(labels.shape):
        first = labels.take([0], axis) if size > 1 else labels
        if size > 1 and (labels == first).all():
            labels = first
    return labels


def varying(labels: Labels) -> list[int]:
    """The axes along which labels depend."""
    return [axis for axis, size in enumerate(labels.shape) if size > 1]


def fixed(rank: int) -> Labels:
    """The labels of a value that nothing may change."""
    return np.zeros((1,) * rank, np.int64)


def reshape(labels: Labels, before: tuple[int, ...], after: tuple[int, ...]) -> Labels:
    """Labels in another shape; axes that do not take part keep size one.

    >>> reshape(np.arange(6).reshape(1, 6), (1000, 6), (10, 100, 2, 3)).shape
    (1, 1, 2, 3)
    """
    if prod(before) == 0:
        return fixed(len(after))
    # Where the products of the leading sizes agree, the reshape falls into parts that do not mix.
    products = [np.cumprod(sizes, dtype=np.int64) for sizes in (before, after)]
    cuts = np.intersect1d(products[0], products[1])
    old, new = (np.searchsorted(cuts, product) for product in products)
    mixed = {int(part) for part, size in zip(old, labels.shape) if size > 1}
    full = [size if part in mixed else 1 for part, size in zip(old, before)]
    target = [size if part in mixed else 1 for part, size in zip(new, after)]
    return compact(np.broadcast_to(labels, full).reshape(target))


def _concat(labels: Sequence[Labels], shapes: Sequence[tuple[int, ...]], axis: int, new_axis: bool) -> Labels:
    parts = list(labels)
    sizes = [shape[axis] for shape in shapes] if not new_axis else [1] * len(parts)
    if new_axis:
        parts = [np.expand_dims(part, axis) for part in parts]
    common = [max(part.shape[other] for part in parts) for other in range(parts[0].ndim)]
    shaped = []
    for part, size in zip(parts, sizes):
        common[axis] = size
        shaped.append(np.broadcast_to(part, common))
    return compact(np.concatenate(shaped, axis))


def _slice(labels: Labels, axis: int, start: int | None, stop: int | None, step: int | None) -> Labels | None:
    if labels.shape[axis] == 1:
        return labels
    return None if step is None else labels[(slice(None),) * axis + (slice(start, stop, step),)]


def _split(labels: Labels, axis: int, sizes: Sequence[int], drop: bool) -> list[Labels]:
    parts = [labels] * len(sizes) if labels.shape[axis] == 1 else np.split(labels, np.cumsum(sizes)[:-1], axis)
    return [compact(part.squeeze(axis) if drop else part) for part in parts]


def _repeat(labels: Labels, axis: int, times: int, interleave: bool) -> Labels:
    if labels.shape[axis] == 1:
        return labels
    return np.repeat(labels, times, axis) if interleave else np.concatenate([labels] * times, axis)


def _pad(
    labels: Labels, pads: Sequence[tuple[int, int]], value: float | None, shape: tuple[int, ...]
) -> list[Labels] | None:
    """Zeros stay what they are under every factor; other numbers pass only as channels of their own."""
    padded = [axis for axis, pair in enumerate(pads) if any(pair)]
    if min((n for pair in pads for n in pair), default=0) < 0:
        return None if any(labels.shape[axis] > 1 for axis in padded) else [labels]
    along = [axis for axis in padded if labels.shape[axis] > 1]
    if value is None:  # copies of the data
        return None if along else [labels]
    if value != 0 and labels.any() and along != padded:
        return None
    widths = [pads[axis] if axis in along else (0, 0) for axis in range(labels.ndim)]
    return [np.pad(labels, widths)]


def _gather(labels: Labels, axis: int, indices: Sequence[int] | None, rank: int) -> list[Labels] | None:
    if labels.shape[axis] > 1:
        return None if indices is None else [compact(labels.take(np.asarray(indices), axis))]
    more = rank - labels.ndim
    if more < 0:
        return [labels.squeeze(axis)]
    return [labels.reshape(*labels.shape[:axis], *(1,) * (more + 1), *labels.shape[axis + 1 :])]
