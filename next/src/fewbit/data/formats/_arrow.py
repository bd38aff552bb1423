# SPDX-License-Identifier: Apache-2.0
"""`ArrowTable`: rows of Parquet, Arrow and Feather files by position, a row group or record batch at a time.

At most two groups are cached, and none larger than 256 MB: a larger one is streamed each time. Damage stays local: a
group that cannot be decoded loses its own rows. Record batches of Arrow files are validated before use: their buffers
are memory-mapped.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import numpy as np

from fewbit.data.cache import cached_file
from fewbit.data.rows.blocks import BAD_ENCODING, EMPTY_FILE
from fewbit.data.rows.shards import RowFile
from fewbit.data.rows.table import Row, union
from fewbit.data.rows.text import PACKED_SUFFIXES, TextFile
from fewbit.data.types import DataReport, Files, Issue, IssueType, Location, SampleError, Severity
from fewbit.errors import plural, require

Kind = Literal["parquet", "arrow"]
BATCH = 1024
CACHED_GROUP_BYTES = 256 << 20
"""Bytes of a row group; a larger one is decoded again each time, a batch at a time."""
ROWS_PER_BYTE, LEAST_BOMB = 1000, 1 << 24
"""Rows a file may claim: constant columns take next to nothing, but an index of the rows takes memory."""
CACHED_GROUPS, OPEN_FILES = 2, 8
_EPHEMERAL = ("_lock", "_groups", "_open", "_process")

BAD_PARQUET = IssueType(
    "bad-parquet", Severity.ERROR, "Parquet file or row group that cannot be read", "write the file again", "raise",
    ("drop",), "leaves its rows out",
)  # fmt: skip
BAD_ARROW = IssueType(
    "bad-arrow", Severity.ERROR, "Arrow or Feather file that cannot be read", "write the file again", "raise",
    ("drop",), "leaves its rows out",
)  # fmt: skip
DUPLICATE_COLUMN = IssueType(
    "duplicate-key", Severity.ERROR, "two columns of the same name, of which the last is read", "rename one of them",
    "raise", ("keep",),
)  # fmt: skip
ISSUES = (BAD_PARQUET, BAD_ARROW, DUPLICATE_COLUMN, BAD_ENCODING, EMPTY_FILE)


class _Group(NamedTuple):
    """A row group or record batch: its file, its number there, and how many rows it has."""

    file: int
    number: int
    rows: int


class ArrowTable:
    """Rows of several files, in the order of their splits.

    Args:
        files: the dataset.
        row_files: which of its files, with their splits.
        kind: how to read them.
        report: takes damaged files.

    Attributes:
        schemas: the Arrow schema of each file that can be read.
        embedded: columns of image files; `blocks` gives their row number instead, so that a pass over labels is cheap.
    """

    def __init__(self, files: Files, row_files: Sequence[RowFile], kind: Kind, report: DataReport):
        self._files, self._kind = files, kind
        self.embedded: tuple[str, ...] = ()
        self._row_files: list[RowFile] = []
        self.schemas: list[Any] = []
        self._groups_in_order: list[_Group] = []
        self._readable_rows: np.ndarray | None = None
        self._reset()
        for row_file in row_files:
            self._add_file(row_file, report)
        self._starts: list[int] = [0, *np.cumsum([group.rows for group in self._groups_in_order]).tolist()]
        self._file_starts: dict[int, int] = {}
        for group, start in zip(self._groups_in_order, self._starts):
            self._file_starts.setdefault(group.file, start)
        self.columns: Sequence[str] = union(schema.names for schema in self.schemas)

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._groups: OrderedDict[int, list[Any]] = OrderedDict()
        self._open: OrderedDict[int, Any] = OrderedDict()
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in _EPHEMERAL}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _add_file(self, row_file: RowFile, report: DataReport) -> None:
        location = Location(row_file.name)
        try:
            handle = _open_file(self._files, row_file.name, self._kind)
        except SampleError as error:
            report.add(error.issue.type, error.issue.message, error.issue.location)
            return
        number = len(self._row_files)
        self._row_files.append(row_file)
        self.schemas.append(handle.schema)
        names = handle.schema.names
        for name in sorted({name for name in names if names.count(name) > 1}):
            report.add(DUPLICATE_COLUMN, f"column {name!r}", location)
        if not sum(handle.rows):
            report.add(EMPTY_FILE, "no row in it", location)
        self._groups_in_order += [_Group(number, group, rows) for group, rows in enumerate(handle.rows)]
        self._open[number] = handle
        self._trim(self._open, OPEN_FILES)

    def check(self, report: DataReport) -> None:
        """Decode everything; rows that cannot be decoded are reported and lose their position."""
        readable = np.ones(self._starts[-1], bool)
        for position, group in enumerate(self._groups_in_order):
            start = first = self._starts[position]
            name = self._row_files[group.file].name
            try:
                for batch in self._stream(position):
                    for row in _undecodable(batch):
                        location = Location(name, row=start - self._file_starts[group.file] + row)
                        report.add(BAD_ENCODING, "text that is not UTF-8", location)
                        readable[start + row] = False
                    start += batch.num_rows
            except SampleError as error:
                lost = first + group.rows - start
                report.add(error.issue.type, error.issue.message, error.issue.location, samples=lost)
                readable[start : first + group.rows] = False
        self._readable_rows = None if readable.all() else np.flatnonzero(readable)

    def __len__(self) -> int:
        return self._starts[-1] if self._readable_rows is None else len(self._readable_rows)

    def row(self, index: int) -> Row:
        """One row; its group stays in the cache."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        stored_row = self._stored_row(index)
        position = bisect_right(self._starts, stored_row) - 1
        inside = stored_row - self._starts[position]
        for batch in self._batches(position):
            if inside < batch.num_rows:
                row = _rows(batch.slice(inside, 1))[0]
                if row is None:
                    raise SampleError(Issue(BAD_ENCODING, "text that is not UTF-8", self.location(index)))
                return row
            inside -= batch.num_rows
        raise SampleError(Issue(self._issue, "the row is missing", self.location(index)))

    def fetch(self, indices: Sequence[int]) -> list[Row]:
        """Several rows, each group decoded once."""
        rows = {index: self.row(index) for index in sorted(set(indices))}
        return [rows[index] for index in indices]

    def blocks(self) -> Iterator[tuple[int, list[Row]]]:
        """All rows in order; one that cannot be decoded, and was not found by `check`, is empty here."""
        for position in range(len(self._groups_in_order)):
            start = self._starts[position]
            try:
                for batch in self._stream(position, self.embedded):
                    rows = _rows(batch)
                    for name in self.embedded:
                        for number, row in enumerate(rows, start):
                            if row is not None:
                                row[name] = {"row": number}
                    yield from self._runs(start, rows)
                    start += batch.num_rows
            except SampleError:  # raised when such a row is asked for
                for first in range(start, self._starts[position + 1], BATCH):
                    yield from self._runs(first, [None] * min(BATCH, self._starts[position + 1] - first))

    def location(self, index: int) -> Location:
        """File, and number of the row in it."""
        stored_row = self._stored_row(index)
        file = self._groups_in_order[bisect_right(self._starts, stored_row) - 1].file
        return Location(self._row_files[file].name, row=stored_row - self._file_starts[file], index=index)

    def split(self, index: int) -> str | None:
        """The split of the row's file."""
        group = self._groups_in_order[bisect_right(self._starts, self._stored_row(index)) - 1]
        return self._row_files[group.file].split

    def _runs(self, start: int, rows: list[Row | None]) -> Iterator[tuple[int, list[Row]]]:
        """Rows with their positions, without those that are left out."""
        run: list[Row] = []
        first = 0
        for offset, row in enumerate(rows):
            index = self._index(start + offset)
            if index >= 0:
                if not run:
                    first = index
                run.append(row or {})
            elif run:
                yield first, run
                run = []
        if run:
            yield first, run

    def _index(self, stored_row: int) -> int:
        """The position of a row of the files; -1 if it is left out."""
        if self._readable_rows is None:
            return stored_row
        index = int(np.searchsorted(self._readable_rows, stored_row))
        return index if index < len(self._readable_rows) and self._readable_rows[index] == stored_row else -1

    @property
    def _issue(self) -> IssueType:
        return BAD_PARQUET if self._kind == "parquet" else BAD_ARROW

    def _stored_row(self, index: int) -> int:
        return index if self._readable_rows is None else int(self._readable_rows[index])

    def _batches(self, position: int) -> list[Any] | Iterator[Any]:
        """The batches of a group; it is cached if it is not too large."""
        with self._lock:
            self._follow_fork()
            if position in self._groups:
                self._groups.move_to_end(position)
                return self._groups[position]
            batches, size = [], 0
            for batch in self._stream(position):
                batches.append(batch)
                size += batch.nbytes
                if size > CACHED_GROUP_BYTES:
                    return self._stream(position)
            self._groups[position] = batches
            self._trim(self._groups, CACHED_GROUPS)
            return batches

    def _stream(self, position: int, without: Sequence[str] = ()) -> Iterator[Any]:
        """The batches of a group, decoded one after the other, some columns left out.

        Raises:
            SampleError: it is damaged from here on.
        """
        group = self._groups_in_order[position]
        remaining = group.rows
        try:
            with self._lock:
                self._follow_fork()
                handle = self._handle(group.file)
            for batch in handle.batches(group.number, without):
                remaining -= batch.num_rows
                if remaining < 0:
                    break
                yield batch
        except SampleError:
            raise
        except Exception as error:  # Arrow raises many types for damaged bytes
            raise self._damaged(position, group.rows - remaining, _reason(error)) from error
        if remaining:
            raise self._damaged(
                position, group.rows - max(remaining, 0), f"it does not hold {plural(group.rows, 'row')}"
            )

    def _damaged(self, position: int, rows: int, reason: str) -> SampleError:
        group = self._groups_in_order[position]
        row = self._starts[position] - self._file_starts[group.file] + rows
        noun = "row group" if self._kind == "parquet" else "record batch"
        message = f"{noun} {group.number} from row {row:,} on: {reason}"
        return SampleError(Issue(self._issue, message, Location(self._row_files[group.file].name, row=row)))

    def _handle(self, file: int) -> Any:
        if file not in self._open:
            self._open[file] = _open_file(self._files, self._row_files[file].name, self._kind)
        self._open.move_to_end(file)
        self._trim(self._open, OPEN_FILES)
        return self._open[file]

    def _follow_fork(self) -> None:
        if self._process != os.getpid():  # a child shares the position of its parent's streams
            self._reset()

    @staticmethod
    def _trim(cache: OrderedDict[int, Any], most: int) -> None:
        while len(cache) > most:
            cache.popitem(last=False)


