# SPDX-License-Identifier: Apache-2.0
"""Maps samples to the inputs of one model, or says for each input why it cannot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fewbit.data.dataset import Dataset
from fewbit.data.types import Location, Sample
from fewbit.errors import DataError
from fewbit.model_info import ModelInfo, TensorInfo

Inputs = Mapping[str, np.ndarray]


class InputAdapter:
    """Turns samples into batches of model inputs.

    Args:
        info: the model's inputs.
    """

    def __init__(self, info: ModelInfo):
        self.info = info

    def __call__(self, samples: Sequence[Sample], locations: Sequence[Location]) -> Inputs:
        """One batch."""
        batch = {}
        for tensor in self.info.inputs:
            if tensor.required:
                arrays = [self._array(tensor, sample, location) for sample, location in zip(samples, locations)]
                batch[tensor.name] = np.concatenate(arrays)
        return batch

    def _array(self, tensor: TensorInfo, sample: Sample, location: Location) -> np.ndarray:
        if tensor.name not in sample:
            raise DataError(
                f"the sample has no array {tensor.name!r}", code="input-missing", where=str(location),
                expected=str(tensor), hint=f"name it {tensor.name!r}; the sample has {', '.join(sample)}",
            )  # fmt: skip
        array = np.asarray(sample[tensor.name])
        if tensor.shape is not None and array.ndim == len(tensor.shape) - 1:
            array = array[None]
        if tensor.dtype is not None and str(array.dtype) != tensor.dtype:
            array = array.astype(tensor.dtype)
        sizes = () if tensor.shape is None else tensor.shape
        if tensor.shape is not None and (
            array.ndim != len(sizes)
            or any(isinstance(want, int) and want != have for want, have in zip(sizes[1:], array.shape[1:]))
        ):
            raise DataError(
                f"the model takes {tensor}, the data gives {list(array.shape)}", code="input-mismatch",
                where=str(location), expected=str(tensor), hint="{transform=FILE.py:FN}",
            )  # fmt: skip
        return array


def model_inputs(dataset: Dataset, model: Any, *, batch_size: int = 1) -> Iterator[Inputs]:
    """Batches of a dataset as inputs of a model."""
    adapter = InputAdapter(model)
    for start in range(0, len(dataset), batch_size):
        indices = range(start, min(start + batch_size, len(dataset)))
        yield adapter([dataset[index] for index in indices], [dataset.location(index) for index in indices])
