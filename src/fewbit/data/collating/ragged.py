# SPDX-License-Identifier: Apache-2.0
"""Signals of different lengths, such as sound: filled up with silence, with their lengths and a mask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewbit.data.collating.columns import Columns
from fewbit.data.collating.filling import Array, as_array, fill_blocks, where_kept
from fewbit.data.collating.padding import Padding, rounded

SIGNALS = {"input_values": 0, "input_features": 0, "audio": 0, "waveform": 0, "speech": 0, "signal": 0}
"""Fields that are signals whatever their shapes, and the axis of time."""


def join_ragged(columns: Columns, name: str, axis: int, padding: Padding, alone: bool) -> dict[str, Tensor]:
    """One field, filled up along one axis.

    Args:
        columns: with that field.
        name: of it.
        axis: the one that differs.
        padding: whether filling is allowed, and to multiples of what.
        alone: whether the batch has no other mask, so that this one is `attention_mask`.

    Returns:
        The field, its lengths, and a mask of the same length: 1 where there is signal.

    Raises:
        DataError: other axes differ, or this one may not.
    """
    values = columns.take(name)
    arrays = [as_array(_samples(columns, name, row, values)) for row in range(len(values))]
    if any(array.dtype == np.float64 for array in arrays):
        arrays = [array.astype(np.float32) for array in arrays]
    for row, array in enumerate(arrays):
        _check(columns, name, row, array, arrays[0], axis, padding)
    lengths = np.array([array.shape[axis] for array in arrays], np.int64)
    shape = list(arrays[0].shape)
    shape[axis] = rounded(padding, int(lengths.max()))
    mask = torch.from_numpy(where_kept(np.zeros_like(lengths), lengths, shape[axis])).long()
    return {
        name: fill_blocks(arrays, shape, 0),
        "lengths" if alone else f"{name}_lengths": torch.from_numpy(lengths),
        "attention_mask" if alone else f"{name}_mask": mask,
    }


def _check(columns: Columns, name: str, row: int, array: Array, first: Array, axis: int, padding: Padding) -> None:
    if array.ndim != first.ndim or not 0 <= axis < array.ndim:
        raise columns.misfit(row, name, f"shape {array.shape}", f"as many axes as {first.shape}, more than {axis}")
    others = [i for i in range(array.ndim) if i != axis and array.shape[i] != first.shape[i]]
    if others:
        helps = f"ragged={{{name!r}: {others[0]}}} if axis {others[0]} is the one that differs"
        raise columns.misfit(row, name, f"shape {array.shape}", f"{first.shape} but for axis {axis}", helps)
    if padding.to == "none" and array.shape != first.shape:
        raise columns.misfit(row, name, f"shape {array.shape}", f"{first.shape}, as before it", "padding=True")


def _samples(columns: Columns, name: str, row: int, values: list[Any]) -> Any:
    """The numbers of a signal; one that comes as `{"array": …, "sampling_rate": …}` has to have the others' rate."""
    value = values[row]
    if not isinstance(value, Mapping):
        return value
    if "array" not in value:
        raise columns.misfit(row, name, f"a dict of {', '.join(value)}", "an array, or a dict with 'array' in it")
    first = values[0].get("sampling_rate") if isinstance(values[0], Mapping) else None
    if value.get("sampling_rate") != first:
        raise columns.misfit(row, name, f"{value.get('sampling_rate')} Hz", f"{first} Hz, as before it", "resample it")
    return value["array"]