class _Parquet:
    """An open Parquet file."""

    def __init__(self, source: Any):
        parquet = require("pyarrow.parquet", extra="parquet", purpose="Parquet files")
        self._file = parquet.ParquetFile(source, pre_buffer=False, page_checksum_verification=True)
        metadata = self._file.metadata
        self.schema = self._file.schema_arrow
        # Not `row_group(…).column(…)`: on damaged metadata it ends the process.
        self.rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]

    def batches(self, group: int, without: Sequence[str]) -> Iterator[Any]:
        columns = [name for name in self.schema.names if name not in without] if without else None
        for batch in self._file.iter_batches(BATCH, row_groups=[group], columns=columns, use_threads=False):
            yield _without_duplicate_columns(batch)


class _Arrow:
    """An open Arrow or Feather file."""

    def __init__(self, source: Any, magic: bytes):
        ipc = require("pyarrow.ipc", extra="parquet", purpose="Arrow files")
        self._file: Any = None
        if magic.startswith(b"FEA1"):  # its reader has no checks: a damaged file ends the process
            raise ValueError("a Feather file of version 1, which is not read")
        if magic.startswith(b"ARROW1"):
            self._file = ipc.open_file(source)
            self.schema = self._file.schema
        else:
            reader = ipc.open_stream(source)
            self._batches, self.schema = list(reader), reader.schema
        count = len(self._batches) if self._file is None else self._file.num_record_batches
        self.rows = [self._batch(number).num_rows for number in range(count)]

    def _batch(self, number: int) -> Any:
        return self._batches[number] if self._file is None else self._file.get_batch(number)

    def batches(self, group: int, without: Sequence[str]) -> Iterator[Any]:
        batch = _without_duplicate_columns(self._batch(group))
        batch = batch.select([name for name in batch.schema.names if name not in without]) if without else batch
        batch.validate()
        for start in range(0, batch.num_rows, BATCH):
            batch_slice = batch.slice(start, BATCH)
            for column in batch_slice.columns:
                _validate(column)
            yield batch_slice


