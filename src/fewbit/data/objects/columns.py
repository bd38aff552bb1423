# SPDX-License-Identifier: Apache-2.0
"""Columns of equal length (`{"input_ids": tensor, …}`) and single arrays as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fewbit.data.batch import whole_labels
from fewbit.data.sample import Place, Sample
from fewbit.data.source import Source
from fewbit.errors import DataError


class ColumnRows:
    """The rows of columns: `rows[i]` is `{name: column[i]}`.

    >>> rows = ColumnRows({"x": [1, 2], "y": ["a", "b"]})
    >>> len(rows), rows[1]
    (2, {'x': 2, 'y': 'b'})
    """

    def __init__(self, columns: Mapping[str, Any]):
        lengths = {name: len(column) for name, column in columns.items() if hasattr(column, "__len__")}
        if len(lengths) < len(columns) or len(set(lengths.values())) > 1:
            missing = [name for name in columns if name not in lengths]
            found = ", ".join(f"{name}: {length:,}" for name, length in lengths.items())
            raise DataError(
                f"columns are not of one length: {found}" + (f"; no length: {', '.join(missing)}" if missing else ""),
                code="columns-uneven",
                where="dict of columns",
                expected="one entry a sample in every column",
                try_="wrap it in a list, [your_dict], if the dict is one ready model input",
            )
        self._columns = dict(columns)
        self._length = next(iter(lengths.values()), 0)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: column[index] for name, column in self._columns.items()}


class ColumnSource(Source):
    """A dict of columns: one sample a row."""

    def __init__(self, columns: Mapping[str, Any]):
        super().__init__()
        self._rows = ColumnRows(columns)
        self.facts["columns"] = list(columns)
        self._labels = next((columns[name] for name in ("label", "labels") if name in columns), None)

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, index: int) -> Sample:
        return Sample(self._rows[index], place=Place("columns", index=index))

    def labels(self) -> Sequence[int] | None:
        return None if self._labels is None else whole_labels(self._labels, len(self))


class ArraySource(Source):
    """One array or tensor: its first axis counts samples."""

    def __init__(self, array: Any):
        super().__init__()
        if not len(array.shape):
            raise DataError("a 0-d array holds no samples", code="columns-uneven", expected="samples on the first axis")
        self._array = array

    def __len__(self) -> int:
        return int(self._array.shape[0])

    def get(self, index: int) -> Any:
        return self._array[index]
