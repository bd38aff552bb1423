# SPDX-License-Identifier: Apache-2.0
"""`ArrowTable`: rows of Parquet, Arrow and Feather files by position, a row group or record batch at a time.

At most two groups are cached, and none larger than 256 MB: a larger one is streamed each time. Damage stays local: a
group that cannot be decoded loses its own rows. Record batches of Arrow files are validated before use: their buffers
are memory-mapped. `Features` is what Hugging Face's `datasets` says about columns, also in the metadata of a schema.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import numpy as np
import orjson

from fewbit.data.rows.media import CATEGORIES, OBJECTS
from fewbit.data.rows.shards import RowFile, row_files
from fewbit.data.rows.source import RowSource, row_source
from fewbit.data.rows.table import PerProcess, Row, Table, local_copy, union
from fewbit.data.rows.text import BAD_ENCODING, EMPTY_FILE, PACKED_SUFFIXES, TextFile
from fewbit.data.types import DataReport, Depth, Files, Issue, IssueType, Location, SampleError, Severity
from fewbit.errors import plural, require

Kind = Literal["parquet", "arrow"]
BATCH = 1024
CACHED_GROUP_BYTES = 256 << 20
"""Bytes of a row group; a larger one is decoded again each time, a batch at a time."""
ROWS_PER_BYTE, LEAST_BOMB = 1000, 1 << 24
"""Rows a file may claim: constant columns take next to nothing, but an index of the rows takes memory."""
CACHED_GROUPS, OPEN_FILES = 2, 8
_NOT_JSON = ("timestamp", "date", "time", "decimal", "duration", "interval")


def _unreadable(code: str, meaning: str) -> IssueType:
    return IssueType(code, Severity.ERROR, meaning, "write the file again", "raise", ("drop",), "leaves its rows out")


BAD_PARQUET = _unreadable("bad-parquet", "Parquet file or row group that cannot be read")
BAD_ARROW = _unreadable("bad-arrow", "Arrow or Feather file that cannot be read")
DUPLICATE_COLUMN = IssueType(
    "duplicate-key", Severity.ERROR, "two columns of the same name, of which the last is read", "rename one of them",
    "raise", ("keep",),
)  # fmt: skip
ISSUES = (BAD_PARQUET, BAD_ARROW, DUPLICATE_COLUMN, BAD_ENCODING, EMPTY_FILE)


def scan_tables(
    files: Files, suffixes: Sequence[str], kind: Kind, report: DataReport, *, depth: Depth, options: Mapping[str, Any]
) -> RowSource:
    """The rows of a folder of Parquet or Arrow files; with `full` depth everything is decoded."""
    table = ArrowTable(files, row_files(files, suffixes, report), kind, report)
    if depth == "full":
        table.check(report)
    features = schema_features(table.schemas)
    return row_source(table, files, report, depth=depth, options=options, features=features)


class _Group(NamedTuple):
    """A row group or record batch: its file, its number there, and how many rows it has."""

    file: int
    number: int
    rows: int


class ArrowTable(Table):
    """Rows of several files, in the order of their splits."""

    def __init__(self, files: Files, listed: Sequence[RowFile], kind: Kind, report: DataReport):
        self.files, self.kind = files, kind
        self.row_files: list[RowFile] = []
        self.schemas: list[Any] = []
        self._groups_in_order: list[_Group] = []
        self._readable: np.ndarray | None = None  # rows of the files, if some are left out
        self._groups, self._open = PerProcess(CACHED_GROUPS), PerProcess(OPEN_FILES)
        for row_file in listed:
            try:
                self._add_file(row_file, report)
            except SampleError as error:
                report.add_error(error)
        self._starts: list[int] = [0, *np.cumsum([group.rows for group in self._groups_in_order]).tolist()]
        self._file_starts: dict[int, int] = {}
        for group, start in zip(self._groups_in_order, self._starts):
            self._file_starts.setdefault(group.file, start)
        self.columns = union(schema.names for schema in self.schemas)

    def _add_file(self, row_file: RowFile, report: DataReport) -> None:
        number = len(self.row_files)
        handle = self._open.get(number, lambda: _open_file(self.files, row_file.name, self.kind))
        self.row_files.append(row_file)
        self.schemas.append(handle.schema)
        names = handle.schema.names
        for name in sorted({name for name in names if names.count(name) > 1}):
            report.add(DUPLICATE_COLUMN, f"column {name!r}", Location(row_file.name))
        if not sum(handle.rows):
            report.add(EMPTY_FILE, "no row in it", Location(row_file.name))
        self._groups_in_order += [_Group(number, group, rows) for group, rows in enumerate(handle.rows)]

    def check(self, report: DataReport) -> None:
        """Decode everything; rows that cannot be decoded are reported and lose their position."""
        readable = np.ones(self._starts[-1], bool)
        for position, group in enumerate(self._groups_in_order):
            start = first = self._starts[position]
            name = self.row_files[group.file].name
            try:
                for batch in self.stream(position):
                    for row in _undecodable(batch):
                        location = Location(name, row=start - self._file_starts[group.file] + row)
                        report.add(BAD_ENCODING, "text that is not UTF-8", location)
                        readable[start + row] = False
                    start += batch.num_rows
            except SampleError as error:
                lost = first + group.rows - start
                report.add(error.issue.type, error.issue.message, error.issue.location, samples=lost)
                readable[start : first + group.rows] = False
        self._readable = None if readable.all() else np.flatnonzero(readable)

    def __len__(self) -> int:
        return self._starts[-1] if self._readable is None else len(self._readable)

    def row(self, index: int) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(index)
        position, inside = self._find(index)
        for batch in self._batches(position):
            if inside < batch.num_rows:
                row = _rows(batch.slice(inside, 1))[0]
                if row is None:
                    raise SampleError(Issue(BAD_ENCODING, "text that is not UTF-8", self.location(index)))
                return row
            inside -= batch.num_rows
        raise self._damaged(position, inside, "the row is missing")

    def fetch(self, indices: Sequence[int]) -> list[Row]:
        rows = {index: self.row(index) for index in sorted(set(indices))}
        return [rows[index] for index in indices]

    def blocks(self) -> Iterator[tuple[int, list[Row]]]:
        for position in range(len(self._groups_in_order)):
            start, end = self._starts[position : position + 2]
            try:
                for batch in self.stream(position, self.embedded):
                    rows = _rows(batch)
                    for number, row in enumerate(rows, start):
                        if self.embedded and row is not None:
                            row |= {name: {"row": number} for name in self.embedded}
                    yield from self._usable(start, rows)
                    start += batch.num_rows
            except SampleError:  # raised when such a row is asked for
                for first in range(start, end, BATCH):
                    yield from self._usable(first, [None] * min(BATCH, end - first))

    def location(self, index: int) -> Location:
        position, inside = self._find(index)
        file = self._groups_in_order[position].file
        row = self._starts[position] + inside - self._file_starts[file]
        return Location(self.row_files[file].name, row=row, index=index)

    def split(self, index: int) -> str | None:
        return self.row_files[self._groups_in_order[self._find(index)[0]].file].split

    def groups_of(self, file: int) -> list[int]:
        """The positions of a file's groups."""
        return [position for position, group in enumerate(self._groups_in_order) if group.file == file]

    def usable_rows(self, position: int, dropped: Sequence[int]) -> np.ndarray:
        """Which rows of a group can be decoded and are not dropped."""
        start, end = self._starts[position : position + 2]
        stored = np.arange(len(self)) if self._readable is None else self._readable
        rows = np.delete(stored, np.asarray(dropped, np.int64))
        return np.isin(np.arange(start, end), rows)

    def _find(self, index: int) -> tuple[int, int]:
        """The group of a row, and its number there."""
        stored = index if self._readable is None else int(self._readable[index])
        position = bisect_right(self._starts, stored) - 1
        return position, stored - self._starts[position]

    def _usable(self, start: int, rows: list[Row | None]) -> Iterator[tuple[int, list[Row]]]:
        """Rows with their positions, without those that are left out."""
        first = start
        if self._readable is not None:
            first, end = np.searchsorted(self._readable, (start, start + len(rows))).tolist()
            rows = [rows[stored - start] for stored in self._readable[first:end].tolist()]
        if rows:
            yield first, [row or {} for row in rows]

    def _batches(self, position: int) -> Iterator[Any]:
        """The batches of a group; it is cached if it is not too large."""
        batches = self._groups.get(position, lambda: self._decoded(position))
        return iter(batches) if batches is not None else self.stream(position)

    def _decoded(self, position: int) -> list[Any] | None:
        batches, size = [], 0
        for batch in self.stream(position):
            batches.append(batch)
            size += batch.nbytes
            if size > CACHED_GROUP_BYTES:
                return None
        return batches

    def stream(self, position: int, without: Sequence[str] = ()) -> Iterator[Any]:
        """The batches of a group, decoded one after the other, some columns left out.

        Raises:
            SampleError: it is damaged from here on.
        """
        group = self._groups_in_order[position]
        remaining = group.rows
        try:
            name = self.row_files[group.file].name
            handle = self._open.get(group.file, lambda: _open_file(self.files, name, self.kind))
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
            reason = f"it does not hold {plural(group.rows, 'row')}"
            raise self._damaged(position, group.rows - max(remaining, 0), reason)

    def _damaged(self, position: int, rows: int, reason: str) -> SampleError:
        group = self._groups_in_order[position]
        row = self._starts[position] - self._file_starts[group.file] + rows
        noun, kind = ("row group", BAD_PARQUET) if self.kind == "parquet" else ("record batch", BAD_ARROW)
        message = f"{noun} {group.number} from row {row:,} on: {reason}"
        return SampleError(Issue(kind, message, Location(self.row_files[group.file].name, row=row)))


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
        if magic.startswith(b"FEA1"):  # its reader has no checks: a damaged file ends the process
            raise ValueError("a Feather file of version 1, which is not read")
        if magic.startswith(b"ARROW1"):
            file = ipc.open_file(source)
            self.schema, self._batch, count = file.schema, file.get_batch, file.num_record_batches
        else:
            reader = ipc.open_stream(source)
            batches = list(reader)
            self.schema, self._batch, count = reader.schema, batches.__getitem__, len(batches)
        self.rows = [self._batch(number).num_rows for number in range(count)]

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
            with TextFile(files, name, packing).open() as stream:
                magic, source = stream.read(8), arrow.memory_map(stream.name)
        elif path is not None:
            source = arrow.memory_map(path)
        elif kind == "arrow" and not magic.startswith(b"ARROW1"):  # a stream can only be read from its start
            source = arrow.memory_map(local_copy(files, name))
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
    converted = [column.name for column in batch.schema if any(word in str(column.type) for word in _NOT_JSON)]
    for row in rows if converted else ():
        if row is not None:
            row |= {name: json_value(row[name]) for name in converted}
    return rows


