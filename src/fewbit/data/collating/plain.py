# SPDX-License-Identifier: Apache-2.0
"""Fields of no particular kind: numbers, tensors, texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewbit.data.collating.columns import Columns
from fewbit.data.collating.filling import as_array, is_array
from fewbit.data.collating.padding import Padding
from fewbit.data.collating.ragged import join_ragged
from fewbit.data.describe import describe


def join_plain(columns: Columns, name: str, padding: Padding) -> dict[str, Any]:
    """One field: stacked if it is numbers, filled up if these differ in their first axis, else a list.

    Raises:
        DataError: a sample whose field is of another kind or shape.
    """
    values = columns.values[name]
    kinds = [_kind(value) for value in values]
    if len(set(kinds)) > 1:
        row = next(row for row, kind in enumerate(kinds) if kind != kinds[0])
        raise columns.misfit(row, name, describe(values[row]), f"{kinds[0]}, as before it")
    if kinds[0] == "something else":
        return {name: columns.take(name)}
    if kinds[0] == "a number":
        return {name: _numbers(columns.take(name))}
    shapes = [value.shape if hasattr(value, "shape") else as_array(value).shape for value in values]
    if len(set(shapes)) > 1:
        return join_ragged(columns, name, 0, padding, alone=False)
    if all(isinstance(value, Tensor) for value in values):
        return {name: torch.stack(columns.take(name))}
    return {name: torch.from_numpy(np.stack([as_array(value) for value in columns.take(name)]))}


def _numbers(values: list[Any]) -> Tensor:
    if all(isinstance(value, Tensor) for value in values):
        return torch.stack(values)
    made = np.array([as_array(value) for value in values])
    return torch.from_numpy(made.astype(np.int64) if made.dtype.kind in "iu" else made)


def _kind(value: Any) -> str:
    if is_array(value):
        return "an array"
    numeric = isinstance(value, bool | int | float | np.number | np.bool_ | Tensor | np.ndarray)
    return "a number" if numeric else "something else"
