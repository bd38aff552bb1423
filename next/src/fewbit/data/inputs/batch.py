# SPDX-License-Identifier: Apache-2.0
"""Batches: rows with a batch axis of size 1 are joined along it, and a sample that holds several rows is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fewbit.data.inputs.match import InputMatch
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


def split_rows(match: InputMatch, location: Location, label: Any) -> list[Batch]:
    """The rows of a sample, each a batch of one."""
    count = match.rows
    if count == 1:
        return [Batch(match.inputs, (location,), (label,))]
    labelled = isinstance(label, Sequence | np.ndarray) and not isinstance(label, str) and len(label) == count
    return [
        Batch(
            {name: _take(array, match.axes[name], index) for name, array in match.inputs.items()},
            (location,),
            (label[index] if labelled else label,),
        )
        for index in range(count)
    ]


def join_rows(rows: Sequence[Batch], info: ModelInfo) -> Batch:
    """One batch of rows that have the same inputs and shapes.

    Raises:
        DataError: they differ.
    """
    axes = {tensor.name: tensor.batch_axis for tensor in info.inputs if tensor.shape is not None}
    names = rows[0].inputs
    inputs: dict[str, Any] = {}
    for row in rows:
        if row.inputs.keys() != names.keys():
            raise _ragged(f"inputs {', '.join(names)} and {', '.join(row.inputs)}", row)
        for name in names:
            shapes = [list(np.shape(batch.inputs[name])) for batch in (rows[0], row)]
            if shapes[0] != shapes[1]:
                raise _ragged(f"shapes of {name!r}: {shapes[0]} and {shapes[1]}", row)
            if axes.get(name, 0) is None and not np.array_equal(row.inputs[name], names[name]):
                raise _ragged(f"values of {name!r}, which has no batch axis", row)
    for name in names:
        axis = axes.get(name, 0)
        single = len(rows) == 1 or axis is None  # without a batch axis: one value for all samples of the batch
        inputs[name] = names[name] if single else np.concatenate([row.inputs[name] for row in rows], axis)
    return Batch(inputs, tuple(row.locations[0] for row in rows), tuple(row.labels[0] for row in rows))


def _take(array: Any, axis: int | None, index: int) -> Any:
    return array if axis is None or not isinstance(array, np.ndarray) else np.take(array, [index], axis=axis)


def _ragged(difference: str, row: Batch) -> DataError:
    return DataError(
        f"samples of one batch differ: {difference}", code="batch-ragged", where=str(row.locations[0]),
        expected="one shape per batch", hint="{batch_size=1}, or resize or pad: {image_size}, {max_length}",
    )  # fmt: skip
