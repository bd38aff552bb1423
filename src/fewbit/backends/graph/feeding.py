# SPDX-License-Identifier: Apache-2.0
"""Whether an item is what a graph takes, said before it is run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.shapes import sides
from fewbit.errors import DataError


def check_feed(graph: ir.Graph, item: Mapping[str, Any], index: int) -> None:
    """Hold an item against the inputs of a graph.

    Args:
        graph: the graph.
        item: arrays by input.
        index: of the item, for the message.

    Raises:
        DataError: names, types or shapes that do not fit.
    """
    takes = {value.name or "": value for value in graph.inputs}
    if set(item) != set(takes):
        raise DataError(
            f"the item has {_listed(item)}",
            code="input-mismatch",
            where=f"item {index}",
            expected=f"the model's inputs: {_listed(takes)}",
        )
    for name, value in takes.items():
        array = item[name]
        wanted = None if value.dtype is None else value.dtype.numpy()
        known = sides(value)
        got = tuple(getattr(array, "shape", ()))
        fits = known is None or len(known) == len(got)
        fits = fits and all(a == b or not isinstance(a, int) for a, b in zip(known or (), got))
        kind = getattr(array, "dtype", type(array).__name__)
        if not fits or (wanted is not None and kind != wanted and wanted.kind != "O"):
            raise DataError(
                f"input {name!r} is {kind} {list(got)}",
                code="input-mismatch",
                where=f"item {index}",
                expected=f"{wanted} {'' if known is None else ['?' if side is None else side for side in known]}",
            )
        _refuse_non_finite(name, array, index)


def _refuse_non_finite(name: str, array: Any, index: int) -> None:
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or not array.size:
        return
    # The sum is not finite if anything is not, and nearly never otherwise.
    if not np.isfinite(np.sum(array, dtype=np.float64)) and not np.all(np.isfinite(array)):
        bad = np.argwhere(~np.isfinite(array))
        raise DataError(
            f"{len(bad)} of {array.size} values of the input {name!r} are not finite, the first at {bad[0].tolist()}",
            code="not-finite",
            where=f"item {index}",
            expected="numbers that are neither NaN nor infinite",
            try_="leave this sample out, or look at how it was made",
        )


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names)) or "nothing"