def to_rows(batch: Any) -> list[Row]:
    """The rows of a batch or table, all of whose text can be decoded."""
    return [row for row in _rows(batch) if row is not None]


def json_value(value: Any) -> Any:
    """Dates, times, decimals and buffers as JSON has them.

    >>> json_value([Decimal("1.5"), timedelta(minutes=1)])
    [1.5, 60.0]
    """
    if isinstance(value, dict):
        return {key: json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


def _reason(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200] or type(error).__name__


@dataclass
class Features:
    """Columns with class names, images and boxes."""

    classes: dict[str, list[str]] = field(default_factory=dict)  # class names by column; only these explain numbers
    tags: dict[str, list[str]] = field(default_factory=dict)  # the same of columns of lists
    images: list[str] = field(default_factory=list)  # columns of image files
    others: list[str] = field(default_factory=list)  # columns of bytes that hold something else, such as audio
    objects: list[str] | None = None  # class names of the boxes in the column `objects`

    @classmethod
    def of(cls, described: Any) -> Features:
        """From the JSON of `datasets.Features`.

        >>> label = {"_type": "ClassLabel", "names": ["cat", "dog"]}
        >>> features = Features.of({"image": {"_type": "Image"}, "label": label, "tags": [label]})
        >>> features.classes, features.tags, features.images
        ({'label': ['cat', 'dog']}, {'tags': ['cat', 'dog']}, ['image'])
        """
        features = cls()
        for name, kind in described.items() if isinstance(described, Mapping) else ():
            if (names := _class_names(kind)) is not None:
                features.classes[name] = names
            elif (names := _class_names(_element(kind))) is not None:
                features.tags[name] = names
            elif isinstance(kind, Mapping) and kind.get("_type") in ("Image", "Audio", "Video", "Pdf"):
                (features.images if kind["_type"] == "Image" else features.others).append(name)
            elif name == OBJECTS:
                fields = _element(kind) or kind  # a list of dicts or a dict of lists
                kinds = [fields.get(category) for category in CATEGORIES] if isinstance(fields, Mapping) else []
                named = (_class_names(kind) or _class_names(_element(kind)) for kind in kinds)
                features.objects = next(filter(None, named), None)
        return features


def schema_features(schemas: Sequence[Any]) -> list[Features]:
    """Features of Arrow schemas, from what `datasets` wrote into them."""
    features = []
    for schema in schemas:
        try:
            described = orjson.loads((schema.metadata or {}).get(b"huggingface", b"null"))
            features.append(Features.of(described.get("info", {}).get("features")))
        except (orjson.JSONDecodeError, AttributeError):
            features.append(Features())
    return features


def _class_names(kind: Any) -> list[str] | None:
    if isinstance(kind, Mapping) and kind.get("_type") == "ClassLabel" and isinstance(kind.get("names"), list):
        return [str(name) for name in kind["names"]] or None
    return None


def _element(kind: Any) -> Any:
    """What a list holds, in any of the ways `datasets` wrote it."""
    if isinstance(kind, list):
        return kind[0] if kind else None
    if isinstance(kind, Mapping) and kind.get("_type") in ("Sequence", "List", "LargeList"):
        return kind.get("feature")
    return None
