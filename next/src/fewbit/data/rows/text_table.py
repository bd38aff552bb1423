# SPDX-License-Identifier: Apache-2.0
"""`TextTable`: the rows of CSV or JSON files, in order of their splits, by position.

A reader gives the usable records of a file in blocks; byte offset and line of each record are all that random access
needs. This index grows block by block, only as far as needed: the first row of a file of any size costs one small
block. `len` reads everything once.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, overload

import numpy as np

from fewbit.data.rows import text
from fewbit.data.rows.table import Numbers, PerProcess, Row, Table, raise_late, union
from fewbit.data.rows.text import EMPTY_FILE, FILE_CHANGED, TextFile
from fewbit.data.types import DataReport, Issue, Location, SampleError

_MOST_STREAMS = 64


class ColumnRows(Sequence[Row]):
    """Rows that are stored by column; a row is built when it is accessed.

    >>> rows = ColumnRows({"a": ["1", "3"], "b": ["2", "4"]})
    >>> len(rows), rows[1]
    (2, {'a': '3', 'b': '4'})
    """

    def __init__(self, lists: dict[str, list[Any]]):
        self.lists = lists

    def __len__(self) -> int:
        return len(next(iter(self.lists.values()), ()))

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> ColumnRows: ...
    def __getitem__(self, index: int | slice) -> Row | ColumnRows:
        if isinstance(index, slice):
            return ColumnRows({name: values[index] for name, values in self.lists.items()})
        return {name: values[index] for name, values in self.lists.items()}

    def __iter__(self) -> Iterator[Row]:
        names = list(self.lists)
        for fields in zip(*self.lists.values()):
            yield dict(zip(names, fields))


@dataclass
class Block:
    """Usable records that were read together."""

    rows: Sequence[Row]  # their values
    starts: np.ndarray  # offset of each in the plain text, int64
    ends: np.ndarray  # offset after each
    lines: np.ndarray  # physical line each begins on, from 1
    numbers: np.ndarray | None = None  # of each in an array, from 0; `None` if each has a line of its own
    repaired: set[int] = field(default_factory=set)  # positions of rows whose values are no longer what the bytes say


class Reader(Protocol):
    """Reads the records of one text file; cheap to make, picklable."""

    @property
    def text(self) -> TextFile:
        """The file."""
        ...

    @property
    def columns(self) -> Sequence[str]: ...

    @property
    def numbered(self) -> bool:
        """Whether records have a number in an array."""
        ...

    def blocks(self, report: DataReport) -> Iterator[Block]: ...

    def parse(self, chunk: bytes, report: DataReport) -> Row | None:
        """The first record of a piece of text; `None` if it is not usable."""
        ...


class Shard(NamedTuple):
    """One file of a table: its reader and its split."""

    reader: Reader
    split: str | None

    @property
    def name(self) -> str:
        """Of the file."""
        return self.reader.text.name


class TextTable(Table):
    """Rows of text files."""

    def __init__(self, shards: Sequence[Shard], report: DataReport, *, text_only: bool = False):
        self.shards, self.text_only = list(shards), text_only
        self.columns = union(shard.reader.columns for shard in shards)
        self._report = report
        numbered = any(shard.reader.numbered for shard in shards)
        self._index = Numbers(3 if numbered else 2)  # offset, line, number
        self._first_rows: list[int] = []  # of each file
        self._complete = False
        self._recent: tuple[int, Block] | None = None
        self._live: Iterator[tuple[int, Block]] | None = None
        self._streams = PerProcess(_MOST_STREAMS)

    def __len__(self) -> int:
        while self._advance():
            pass
        raise_late(self._report)
        return len(self._index)

    def row(self, index: int) -> Row:
        shard = self._shard(index)
        raise_late(self._report)
        if self._recent is not None and 0 <= index - self._recent[0] < len(self._recent[1].rows):
            return dict(self._recent[1].rows[index - self._recent[0]])
        reader = self.shards[shard].reader
        row = reader.parse(self._chunk(index, shard), DataReport(on_error=self._report.on_error))
        if row is None:
            raise SampleError(Issue(FILE_CHANGED, "the row is not what it was", self.location(index)))
        return row

    def fetch(self, indices: Sequence[int]) -> list[Row]:
        rows = {index: self.row(index) for index in sorted(set(map(int, indices)))}
        return [rows[int(index)] for index in indices]

    def blocks(self) -> Iterator[tuple[int, Sequence[Row]]]:
        first = 0
        if self._recent is not None and self._recent[0] == 0:
            yield 0, self._recent[1].rows
        elif len(self._index):
            for _, block in self._scan(DataReport(on_error=self._report.on_error)):
                yield first, block.rows
                first += len(block.rows)
            return
        while self._advance():
            assert self._recent is not None
            yield self._recent[0], self._recent[1].rows
        raise_late(self._report)

    def location(self, index: int) -> Location:
        shard = self._shard(index)
        start, line, *number = self._index[index].tolist()
        row = number[0] if number and number[0] >= 0 else None
        return Location(self.shards[shard].name, line=line, row=row, byte=start, index=index)

    def split(self, index: int) -> str | None:
        return self.shards[self._shard(index)].split

    def files_of(self, positions: np.ndarray) -> Sequence[str] | None:
        """The file of each row; `None` if there is only one."""
        if len(self.shards) < 2:
            return None
        names = np.array([shard.name for shard in self.shards], object)
        return list(names[np.searchsorted(self._first_rows, positions, side="right") - 1])

    def scan_again(self) -> Iterator[tuple[Shard, DataReport, Iterator[tuple[int, Block]]]]:
        """Each file with its blocks, position of the first row included, and a report of this file alone."""
        len(self)  # whatever is wrong is reported before
        for shard, first in zip(self.shards, self._first_rows):
            report = DataReport(on_error=self._report.on_error)
            yield shard, report, _numbered(shard.reader.blocks(report), first)

    def _scan(self, report: DataReport) -> Iterator[tuple[int, Block]]:
        """The blocks of all files with the number of the file."""
        for number, shard in enumerate(self.shards):
            for block in shard.reader.blocks(report):
                yield number, block

    def _advance(self) -> bool:
        """Read one more block; whether there was one."""
        if self._complete:
            return False
        self._live = self._live or self._scan(self._report)
        number, block = next(self._live, (len(self.shards) - 1, None))
        first = len(self._index)
        self._first_rows += [first] * (number + 1 - len(self._first_rows))
        if block is None:
            self._complete, self._live = True, None
            self._finish()
            return False
        if not self.columns:
            self.columns = union(row.keys() for row in block.rows[:1000])[:1024]
        fields = [block.starts, block.lines]
        if self._index.width == 3:
            fields.append(np.full(len(block.rows), -1) if block.numbers is None else block.numbers)
        self._index.append(np.column_stack(fields))
        self._recent = first, block
        return True

    def _finish(self) -> None:
        """Report what is known only after the last row."""
        for shard, first, end in zip(self.shards, self._first_rows, [*self._first_rows[1:], len(self._index)]):
            if first == end:
                self._report.add(EMPTY_FILE, "no row of it can be used", Location(shard.name))
        if "header-like-data" in self._report.counts:  # wrong names concern every row
            self._report.affected["header-like-data"] = len(self._index)

    def _shard(self, index: int) -> int:
        """The number of a row's file; reads as far as that."""
        while index >= len(self._index) and self._advance():
            pass
        if not 0 <= index < len(self._index):
            raise IndexError(f"row {index} of {len(self._index)}")
        return bisect_right(self._first_rows, index) - 1

    def _chunk(self, index: int, shard: int) -> bytes:
        """The text from a row to the next one of its file."""
        source = self.shards[shard].reader.text
        stream = self._streams.get(shard, source.open)
        start = int(self._index[index, 0])
        is_last = index + 1 >= len(self._index) or index + 1 in self._first_rows
        end = stream.seek(0, os.SEEK_END) if is_last else int(self._index[index + 1, 0])
        return source.read(stream, start, min(end - start, text.MOST_RECORD + text.BLOCK))

    def __getstate__(self) -> dict[str, Any]:
        len(self)  # a worker must not read everything again
        report = DataReport(on_error=self._report.on_error)
        return {**self.__dict__, "_live": None, "_recent": None, "_report": report}


def _numbered(blocks: Iterator[Block], first: int) -> Iterator[tuple[int, Block]]:
    for block in blocks:
        yield first, block
        first += len(block.rows)