def _open_file(files: Files, name: str, kind: Kind) -> Any:
    """One file, open.

    Raises:
        SampleError: it cannot be read.
    """
    arrow = require("pyarrow", extra="parquet", purpose="Parquet and Arrow files")
    magic = files.read(name, 8)
    packing = next((packing for suffix, packing in PACKED_SUFFIXES.items() if name.lower().endswith(suffix)), None)
    try:
        path = files.path(name)
        if packing is not None:  # the index is at the end: the entire file is decompressed
            with TextFile(files, name, packing, "utf-8", 0).open() as stream:
                magic, source = stream.read(8), arrow.memory_map(stream.name)
        elif path is not None:
            source = arrow.memory_map(path)
        elif kind == "arrow" and not magic.startswith(b"ARROW1"):
            source = arrow.memory_map(str(_local_copy(files, name)))  # a stream can only be read from its start
        else:
            source = arrow.PythonFile(files.open(name), mode="r")
        handle = _Parquet(source) if kind == "parquet" else _Arrow(source, magic)
        _ = handle.schema.names, handle.schema.metadata  # names that are not UTF-8 fail here
        if min(handle.rows, default=0) < 0 or sum(handle.rows) > max(LEAST_BOMB, ROWS_PER_BYTE * files.size(name)):
            raise ValueError(f"it claims to hold {sum(handle.rows):,} rows in {files.size(name):,} bytes")
        return handle
    except SampleError:
        raise
    except Exception as error:
        issue = BAD_PARQUET if kind == "parquet" else BAD_ARROW
        raise SampleError(Issue(issue, _reason(error), Location(name))) from error


