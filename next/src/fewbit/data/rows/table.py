# SPDX-License-Identifier: Apache-2.0
"""`Table`: rows by position, whatever they are stored in. A format opens one and hands it to `source.row_source`."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from fewbit.data.cache import cache_folder, cached_file
from fewbit.data.types import DataReport, Files, Location

Row = dict[str, Any]
"""One record as plain Python values: text, numbers, booleans, `None`, lists, dicts, bytes."""
BLOCK = 1000
IN_MEMORY = 1 << 21
"""Numbers of more rows than this are kept in a file."""


class Table:
    """Rows by position, ordered by split: train, val, test, then those of no split.

    Cheap to make and to pickle; nothing is read until it is asked for. Rows that cannot be read have no position.

    Attributes:
        columns: those known without reading the rows; a row may lack some and have others.
        text_only: every value is text, of which some looks like numbers: CSV.
        embedded: columns of image files, which `blocks` may replace by anything but their bytes.
    """

    columns: Sequence[str] = ()
    text_only = False
    embedded: tuple[str, ...] = ()

    def __len__(self) -> int:
        """How many rows there are; may have to read everything once."""
        raise NotImplementedError

    def fetch(self, indices: Sequence[int]) -> list[Row]:
        """Several rows in the order asked for, read together where that is cheaper than one by one.

        Raises:
            IndexError: there are fewer rows.
            SampleError: one is damaged.
        """
        raise NotImplementedError

    def location(self, index: int) -> Location:
        """File, and line or row, of one row."""
        raise NotImplementedError

    def row(self, index: int) -> Row:
        """One row."""
        return self.fetch([index])[0]

    def blocks(self) -> Iterator[tuple[int, Sequence[Row]]]:
        """One pass over all rows: position of the first row, and some rows; cheap to begin and to abandon."""
        for start in range(0, len(self), BLOCK):
            yield start, self.fetch(range(start, min(start + BLOCK, len(self))))

    def split(self, index: int) -> str | None:
        """Train, val or test, if the table knows."""
        return None


class ListTable(Table):
    """Rows that are already in memory.

    >>> table = ListTable([{"text": "a"}, {"text": "b", "label": 1}], "rows.json")
    >>> table.columns, table.row(1)["label"], str(table.location(1))
    (['text', 'label'], 1, 'rows.json row 1')
    """

    def __init__(self, rows: Sequence[Row], file: str = "", split: str | None = None):
        self.rows, self._file, self._split = rows, file, split
        self.columns = union(row.keys() for row in rows)

    def __len__(self) -> int:
        return len(self.rows)

    def fetch(self, indices: Sequence[int]) -> list[Row]:
        """Several rows."""
        return [self.rows[index] for index in indices]

    def location(self, index: int) -> Location:
        """The row."""
        return Location(self._file, row=index, index=index)

    def split(self, index: int) -> str | None:
        """The split of all rows."""
        return self._split


class Numbers:
    """int64 [rows, width]: in memory, or in an unnamed file of the cache folder once there are many.

    >>> numbers = Numbers(2)
    >>> numbers.append(np.array([[1, 2], [3, 4]]))
    >>> len(numbers), numbers[1].tolist()
    (2, [3, 4])
    """

    def __init__(self, width: int = 1):
        self.width = width
        self._parts: list[np.ndarray] = []
        self._view = np.zeros((0, width), np.int64)
        self._file: BinaryIO | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, numbers: np.ndarray) -> None:
        """Add the numbers of some rows."""
        self._count += len(numbers)
        self._parts.append(numbers.astype(np.int64, copy=False).reshape(-1, self.width))
        if self._count > IN_MEMORY:
            if self._file is None:
                self._file = _unnamed_file()
                self._parts.insert(0, self._view)
                self._view = self._view[:0]
            self._file.write(b"".join(part.tobytes() for part in self._parts))
            self._parts = []

    def __getitem__(self, index: Any) -> np.ndarray:
        return np.asarray(self._array()[index])

    def pieces(self) -> Iterator[tuple[int, np.ndarray]]:
        """First row and numbers of consecutive parts, each of bounded size."""
        if self._file is None:
            yield 0, self._array()
            return
        self._file.seek(0)
        for start in range(0, self._count, IN_MEMORY // 4):
            piece = np.frombuffer(self._file.read(8 * self.width * (IN_MEMORY // 4)), np.int64)
            yield start, piece.reshape(-1, self.width)
        self._file.seek(0, 2)

    def _array(self) -> np.ndarray:
        if self._file is not None and len(self._view) != self._count:
            self._file.flush()
            shape = (self._count, self.width)
            self._view = np.memmap(self._file, np.int64, "r", shape=shape)  # type: ignore[call-overload]
        elif self._parts:
            self._view = np.concatenate([self._view, *self._parts])
            self._parts = []
        return self._view

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self._file.close()  # type: ignore[union-attr]

    def __reduce__(self) -> Any:
        return _restored, (np.array(self._array()), self.width)


def _restored(numbers: np.ndarray, width: int) -> Numbers:
    restored = Numbers(width)
    restored.append(numbers)
    return restored


def _unnamed_file() -> BinaryIO:
    """A file that is gone when it is closed, on the disk of the cache."""
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=cache_folder())  # type: ignore[return-value]
    except OSError:
        return tempfile.TemporaryFile()  # type: ignore[return-value]


class PerProcess:
    """Recently used values that a forked process must make anew and a pickle must not hold: streams, connections."""

    def __init__(self, most: int = 1):
        self._most = most
        self._values: OrderedDict[Any, Any] = OrderedDict()
        self._process, self._lock = os.getpid(), threading.RLock()

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        """The value of a key, made if it is not there; the least recently used goes."""
        if self._process != os.getpid():
            self.__init__(self._most)  # type: ignore[misc]
        with self._lock:
            if key not in self._values:
                self._values[key] = make()
            self._values.move_to_end(key)
            while len(self._values) > self._most:
                _close(self._values.popitem(last=False)[1])
            return self._values[key]

    def __len__(self) -> int:
        return len(self._values)

    def __reduce__(self) -> Any:
        return PerProcess, (self._most,)

    def __del__(self) -> None:
        for value in self._values.values():
            _close(value)


def _close(value: Any) -> None:
    if hasattr(value, "close"):
        value.close()


def local_copy(files: Files, name: str) -> str:
    """The path of a file on this machine; one in an archive or behind a URL is copied to the cache."""
    path = files.path(name)
    if path is not None:
        return path

    def copy(target: Any) -> None:
        with files.open(name) as stream:
            shutil.copyfileobj(stream, target, 1 << 20)

    return str(cached_file("\0".join((files.root, name, files.fingerprint(name), "copy 1")), copy))


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


def raise_late(report: DataReport) -> None:
    """Raise for issues that were found after the dataset was opened; before that, the opener does."""
    if report.complete and (raising := report.raising()):
        from fewbit.data.opening import issues_error

        raise issues_error(report, raising)
