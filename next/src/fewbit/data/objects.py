# SPDX-License-Identifier: Apache-2.0
"""Objects in memory as sources: lists, arrays, dicts of columns, loaders, datasets, generators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fewbit.data.types import DataReport, Location
from fewbit.errors import DataError


def object_source(data: Any, report: DataReport, options: Mapping[str, Any]) -> ObjectSource:
    """A source over an object."""
    if isinstance(data, Sequence):
        return ObjectSource(data)
    raise DataError(
        f"an object of type {type(data).__name__} holds no samples", code="object-unknown",
        expected="a path, a list, an array, a loader, a generator", hint="give a list of samples",
    )  # fmt: skip


class ObjectSource:
    """The elements of a sequence."""

    def __init__(self, items: Sequence[Any]):
        self._items = items
        self.facts: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        return self._items[index]

    def location(self, index: int) -> Location:
        """Its number."""
        return Location(index=index)

    def strata(self) -> None:
        """Nothing is known."""
        return