def _local_copy(files: Files, name: str) -> Any:
    def copy(target: Any) -> None:
        with files.open(name) as stream:
            while piece := stream.read(1 << 20):
                target.write(piece)

    return cached_file("\0".join((files.root, name, files.fingerprint(name), "arrow stream 1")), copy)


def _without_duplicate_columns(batch: Any) -> Any:
    names = batch.schema.names
    if len(set(names)) == len(names):
        return batch
    return batch.select(sorted({name: number for number, name in enumerate(names)}.values()))


def _validate(column: Any) -> None:
    """Offsets and lengths must lie within their buffers; text that is not UTF-8 is found row by row."""
    try:
        column.validate(full=True)
    except ValueError as error:
        if "UTF8" not in str(error).upper().replace("-", ""):
            raise


def _undecodable(batch: Any) -> list[int]:
    """Rows with text that is not UTF-8."""
    try:
        batch.validate(full=True)
    except ValueError:
        return [number for number, row in enumerate(_rows(batch)) if row is None]
    return []


def _rows(batch: Any) -> list[Row | None]:
    """The rows of a batch as Python values; `None` for one with text that is not UTF-8."""
    try:
        rows: list[Row | None] = batch.to_pylist()
    except UnicodeDecodeError:
        if batch.num_rows == 1:
            return [None]
        return [row for number in range(batch.num_rows) for row in _rows(batch.slice(number, 1))]
    for name, convert in _conversions(batch.schema):
        for row in rows:
            if row is not None and row[name] is not None:
                row[name] = convert(row[name])
    return rows


def to_rows(batch: Any) -> list[Row]:
    """The rows of a batch or table, all of whose text can be decoded."""
    return [row for row in _rows(batch) if row is not None]


def _conversions(schema: Any) -> list[tuple[str, Callable[[Any], Any]]]:
    """Columns with dates, times or decimals, which JSON does not have."""
    words = ("timestamp", "date", "time", "decimal", "duration", "interval")
    return [(field.name, _json_value) for field in schema if any(word in str(field.type) for word in words)]


def _json_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.isoformat() if hasattr(value, "isoformat") else value


def _reason(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200] or type(error).__name__
