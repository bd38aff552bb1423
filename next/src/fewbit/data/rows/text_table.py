# SPDX-License-Identifier: Apache-2.0
"""`TextTable`: the rows of CSV or JSON files, in order of their splits, by position.

The index of byte offsets grows block by block, only as far as needed: the first row of a file of any size costs one
small block. `len` reads everything once.
"""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

from fewbit.data.cache import cache_folder
from fewbit.data.rows.blocks import EMPTY_FILE, Block, Reader
from fewbit.data.rows.dialect import HEADER_LIKE_DATA
from fewbit.data.rows.table import Row, union
from fewbit.data.rows.text import FILE_CHANGED
from fewbit.data.types import DataReport, Issue, Location, SampleError

IN_MEMORY = 1 << 21
"""Offsets of more rows than this are kept in a file."""


@dataclass(frozen=True)
class Shard:
    """One file of a table: its reader and its split."""

    reader: Reader
    split: str | None

    @property
    def name(self) -> str:
        """Of the file."""
        return self.reader.text.name


@dataclass
class _Anchor:
    """Where a block begins: position of its first row, and for lines its offset and first line."""

    index: int
    shard: int
    offset: int
    line: int
    dense: bool


class Offsets:
    """Byte offsets of rows: in memory, or in a file of the cache folder once there are many."""

    def __init__(self) -> None:
        self._blocks: list[np.ndarray] = []
        self._offsets = self._map = np.zeros(0, np.int64)
        self._file: BinaryIO | None = None
        self.count = 0

    def append(self, starts: np.ndarray) -> None:
        """Add the offsets of a block."""
        self.count += len(starts)
        if self._file is None and self.count > IN_MEMORY:
            self._file = _unnamed_file()
            self._file.write(self._joined().tobytes())
            self._offsets = np.zeros(0, np.int64)
        if self._file is not None:
            self._file.write(starts.astype(np.int64).tobytes())
        else:
            self._blocks.append(starts)

    def span(self, index: int) -> tuple[int, int | None]:
        """Offset of a row, and of the next one if there is one."""
        offsets = self._joined() if self._file is None else self._mapped(self._file)
        return int(offsets[index]), int(offsets[index + 1]) if index + 1 < self.count else None

    def _mapped(self, file: BinaryIO) -> np.ndarray:
        if len(self._map) != self.count:
            file.flush()
            self._map = np.memmap(file, np.int64, "r", shape=(self.count,))  # type: ignore[call-overload]
        return self._map

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self._file.close()  # type: ignore[union-attr]

    def _joined(self) -> np.ndarray:
        if self._blocks:
            self._offsets = np.concatenate([self._offsets, *self._blocks])
            self._blocks = []
        return self._offsets

    def __getstate__(self) -> dict[str, Any]:
        if self._file is None:
            return {"offsets": self._joined()}
        return {"offsets": np.array(self._mapped(self._file))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self.append(state["offsets"])


def _unnamed_file() -> BinaryIO:
    """A file that is gone when it is closed, on the disk of the cache."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=folder)  # type: ignore[return-value]
    except OSError:
        return tempfile.TemporaryFile()  # type: ignore[return-value]


@dataclass
class _Recent:
    """The block that was read last: rows and lines of it need no second reading."""

    first: int = 0
    block: Block | None = None

    def position(self, index: int) -> int | None:
        """Of a row in the block."""
        if self.block is None or not self.first <= index < self.first + len(self.block.rows):
            return None
        return index - self.first


@dataclass
class _RowIndex:
    """The index of the rows read so far."""

    offsets: Offsets = field(default_factory=Offsets)
    anchors: list[_Anchor] = field(default_factory=list)
    first_rows: list[int] = field(default_factory=list)
    complete: bool = False


class TextTable:
    """Rows of text files.

    Args:
        shards: the files, in order of their splits.
        report: takes the problems of records as they are read.
    """

    text_only: bool

    def __init__(self, shards: Sequence[Shard], report: DataReport, *, text_only: bool = False):
        self.shards, self.text_only = list(shards), text_only
        self._report = report
        self._index = _RowIndex()
        self._recent = _Recent()
        self._live: Iterator[tuple[int, Block]] | None = None
        self._streams: dict[int, BinaryIO] = {}
        self._owner = os.getpid()

    @property
    def columns(self) -> Sequence[str]:
        """Columns of all files; of JSON those of the rows read so far."""
        return union(shard.reader.columns for shard in self.shards)

    def __len__(self) -> int:
        while self._advance():
            pass
        self._raise_late()
        return self._index.offsets.count

    def row(self, index: int) -> Row:
        """One row, from its offset."""
        while index >= self._index.offsets.count and self._advance():
            self._raise_late()
        if not 0 <= index < self._index.offsets.count:
            raise IndexError(f"row {index} of {self._index.offsets.count}")
        position = self._recent.position(index)
        if position is not None and self._recent.block is not None:
            return dict(self._recent.block.rows[position])
        chunk, shard = self._chunk(index)
        row = self.shards[shard].reader.parse(chunk, DataReport(on_error=self._report.on_error))
        if row is None:
            raise SampleError(Issue(FILE_CHANGED, "the row is not what it was", self.location(index)))
        return row

    def fetch(self, indices: Sequence[int]) -> list[Row]:
        """Several rows, read in order of their offsets."""
        rows = {index: self.row(index) for index in sorted(set(map(int, indices)))}
        return [rows[int(index)] for index in indices]

    def blocks(self) -> Iterator[tuple[int, Sequence[Row]]]:
        """All rows. The first pass is also what builds the index and reports the problems of records."""
        if len(self._index.anchors) > 1 or (self._index.anchors and self._recent.block is None):
            len(self)
            silent = DataReport(on_error=self._report.on_error)
            first = 0
            for _, block in self._scan(silent):
                yield first, block.rows
                first += len(block.rows)
            return
        if self._recent.block is not None:
            yield 0, self._recent.block.rows
        while self._advance():
            assert self._recent.block is not None
            yield self._recent.first, self._recent.block.rows
        self._raise_late()

    def location(self, index: int) -> Location:
        """File and line."""
        anchor = self._anchor(index)
        file = self.shards[anchor.shard].name
        position = self._recent.position(index)
        if position is not None and self._recent.block is not None:
            block = self._recent.block
            return Location(file, line=int(block.lines[position]), byte=int(block.starts[position]), index=index)
        start, _ = self._index.offsets.span(index)
        if anchor.dense:
            return Location(file, line=anchor.line + index - anchor.index, byte=start, index=index)
        text = self.shards[anchor.shard].reader.text
        between = text.read(self._stream(anchor.shard), anchor.offset, start - anchor.offset)
        return Location(file, line=anchor.line + between.count(b"\n"), byte=start, index=index)

    def split(self, index: int) -> str | None:
        """The split of the file."""
        return self.shards[self._anchor(index).shard].split

    def scan_again(self) -> Iterator[tuple[Shard, DataReport, Iterator[tuple[int, Block]]]]:
        """Each file with its blocks, position of the first row included, and a report of this file alone."""
        len(self)  # whatever is wrong is reported before
        first = 0

        def numbered(shard: Shard, report: DataReport) -> Iterator[tuple[int, Block]]:
            nonlocal first
            for block in shard.reader.blocks(report):
                yield first, block
                first += len(block.rows)

        for shard in self.shards:
            report = DataReport(on_error=self._report.on_error)
            yield shard, report, numbered(shard, report)

    def files_of(self, positions: np.ndarray) -> Sequence[str] | None:
        """The file of each row; `None` if there is only one."""
        if len(self.shards) < 2:
            return None
        names = np.array([shard.name for shard in self.shards], object)
        return list(names[np.searchsorted(self._index.first_rows, positions, side="right") - 1])

    def _scan(self, report: DataReport) -> Iterator[tuple[int, Block]]:
        """The blocks of all files with the number of the file."""
        for number, shard in enumerate(self.shards):
            for block in shard.reader.blocks(report):
                yield number, block

    def _advance(self) -> bool:
        """Read one more block; whether there was one."""
        index = self._index
        if index.complete:
            return False
        if self._live is None:
            self._live = self._scan(self._report)
        number, block = next(self._live, (len(self.shards), None))
        while len(index.first_rows) < min(number + 1, len(self.shards)):
            index.first_rows.append(index.offsets.count)
        if block is None:
            index.complete, self._live = True, None
            self._finish()
            return False
        if not index.anchors:
            self._learn_columns(block.rows)
        first = index.offsets.count
        index.anchors.append(_Anchor(first, number, int(block.starts[0]), int(block.lines[0]), block.dense))
        index.offsets.append(block.starts)
        self._recent = _Recent(first, block)
        return True

    def _learn_columns(self, rows: Sequence[Row]) -> None:
        columns = self.shards[0].reader.columns
        if isinstance(columns, list) and not columns:
            columns.extend(union(row.keys() for row in rows[:1000])[:1024])

    def _finish(self) -> None:
        """Report what is known only after the last row."""
        ends = [*self._index.first_rows[1:], self._index.offsets.count]
        for shard, first, end in zip(self.shards, self._index.first_rows, ends):
            if first == end:
                self._report.add(EMPTY_FILE, "no row of it can be used", Location(shard.name))
        for issue in self._report.issues:
            if issue.type is HEADER_LIKE_DATA:  # wrong names concern every row
                self._report.affected[issue.code] = self._index.offsets.count

    def _raise_late(self) -> None:
        """Raise for issues that were found after the dataset was opened; before that, the opener does."""
        if self._report.complete and (raising := self._report.raising()):
            from fewbit.data.opening import issues_error

            raise issues_error(self._report, raising)

    def _anchor(self, index: int) -> _Anchor:
        while index >= self._index.offsets.count and self._advance():
            pass
        if not 0 <= index < self._index.offsets.count:
            raise IndexError(f"row {index} of {self._index.offsets.count}")
        anchors = self._index.anchors
        return anchors[bisect_right(anchors, index, key=lambda anchor: anchor.index) - 1]

    def _chunk(self, index: int) -> tuple[bytes, int]:
        """The text from a row to the next one, and the number of its file."""
        shard = self._anchor(index).shard
        start, after = self._index.offsets.span(index)
        first_rows = self._index.first_rows
        last = after is None or (shard + 1 < len(first_rows) and index + 1 >= first_rows[shard + 1])
        text = self.shards[shard].reader.text
        stream = self._stream(shard)
        if not last and after is not None:
            return text.read(stream, start, after - start), shard
        size = stream.seek(0, os.SEEK_END)
        return text.read(stream, start, size - start), shard

    def _stream(self, shard: int) -> BinaryIO:
        """An open stream of a file; a forked process opens its own, because a position cannot be shared."""
        if self._owner != os.getpid():
            self._streams, self._owner = {}, os.getpid()
        if shard not in self._streams:
            if len(self._streams) >= 64:
                self._streams.pop(next(iter(self._streams))).close()
            self._streams[shard] = self.shards[shard].reader.text.open()
        return self._streams[shard]

    def __del__(self) -> None:
        for stream in getattr(self, "_streams", {}).values():
            stream.close()

    def __getstate__(self) -> dict[str, Any]:
        len(self)  # a worker must not read everything again
        state = dict(self.__dict__)
        return {
            **state,
            "_streams": {},
            "_live": None,
            "_recent": _Recent(),
            "_report": DataReport(on_error=self._report.on_error),
        }
