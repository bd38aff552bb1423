# SPDX-License-Identifier: Apache-2.0
"""Batches: rows with a batch axis of size 1 are joined along it, and a sample that holds several rows is cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fewbit.data.types import Location
from fewbit.errors import DataError
from fewbit.model_info import ModelInfo


@dataclass(frozen=True)
class Batch:
    """Inputs of one forward pass.

    Args:
        inputs: arrays by input name, with the batch axis; for modules also what is no array.
        locations: one per sample; a batch of a loader has one.
        labels: one per sample, `None` if it has none; of a loader's batch, what came with it.
    """

    inputs: dict[str, Any]
    locations: tuple[Location, ...]
    labels: tuple[Any, ...]

    def __len__(self) -> int:
        """How many samples it holds: the size of the first axis that most inputs share."""
        sizes = [value.shape[0] for value in self.inputs.values() if getattr(value, "ndim", 0)]
        return max(sizes, key=sizes.count) if sizes else 1


@dataclass(frozen=True, slots=True)
class Row:
    """One sample as model inputs, with a batch axis; `alone` if it is a complete batch already."""

    inputs: dict[str, Any]
    location: Location
    label: Any = None
    alone: bool = False


def split_rows(sample: Row, count: int, axes: Mapping[str, int | None]) -> list[Row]:
    """The rows of a sample that holds several.

    Args:
        sample: with a batch axis of size `count`.
        count: how many rows it holds.
        axes: the batch axis of each input; `None` if it has none.
    """
    if count == 1:
        return [sample]
    label = sample.label
    labelled = isinstance(label, Sequence | np.ndarray) and not isinstance(label, str) and len(label) == count
    return [
        Row(
            {name: _take(array, axes[name], index) for name, array in sample.inputs.items()},
            sample.location,
            label[index] if labelled else label,
        )
        for index in range(count)
    ]


def join_rows(rows: Sequence[Row], info: ModelInfo) -> Batch:
    """One batch of rows that have the same inputs and shapes.

    Raises:
        DataError: they differ.
    """
    axes = {tensor.name: tensor.batch_axis if tensor.shape is not None else 0 for tensor in info.inputs}
    for row in rows:
        if row.inputs.keys() != rows[0].inputs.keys():
            raise _ragged(f"inputs {', '.join(rows[0].inputs)} and {', '.join(row.inputs)}", row.location)
    inputs: dict[str, Any] = {}
    for name in rows[0].inputs:
        arrays, axis = [row.inputs[name] for row in rows], axes.get(name, 0)
        if axis is None:  # an input without a batch axis: one value for all samples of the batch
            if any(not np.array_equal(array, arrays[0]) for array in arrays):
                raise _ragged(f"values of {name!r}, which has no batch axis", rows[0].location)
            inputs[name] = arrays[0]
            continue
        odd = next((row for row, array in zip(rows, arrays) if np.shape(array) != np.shape(arrays[0])), None)
        if odd is not None:
            shapes = f"{list(np.shape(arrays[0]))} and {list(np.shape(odd.inputs[name]))}"
            raise _ragged(f"shapes of {name!r}: {shapes}", odd.location)
        inputs[name] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis)
    return Batch(inputs, tuple(row.location for row in rows), tuple(row.label for row in rows))


def _take(array: Any, axis: int | None, index: int) -> Any:
    if axis is None or not isinstance(array, np.ndarray):
        return array
    return np.take(array, [index], axis=axis)


def _ragged(difference: str, location: Location) -> DataError:
    return DataError(
        f"samples of one batch differ: {difference}", code="batch-ragged", where=str(location),
        expected="one shape per batch", hint="{batch_size=1}, or resize or pad: {image_size}, {max_length}",
    )  # fmt: skip
