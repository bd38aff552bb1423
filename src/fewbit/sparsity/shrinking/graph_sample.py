# SPDX-License-Identifier: Apache-2.0
"""Something to run a graph on where there is no data: random numbers in the shapes that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.sessions import session
from fewbit.backends.graph.shapes import sides
from fewbit.errors import UsageError

_OPEN_SIDES = (64, 224, 16, 7, 320, 1)  # tried one after the other: networks of pictures halve them a few times


def random_item(model: ir.Model) -> Mapping[str, Any]:
    """Numbers that the graph runs on; the batch, where it is open, is of two.

    Raises:
        UsageError: an input of an unknown shape, or a graph that runs on nothing that was tried.
    """
    tried = []
    for batch in (2, 1):
        for side in _OPEN_SIDES:
            item = {value.name or "": _array(value, batch, side) for value in model.graph.inputs}
            try:
                session(model, optimize=False).run(None, item)
            except Exception as error:  # the runtime's errors have no common class but this
                tried.append(str(error)[:200])
                continue
            return item
    raise UsageError(
        f"the graph does not run on random numbers: {tried[-1]}",
        expected="a model that runs on numbers between 0 and 1 of any size where its inputs leave it open",
        try_="give data, of which one sample shows the shapes",
    )


def _array(value: ir.Value, batch: int, side: int) -> Any:
    known = sides(value)
    if known is None or value.dtype is None:
        raise UsageError(f"input {value.name!r} has no known shape", expected="a number of axes", try_="give data")
    shape = [one if isinstance(one, int) else side if axis else batch for axis, one in enumerate(known)]
    draw = np.random.default_rng(0)
    if value.dtype.numpy().kind in "iub":
        return draw.integers(0, 2, shape).astype(value.dtype.numpy())
    return draw.random(shape).astype(value.dtype.numpy())
