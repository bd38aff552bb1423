# SPDX-License-Identifier: Apache-2.0
"""CSV and TSV files as tables. Every value stays the text it is, `NA`, `007` and the empty one too, unless declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from fewbit.data.tables import csv_index, csv_survey
from fewbit.data.tables.csv_blocks import Block, Blocks, Odd
from fewbit.data.tables.csv_cast import casts
from fewbit.data.tables.csv_dialect import checked
from fewbit.data.tables.csv_feed import PIECE, Feed
from fewbit.data.tables.csv_opening import Opening, opening
from fewbit.data.tables.csv_row import RowReader
from fewbit.data.tables.index import Index, stored
from fewbit.data.tables.table import Fault, Row, Survey, broken_row
from fewbit.data.tables.text_table import TextTable
from fewbit.errors import UsageError, nearest


class CsvTable(TextTable):
    """One CSV or TSV file.

    Args:
        path: the file.
        name: its name relative to the dataset's root.
        encoding: the user's own word about its encoding.
        delimiter: the user's own word about its delimiter.
        types: declared types of columns, `{"label": int}`; all others stay text.
        piece: how many bytes are scanned at a time.
    """

    kind = "csv"

    def __init__(
        self,
        path: Path,
        name: str,
        *,
        encoding: str | None = None,
        delimiter: str | None = None,
        types: Mapping[str, object] | None = None,
        piece: int = PIECE,
    ):
        super().__init__(path, name, encoding=encoding)
        self._delimiter = None if delimiter is None else checked(delimiter)
        self._casts = casts(types or {})
        self._piece = piece

    @cached_property
    def opening(self) -> Opening:
        """The delimiter, the columns, and what is odd about them."""
        return opening(self.path, self.encoding, self._delimiter)

    @cached_property
    def _reader(self) -> RowReader:
        names = self.opening.names
        unknown = [name for name in self._casts if names and name not in names]
        if unknown:
            raise UsageError(
                f"there is no column {', '.join(map(repr, unknown))}",
                where=f"types for {self.name}",
                expected="; ".join(nearest(name, names) for name in unknown),
            )
        return RowReader(names, self.opening.dialect.delimiter, self._casts, self._beginning.shift)

    @cached_property
    def _index(self) -> Index:
        delimiter, fault = self.opening.dialect.delimiter, self._plain.fault
        layout = f"csv {delimiter} {self.encoding}"
        return stored(self.path, self._plain, layout, lambda chunks: csv_index.offsets(chunks, delimiter, fault))

    def untyped(self) -> CsvTable:
        """The same table with every value as text."""
        return CsvTable(self.path, self.name, encoding=self.encoding, delimiter=self._delimiter)

    def notes(self) -> Sequence[Fault]:
        """What is to say about the delimiter and the header."""
        return [*super().notes(), *self.opening.faults]

    def rows(self) -> Iterator[Row]:
        """Every row in order, streaming."""
        feed = self._feed()
        reader = self._reader
        for item in self._data(feed):
            if isinstance(item, Odd):
                yield reader.odd(item)
            else:
                offsets = (item.begins() + item.offset).tolist()
                yield from map(reader.row, item.records(), item.lines.tolist(), offsets)
        if feed.fault is not None:
            yield broken_row(feed.fault)

    def scan(self, survey: Survey) -> None:
        """One full pass by columns; only records that look odd are taken apart one by one."""
        for note in self.notes():
            survey.fault(note)
        feed = self._feed()
        for item in self._data(feed):
            csv_survey.hand_out(item, self._reader, survey)
        if feed.fault is not None:
            survey.rows([broken_row(feed.fault)])

    def count(self) -> int:
        """How many rows `rows` yields."""
        return self._whole + (self._plain.fault is not None)

    def row(self, index: int) -> Row:
        """One row: a single read, unless it is very long."""
        if index >= self._whole and self._plain.fault is not None:
            return broken_row(self._plain.fault)
        entry = index + self.opening.dialect.lead
        start, stop = int(self._index.offsets[entry]), int(self._index.offsets[entry + 1])
        line = self._index.line(entry)
        if stop - start <= self._piece:
            data = self._file.read(stop - start, start + self._plain.start)
            if b'"' not in data:
                ends = [end for end in (data.find(b"\n"), data.find(b"\r")) if end >= 0]
                return self._reader.row(data[: min(ends, default=len(data))], line, start)
        item = next(iter(self._blocks(Feed(self._section(start, stop), self._piece), start, line)))
        return self._reader.odd(item) if isinstance(item, Odd) else self._reader.row(item.record(0), line, start)

    def line(self, index: int) -> int | None:
        """Where the row at an index begins, without reading it."""
        if index < self._whole:
            return self._index.line(index + self.opening.dialect.lead)
        return self.row(index).line

    @property
    def _whole(self) -> int:
        """How many rows there are before the place where the text breaks off, if it does."""
        return max(0, len(self._index) - self.opening.dialect.lead) if self.opening.names else 0

    def _feed(self) -> Feed:
        return Feed(self.chunks(), self._piece)

    def _blocks(self, feed: Feed, offset: int = 0, line: int = 1) -> Blocks:
        return Blocks(feed, ord(self.opening.dialect.delimiter), offset=offset, line=line)

    def _data(self, feed: Feed) -> Iterator[Block | Odd]:
        """What comes behind the header; nothing when no header says what it is."""
        lead = self.opening.dialect.lead
        for item in self._blocks(feed):
            if not self.opening.names:
                continue
            if lead:
                passed = 1 if isinstance(item, Odd) else min(lead, len(item))
                lead -= passed
                if isinstance(item, Odd) or passed == len(item):
                    continue
                item = item.without(passed)
            yield item

    def _section(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes of one record and of blank lines behind it."""
        while start < stop and (data := self._file.read(min(self._piece, stop - start), start + self._plain.start)):
            start += len(data)
            yield data
