# SPDX-License-Identifier: Apache-2.0
"""`Table`: rows by position, whatever they are stored in. CSV, JSON, Parquet, Excel, SQL and Hugging Face implement it.

A format opens its table and hands it to `meaning.row_source`, which finds out what the columns mean:

    def scan(files, report, *, depth, options):
        table = ParquetTable(files, report, depth)
        return row_source(table, files, report, depth=depth, options=options)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from fewbit.data.types import Location

Row = dict[str, Any]
"""One record as plain Python values: text, numbers, booleans, `None`, lists, dicts, bytes."""


@runtime_checkable
class Table(Protocol):
    """Rows by position. Cheap to make and to pickle; nothing is read until it is asked for.

    Rows are ordered by split: train, val, test, then those of no split. Rows that were dropped, or cannot be read at
    all, have no position.
    """

    @property
    def columns(self) -> Sequence[str]:
        """The columns known without reading the rows, in order; a row may lack some and have others."""
        ...

    def __len__(self) -> int:
        """How many rows there are; may have to read everything once."""
        ...

    def row(self, index: int) -> Row:
        """One row.

        Raises:
            IndexError: there are fewer rows.
            SampleError: it is damaged.
        """
        ...

    def fetch(self, indices: Sequence[int]) -> list[Row]:
        """Several rows in the order asked for, read together where that is cheaper than one by one."""
        ...

    def blocks(self) -> Iterator[tuple[int, Sequence[Row]]]:
        """One pass over all rows, in order: position of the first row, and a few thousand rows.

        Must be cheap to begin and to abandon: the first block is also how the layout is recognized.
        """
        ...

    def location(self, index: int) -> Location:
        """File, and line or row, of one row."""
        ...

    def split(self, index: int) -> str | None:
        """Train, val or test, if the table knows."""
        ...


class ListTable:
    """Rows that are already in memory.

    Args:
        rows: plain dicts.
        file: what a location names.
        split: of all rows.

    >>> table = ListTable([{"text": "a"}, {"text": "b", "label": 1}], "rows.json")
    >>> table.columns, table.row(1)["label"], str(table.location(1))
    (['text', 'label'], 1, 'rows.json row 1')
    """

    def __init__(self, rows: Sequence[Row], file: str = "", split: str | None = None):
        self._rows, self._file, self._split = rows, file, split
        self.columns = union(row.keys() for row in rows)

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> Row:
        """One row."""
        return self._rows[index]

    def fetch(self, indices: Sequence[int]) -> list[Row]:
        """Several rows."""
        return [self._rows[index] for index in indices]

    def blocks(self) -> Iterator[tuple[int, list[Row]]]:
        """All rows, a thousand at a time."""
        for start in range(0, len(self._rows), 1000):
            yield start, list(self._rows[start : start + 1000])

    def location(self, index: int) -> Location:
        """The row."""
        return Location(self._file, row=index, index=index)

    def split(self, index: int) -> str | None:
        """The split of all rows."""
        return self._split


def union(names: Iterable[Iterable[str]]) -> list[str]:
    """Every name once, in the order of first appearance.

    >>> union([["a", "b"], ["c", "a"]])
    ['a', 'b', 'c']
    """
    return list(dict.fromkeys(name for group in names for name in group))


def column_lists(rows: Sequence[Row]) -> dict[str, list[Any]] | None:
    """Rows as lists by column; `None` if they do not all have the same columns.

    >>> column_lists([{"a": 1, "b": 2}, {"a": 3, "b": 4}]), column_lists([{"a": 1}, {"b": 2}])
    ({'a': [1, 3], 'b': [2, 4]}, None)
    """
    if (lists := getattr(rows, "lists", None)) is not None:  # held by column already
        return dict(lists)
    names = rows[0].keys()
    if set(map(len, rows)) != {len(names)}:
        return None
    try:
        return {name: [row[name] for row in rows] for name in names}
    except KeyError:
        return None


def split_ranges(table: Table) -> dict[str | None, tuple[int, int]]:
    """First position and end of each split; reads all rows if its length is not known.

    >>> split_ranges(ListTable([{}, {}, {}], split="val"))
    {'val': (0, 3)}
    """
    ranges: dict[str | None, tuple[int, int]] = {}
    start, length = 0, len(table)
    while start < length:
        split, low, high = table.split(start), start, length - 1
        while low < high:  # the last row of this split, by bisection
            middle = (low + high + 1) // 2
            low, high = (middle, high) if table.split(middle) == split else (low, middle - 1)
        ranges[split] = (start, low + 1)
        start = low + 1
    return ranges


def field_location(table: Table, position: int, column: str) -> Location:
    """File, line or row, and column of one value."""
    location = table.location(position)
    return Location(location.file, location.line, location.row, location.byte, position, column)


def nested(row: Row, column: str) -> Any:
    """The value of a column; dots select fields of nested objects unless a column has that very name.

    >>> nested({"meta": {"lang": "en"}, "a.b": 1}, "meta.lang"), nested({"a.b": 1}, "a.b"), nested({}, "x.y")
    ('en', 1, None)
    >>> nested({"messages": [{"content": "hi"}]}, "messages.0.content")
    'hi'
    """
    if column in row or "." not in column:
        return row.get(column)
    value: Any = row
    for key in column.split("."):
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and key.removeprefix("-").isdecimal() and key.isascii() and len(key) < 19:
            value = value[int(key)] if -len(value) <= int(key) < len(value) else None
        else:
            return None
    return value
