# SPDX-License-Identifier: Apache-2.0
"""The edit that removes channels, from which elements of values and constants go: indices, shapes, attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fewbit.errors import UsageError
from fewbit.graph.edits import RemoveChannels
from fewbit.graph.ir import Graph, Node, constant_view
from fewbit.graph.movement import varying


def removal_edit(
    graph: Graph, values: Mapping[str, np.ndarray], constants: Sequence[tuple[str, np.ndarray]]
) -> RemoveChannels:
    """What changes in a graph if channels go.

    Args:
        graph: of the model.
        values: for each value a mask of the elements that go, of size one along axes on which it does not depend.
        constants: the same for constants; a constant may occur once per axis.

    Raises:
        UsageError: a constant would lose all its channels.
    """
    keep: dict[tuple[str, int], np.ndarray] = {}
    for name, gone in constants:
        for axis in varying(gone):
            if gone.any():
                keep[name, axis] = np.flatnonzero(_staying(gone, axis))
    empty = sorted({name for (name, _), indices in keep.items() if not len(indices)})
    if empty:
        raise UsageError(
            f"{', '.join(empty[:4])} would lose all channels",
            code="prune-all",
            expected="at least one group left in every layer",
            hint="remove fewer",
        )
    shapes = {name: _smaller(graph.dims(name) or (), gone) for name, gone in values.items()}
    for name in graph.producers:  # weights behind casts, transpositions and the like
        view = constant_view(graph, name)
        if view is not None:
            sizes = zip(graph.dims(name) or (), view.axes)
            shapes[name] = tuple(n if a is None else len(keep.get((view.constant, a), range(n))) for n, a in sizes)
    shapes = {name: shape for name, shape in shapes.items() if shape != graph.dims(name)}
    attrs = {}
    for node in graph.nodes:
        changed = _changed_attrs(graph, node, shapes, values)
        attrs[node.name] = {name: value for name, value in changed.items() if value != node.attrs[name]}
    return RemoveChannels(keep, shapes, {name: changed for name, changed in attrs.items() if changed})


def _staying(gone: np.ndarray, axis: int) -> np.ndarray:
    """Which indices of an axis have elements that stay."""
    others = tuple(other for other in range(gone.ndim) if other != axis)
    return np.atleast_1d(~gone.all(axis=others))


def _smaller(dims: tuple[int, ...], gone: np.ndarray) -> tuple[int, ...]:
    return tuple(size if gone.shape[axis] == 1 else int(_staying(gone, axis).sum()) for axis, size in enumerate(dims))


def _changed_attrs(
    graph: Graph, node: Node, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Attributes that count channels."""
    data, attrs = node.operand(0) or "", node.attrs
    before = graph.dims(data) or ()
    after = shapes.get(data, before)
    if after == before and not any(name in shapes for name in node.outputs):
        return {}
    if node.op in ("conv", "conv_transpose", "group_norm") and attrs.get("groups", 1) > 1:
        axis = attrs["axis"] if node.op == "group_norm" else str(attrs["data"]).index("C")
        return {"groups": attrs["groups"] * after[axis] // before[axis]}
    if node.op == "split" and not attrs.get("drop"):
        return {"sizes": tuple(shapes.get(name, graph.dims(name) or ())[attrs["axis"]] for name in node.outputs)}
    counts = node.op == "slice" or (node.op == "gather" and "indices" in attrs)
    if not counts or data not in values or values[data].shape[attrs["axis"]] == 1:
        return {}
    stays = _staying(values[data], attrs["axis"])
    number = np.cumsum(stays) - 1
    if node.op == "gather":
        return {"indices": tuple(int(number[index]) for index in np.ravel(attrs["indices"]) if stays[index])}
    chosen = np.arange(len(stays))[attrs["start"] : attrs["stop"] : attrs["step"]]
    chosen = number[chosen[stays[chosen]]]
    if not len(chosen):
        return {}
    first, last = int(chosen[0]), int(chosen[-1])
    return {"start": first, "stop": last + 1 if attrs["step"] > 0 else last - 1 if last else None}
