# SPDX-License-Identifier: Apache-2.0
"""JSON files as tables: lines, one array, `{"data": [...]}`, or values one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from fewbit.data import limits
from fewbit.data.tables import json_scan, json_value, lines, plain
from fewbit.data.tables.index import Index, stored
from fewbit.data.tables.json_sniff import ENOUGH, Shape, sniff
from fewbit.data.tables.json_value import Record
from fewbit.data.tables.table import Broken, Fault, Row, broken_row
from fewbit.data.tables.text_table import TextTable

_WORDS = {"array": "one array", "data": 'an object with the rows under "data"', "values": "objects over many lines"}


class _Text:
    """Pieces of text that end early instead of raising, and remember why."""

    def __init__(self, chunks: Iterator[bytes]):
        self.chunks = chunks
        self.fault: Fault | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self.chunks
        except Broken as broken:
            self.fault = broken.fault


class JsonTable(TextTable):
    """One JSON file."""

    kind = "json"

    @cached_property
    def _head(self) -> bytes:
        return plain.head(self.path, self.encoding)

    @cached_property
    def shape(self) -> Shape:
        """Whether the file is lines, an array or something else."""
        found = sniff(self._head, whole=len(self._head) < plain.FIRST)
        if found.kind != "unclear":
            return found
        head = plain.head(self.path, self.encoding, ENOUGH)
        return sniff(head, whole=len(head) < ENOUGH)

    @cached_property
    def _newline(self) -> bytes:
        return lines.newline(self._head)

    @cached_property
    def _index(self) -> Index:
        frame = self.shape.frame
        layout = f"{self.shape}{self._newline!r}{self.encoding}"
        if frame is None:
            return stored(self.path, self._plain, layout, lambda chunks: lines.offsets(chunks, self._newline))
        return stored(self.path, self._plain, layout, lambda chunks: json_scan.offsets(chunks, frame))

    @cached_property
    def _tail(self) -> list[Fault]:
        """The faults at the end of the file; each counts as a row."""
        return [fault for fault in (self._index.fault, self._plain.fault) if fault is not None]

    def notes(self) -> Sequence[Fault]:
        """That a `.jsonl` holds no lines, or a lone object no rows."""
        kind, lines_wanted = self.shape.kind, ".json" not in self.path.suffixes
        found = list(super().notes())
        if self.shape.coco:
            what = "the file holds COCO annotations (images, annotations, categories), which fewbit does not read"
            return [*found, Fault("coco-json", what, 1, self._beginning.shift)]
        if kind == "data":
            others = [key for key in self.shape.keys if key != "data"]
            rest = f"; passed over: {', '.join(others)}" if others else ""
            found.append(Fault("rows-under-data", f'the rows are those under "data"{rest}', 1))
        if kind == "object" or (self.shape.alone and not lines_wanted):
            found.append(Fault("not-rows", "the file is a single object, read as one row", 1, self._beginning.shift))
        elif kind in _WORDS and lines_wanted:
            found.append(Fault("not-lines", f"named {self.path.name}, but holds {_WORDS[kind]}; read as that", 1))
        return found

    def rows(self) -> Iterator[Row]:
        """Every row in order, streaming."""
        text = _Text(self.chunks())
        frame = self.shape.frame
        for record in lines.records(text, self._newline) if frame is None else json_scan.records(text, frame):
            yield broken_row(record) if isinstance(record, Fault) else self._parse(record)
        if text.fault is not None:
            yield broken_row(text.fault)

    def count(self) -> int:
        """How many rows `rows` yields."""
        return len(self._index) + len(self._tail)

    def row(self, index: int) -> Row:
        """One row: a single `pread`."""
        rows = len(self._index)
        if index >= rows:
            return broken_row(self._tail[index - rows])
        return self._parse(self._read(index))

    def line(self, index: int) -> int | None:
        """The line a row begins on; for arrays that takes reading it, as spaces may come before it."""
        if self.shape.frame is None and index < len(self._index):
            return self._index.line(index)
        return self.row(index).line

    def _read(self, index: int) -> Record:
        start, stop = int(self._index.offsets[index]), int(self._index.offsets[index + 1])
        line = self._index.line(index)
        frame = self.shape.frame
        if frame is not None and frame.depth:
            stop -= 1  # the comma
        data = self._file.read(min(stop - start, limits.ROW_BYTES + 1), start + self._plain.start)
        ended = True
        if frame is None:
            cut = data.find(self._newline)
            ended = cut >= 0 or len(data) < stop - start
            data = data[:cut] if cut >= 0 else data
        return Record(data if len(data) <= limits.ROW_BYTES else None, line, start, ended)

    def _parse(self, record: Record) -> Row:
        raw = record.raw
        if raw is not None and self.shape.frame is not None:
            body = raw.lstrip(b" \t\r\n")
            skipped = len(raw) - len(body)
            newlines = raw.count(b"\n", 0, skipped)
            record = Record(body, record.line + newlines, record.offset + skipped, record.ended)
        if shift := self._beginning.shift:
            record = record._replace(offset=record.offset + shift)
        return json_value.parse(record)
