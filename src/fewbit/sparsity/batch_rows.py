# SPDX-License-Identifier: Apache-2.0
"""The samples of a batch, one by one, with what a model made of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from torch import Tensor


def rows_of(outputs: Any, batch: Mapping[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each sample alone, as a batch of one."""
    size = batch_size(batch)
    for row in range(size):
        yield _row(outputs, row, size), {name: _row(value, row, size) for name, value in batch.items()}


def batch_size(batch: Mapping[str, Any]) -> int:
    """How many samples a batch has."""
    return max((size for value in batch.values() if (size := _size(value)) is not None), default=0)


def _size(value: Any) -> int | None:
    if isinstance(value, tuple):
        return next((size for each in value if (size := _size(each)) is not None), None)
    return len(value) if isinstance(value, list) or (isinstance(value, Tensor) and value.ndim) else None


def _row(value: Any, row: int, size: int) -> Any:
    """One sample of whatever holds one for each."""
    if isinstance(value, SimpleNamespace):
        value = vars(value)
    if isinstance(value, Mapping):  # a model's outputs, whose tensors are asked for as attributes
        return SimpleNamespace(**{str(name): _row(each, row, size) for name, each in value.items()})
    if isinstance(value, tuple):
        return tuple(_row(each, row, size) for each in value)
    holds = isinstance(value, list) or (isinstance(value, Tensor) and value.ndim > 0)
    return value[row : row + 1] if holds and len(value) == size else value
