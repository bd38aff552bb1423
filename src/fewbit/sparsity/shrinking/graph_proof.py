# SPDX-License-Identifier: Apache-2.0
"""Proof that a graph without channels answers as the whole graph does with these channels at zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.sessions import session
from fewbit.backends.graph.shapes import sides
from fewbit.errors import DataError
from fewbit.sparsity.shrinking.classes import Labels
from fewbit.sparsity.shrinking.graph_walk import Walk

Feed = Mapping[str, Any]
_WITHIN = {"float16": 3e-2, "bfloat16": 3e-2}
_FLOAT = 1e-4  # of the largest number: sums in another order differ by far less, another channel by far more


def probes(model: ir.Model, item: Feed) -> list[Feed]:
    """The item, and a batch of another size where the graph leaves that open."""
    open_batch = all(not isinstance((sides(value) or [0])[0], int) for value in model.graph.inputs)
    if not open_batch or any(np.ndim(array) == 0 for array in item.values()):
        return [item]
    more = {name: np.concatenate([array, array[::-1], array]) for name, array in item.items()}
    return [item, more] if _runs(model, more) else [item]


def inner_values(walk: Walk, gone: set[int]) -> dict[str, list[Labels]]:
    """What every reader of channels gives, by name, and which of its places are left along each axis."""
    out = np.array(sorted(gone), np.int64)
    found = {}
    for read in walk.reads:
        value = read.node.outputs[0]
        if not value.is_graph_output():
            axes = [labels for labels in walk.labels[value] if labels is not None]
            found[value.name or ""] = [np.flatnonzero(~np.isin(walk.classes.roots(axis), out)) for axis in axes]
    return found


def differs(small: ir.Model, whole: ir.Model, items: Sequence[Feed], inner: Mapping[str, list[Labels]]) -> str | None:
    """What two graphs answer differently, beyond float rounding; none if nothing.

    Args:
        small: without channels.
        whole: with these at zero where they are read.
        items: arrays by input; on the first, what layers give inside is compared too.
        inner: of `inner_values`.
    """
    try:
        pair = [session(_showing(model, list(inner)), optimize=False) for model in (small, whole)]
    except DataError as error:
        return error.what
    names = [value.name for value in small.graph.outputs]
    for index, item in enumerate(items):
        asked = [*([] if index else inner), *names]
        try:
            found = pair[0].run(asked, dict(item))
        except Exception as error:  # the runtime's errors have no common class but this
            return f"it fails: {str(error)[:200]}"
        for name, a, b in zip(asked, found, pair[1].run(asked, dict(item))):
            if isinstance(b, np.ndarray) and (why := _differs(a, _left(b, inner.get(name or "", [])))) is not None:
                return f"{name}: {why}"
    return None


def _showing(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """A copy of a graph that gives out values from inside too."""
    copy = model.clone(deep_copy=False)
    values = {value.name: value for node in copy.graph for value in node.outputs}
    copy.graph.outputs.extend(values[name] for name in names)
    return copy


def _left(array: Any, axes: Sequence[Labels]) -> Any:
    for axis, places in enumerate(axes):
        array = array.take(places, axis)
    return array


def _differs(a: Any, b: Any) -> str | None:
    if a.shape != b.shape:
        return f"shape {a.shape} instead of {b.shape}"
    if b.dtype.kind != "f" or not b.size:
        return None
    wide, other = np.asarray(a, np.float64), np.asarray(b, np.float64)
    finite = np.isfinite(other)
    if not np.array_equal(np.isfinite(wide), finite):
        return "numbers that are not finite elsewhere"
    if not finite.any():
        return None
    gap, largest = np.abs(wide - other)[finite].max(), np.abs(other[finite]).max()
    within = _WITHIN.get(str(b.dtype), _FLOAT) * max(largest, 1e-6)
    return None if gap <= within else f"off by {gap:.3g}, of numbers up to {largest:.3g}"


def _runs(model: ir.Model, item: Feed) -> bool:
    try:
        session(model, optimize=False).run(None, dict(item))
    except Exception:  # the runtime's errors have no common class but this
        return False
    return True
