# SPDX-License-Identifier: Apache-2.0
"""Records of a CSV file: the `csv` module for clean stretches, our own parser for the few records that are not.

blocks          complete lines, about 1 MB
  _clean        quotes by array operations, fields by one call of the `csv` module; `None` if anything is odd
  _look_closer  record by record, where a stretch of a few KB is odd: every problem with its code and line
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from fewbit.data.rows.blocks import (
    BAD_ENCODING,
    MOST_RECORD,
    NUL_BYTE,
    ROW_TOO_LONG,
    Block,
    ColumnRows,
    Lines,
    complete_lines,
    encoding_message,
    readable,
    short_repr,
    usable,
)
from fewbit.data.rows.dialect import CsvRecord, parse_record
from fewbit.data.rows.table import Row, column_lists
from fewbit.data.rows.text import TextFile
from fewbit.data.types import DataReport, IssueType, Location, Severity
from fewbit.errors import plural

MOST_QUOTED = 16 << 20
"""Bytes of a record with line breaks; a longer one is a quote that was never closed."""
_STRETCH = 1 << 12
_UNUSED = (b"\x1f", b"\x1e", b"\x1d", b"\x01")
"""Bytes that hardly any text holds, to split at."""

QUOTE_EARLY = IssueType(
    "quote-early", Severity.ERROR, "text after the quote that closes a field",
    'double the quotes inside the field: "" for each "', "raise", ("drop", "keep"), "leaves the row out",
)  # fmt: skip
QUOTE_STRAY = IssueType(
    "quote-stray", Severity.WARNING, "quote inside a field without quotes around it",
    "put quotes around the field and double the one inside", "keep", ("raise",),
)  # fmt: skip
QUOTE_UNCLOSED = IssueType(
    "quote-unclosed", Severity.ERROR, "quote that is opened and never closed",
    "close it, or double it if it belongs to the text", "raise", ("drop",), "leaves the line out",
)  # fmt: skip
ROW_SHORT = IssueType(
    "row-short", Severity.ERROR, "row with fewer fields than the header",
    "add what is missing; {on_error=row-short=repair} fills it with empty text", "raise", ("drop",),
    "leaves the row out",
)  # fmt: skip
ROW_LONG = IssueType(
    "row-long", Severity.ERROR, "row with more fields than the header",
    "put quotes around the field that holds the delimiter; {on_error=row-long=repair} cuts the row", "raise", ("drop",),
    "leaves the row out",
)  # fmt: skip
TRAILING_DELIMITER = IssueType(
    "trailing-delimiter", Severity.WARNING, "row that ends in delimiters with nothing after them", "remove them",
    "repair", ("raise",), "removes them",
)  # fmt: skip
BAD_CAST = IssueType(
    "bad-cast", Severity.ERROR, "value that is not of the type its column was declared to have",
    "correct the value or the type; {on_error=bad-cast=repair} makes it None", "raise", ("drop",), "leaves the row out",
)  # fmt: skip
ISSUES = (QUOTE_EARLY, QUOTE_STRAY, QUOTE_UNCLOSED, ROW_SHORT, ROW_LONG, TRAILING_DELIMITER, BAD_CAST)

_INT = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


def _int(text: str) -> int:
    """Python's `int` alone would take `1_000`, spaces and digits of any script."""
    if not _INT.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _float(text: str) -> float:
    if not _FLOAT.fullmatch(text):
        raise ValueError(text)
    return float(text)


def _bool(text: str) -> bool:
    return _BOOLEANS[text.lower()]


TYPES: dict[str, Callable[[str], Any]] = {"int": _int, "float": _float, "bool": _bool, "str": str}


@dataclass(frozen=True)
class CsvReader:
    """Reads one CSV file; made by `csv_opening.open_csv`.

    Args:
        text: the plain text.
        columns: names, all different.
        delimiter: one character.
        lead: bytes before the first row: Excel's `sep=` line and the header.
        types: declared types by column; other columns stay text.
        renamed: columns had to be renamed, so the header is not what the file says.
    """

    text: TextFile
    columns: Sequence[str]
    delimiter: str
    lead: int
    types: Mapping[str, str]
    renamed: bool = False

    def blocks(self, report: DataReport) -> Iterator[Block]:
        """Every usable record; problems go into the report."""
        return _CsvScan(self, report).blocks()

    def parse(self, chunk: bytes, report: DataReport) -> Row | None:
        """The first record of a piece of text; `None` if it is not usable."""
        record = parse_record(chunk, 0, self.delimiter.encode())
        return None if record is None else _CsvScan(self, report).row(chunk[: record.end], record, 1, 0)


class _CsvScan:
    """One pass over a file."""

    def __init__(self, reader: CsvReader, report: DataReport):
        self.reader, self.report = reader, report
        self.separator = reader.delimiter.encode()
        self.width = len(reader.columns)
        self.file = reader.text.name

    def blocks(self) -> Iterator[Block]:
        text, reader = self.reader.text, self.reader
        remainder, skip = b"", reader.lead
        pieces = readable(text.pieces(), self.report)
        for chunk in complete_lines(pieces, text.begin):
            if chunk.data is None:
                self._too_long(chunk)
                continue
            data = remainder + chunk.data
            offset, line = chunk.offset - len(remainder), chunk.line - remainder.count(b"\n")
            if skip:  # the header may span several pieces
                skipped = min(skip, len(data))
                offset, line, data, skip = (
                    offset + skipped,
                    line + data.count(b"\n", 0, skipped),
                    data[skipped:],
                    skip - skipped,
                )
            block, used = self._read(data, offset, line, chunk.last)
            remainder = data[used:]
            if block.rows:
                yield block

    def _too_long(self, chunk: Lines) -> None:
        self.report.add(
            ROW_TOO_LONG, f"more than {MOST_RECORD:,} bytes", Location(self.file, line=chunk.line, byte=chunk.offset)
        )

    def _read(self, data: bytes, offset: int, line: int, last: bool) -> tuple[Block, int]:
        """The records of complete lines, and how many bytes were used; the rest continues in the next piece."""
        stretches: list[Block] = []
        position, size = 0, len(data)
        while position < len(data):
            end = len(data) if position + size >= len(data) else data.find(b"\n", position + size) + 1 or len(data)
            at_end = end == len(data)
            stretch, used, lines, odd = self._clean(data[position:end], offset + position, line, last and at_end)
            if used:
                stretches.append(stretch)
                position, line = position + used, line + lines
            if odd or (at_end and not used and (last or len(data) - position > MOST_QUOTED)):
                # One record is odd, probably; where even the first one is, look at some more.
                stretch, looked, lines = self._look_closer(data, position, offset, line, last, 1 if used else _STRETCH)
                stretches.append(stretch)
                position, line, size = position + looked, line + lines, _STRETCH
                if not looked:
                    break
            elif at_end:
                break
            else:
                size *= 4  # back to long stretches, step by step
        return _joined(stretches), position

    def _clean(self, data: bytes, offset: int, line: int, last: bool) -> tuple[Block, int, int, bool]:
        """The records before the first one that is not clean.

        Returns:
            The records, bytes and lines they take, and whether an odd record follows, rather than an incomplete one.
        """
        view = np.frombuffer(data, np.uint8)
        limit = _first_bad_byte(data)
        newlines = ends = np.flatnonzero(view == 10)
        quotes = np.flatnonzero(view == 34) if b'"' in data else np.zeros(0, np.int64)
        if len(quotes):
            limit = min(limit, self._first_bad_quote(view, quotes))
            ends = newlines[np.searchsorted(quotes, newlines) % 2 == 0]  # else the line break is inside quotes
        if last and len(quotes) % 2:
            limit = min(limit, int(quotes[-1]))
        elif last and not data.endswith(b"\n"):
            ends = np.append(ends, len(data))
        odd = limit < len(data)
        if odd:
            ends = ends[ends < limit]
        delimiters = np.flatnonzero(view == ord(self.separator))
        if len(quotes):
            delimiters = delimiters[np.searchsorted(quotes, delimiters) % 2 == 0]
        wrong = np.flatnonzero(np.diff(np.searchsorted(delimiters, ends), prepend=0) != self.width - 1)
        if self.width == 1:  # a blank line is no record
            lengths = np.diff(ends, prepend=-1) - 1
            wrong = np.union1d(wrong, np.flatnonzero(lengths <= (b"\r" in data)))
        if len(wrong):
            odd, ends = True, ends[: wrong[0]]
        mark = next((byte for byte in _UNUSED if byte not in data), None)
        if not len(ends) or mark is None:
            return _joined([]), 0, 0, odd or mark is None
        used = min(int(ends[-1]) + 1, len(data))
        delimiters = delimiters[: int(np.searchsorted(delimiters, used))]
        lists = self._lists(
            data[:used], view[:used], delimiters, ends, quotes[: int(np.searchsorted(quotes, used))], mark[0]
        )
        if self.reader.types and not self._cast_all(lists):
            return _joined([]), 0, 0, True
        starts = np.concatenate(([0], ends[:-1] + 1))
        count = int(np.searchsorted(newlines, used)) + (not data[:used].endswith(b"\n"))
        lines: Sequence[int] = range(line, line + count)
        if len(ends) != count:
            lines = (line + np.searchsorted(newlines, starts)).tolist()
        block = Block(ColumnRows(lists), starts + offset, np.minimum(ends + 1, len(data)) + offset, lines)
        return block, used, count, odd

    def _first_bad_quote(self, view: np.ndarray, quotes: np.ndarray) -> int:
        """Position of the first quote that neither opens nor closes a field nor is one of a doubled pair."""
        padded = np.append(view, np.array([10, 10], np.uint8))
        before, after, second = view[quotes[::2] - 1], padded[quotes[1::2] + 1], padded[quotes[1::2] + 2]
        if quotes[0] == 0:
            before[0] = 10
        separator = ord(self.separator)
        opens = (before == separator) | (before == 10) | (before == 34)
        closes = (after == separator) | (after == 10) | (after == 34) | ((after == 13) & (second == 10))
        bad = [int(quotes[kind::2][~good][0]) for kind, good in enumerate((opens, closes)) if not good.all()]
        return min(bad, default=len(view))

    def _lists(
        self, data: bytes, view: np.ndarray, delimiters: np.ndarray, ends: np.ndarray, quotes: np.ndarray, mark: int
    ) -> dict[str, list[Any]]:
        """The fields of clean records by column: every separator becomes one unused byte, then one `split`."""
        marked = view.copy()
        borders = ends[ends < len(data)]
        marked[delimiters] = mark
        marked[borders] = mark
        fields = marked.tobytes().decode().split(chr(mark))
        if len(borders) == len(ends):
            fields.pop()
        lists: dict[str, list[Any]] = {
            name: fields[number :: self.width] for number, name in enumerate(self.reader.columns)
        }
        final = self.reader.columns[-1]
        if b"\r" in data:
            lists[final] = [value[:-1] if value.endswith("\r") else value for value in lists[final]]
        if len(quotes):
            opening = quotes[::2]
            fields_before = np.searchsorted(delimiters, opening) + np.searchsorted(ends, opening)
            for number in np.unique(fields_before % self.width).tolist():
                name = self.reader.columns[number]
                values = lists[name]
                lists[name] = [value[1:-1].replace('""', '"') if value[:1] == '"' else value for value in values]
        return lists

    def _look_closer(
        self, data: bytes, position: int, offset: int, line: int, last: bool, stretch: int
    ) -> tuple[Block, int, int]:
        """The records that begin within a stretch, one by one."""
        begin, first_line = position, line
        rows: list[Row] = []
        starts: list[int] = []
        ends: list[int] = []
        lines: list[int] = []
        repaired: set[int] = set()
        while position < len(data) and position < begin + stretch:
            record = parse_record(data, position, self.separator)
            next_line = data.find(b"\n", position) + 1 or len(data)
            if record is None or (record.early is not None and record.end > next_line):
                if record is None and not last and len(data) - position <= MOST_QUOTED:
                    break  # it may be closed in the next piece
                message = (
                    "no quote closes the field" if record is None else "the next quote is not at the end of a field"
                )
                self.report.add(QUOTE_UNCLOSED, message, Location(self.file, line=line, byte=offset + position))
                position, line = next_line, line + 1
                continue
            if not record.complete and not last:
                break
            raw = data[position : record.end]
            if raw.strip(b"\r\n"):  # not a blank line
                row = self.row(raw, record, line, offset + position)
                if row is not None:
                    if len(record.fields) != self.width:
                        repaired.add(len(rows))
                    rows.append(row)
                    starts.append(offset + position)
                    ends.append(offset + record.end)
                    lines.append(line)
            position, line = record.end, line + raw.count(b"\n") + (not record.complete)
        block = Block(rows, np.array(starts, np.int64), np.array(ends, np.int64), lines, repaired)
        return block, position - begin, line - first_line

    def row(self, raw: bytes, record: CsvRecord, line: int, offset: int) -> Row | None:
        """The values of a record, or `None` if it cannot be used; every problem of it is reported."""
        location = Location(self.file, line=line, byte=offset)
        good = True
        try:
            fields = [field.decode() for field in record.fields]
        except UnicodeDecodeError:
            good = self._bad_encoding(raw, line, offset)
            fields = [field.decode("utf-8", "replace") for field in record.fields]
        if b"\0" in raw:
            nul_location = Location(self.file, line=line, byte=offset + raw.index(0))
            good &= usable(self.report, NUL_BYTE, f"{plural(raw.count(0), 'NUL byte')} in the row", nul_location)
        for kind, position, description in (
            (QUOTE_EARLY, record.early, "text follows a closing quote"),
            (QUOTE_STRAY, record.stray, "a quote inside a bare field"),
        ):
            if position is not None:
                good &= usable(self.report, kind, f"{description}: {short_repr(fields[position])}", location)
        if len(fields) != self.width:
            good &= self._ragged(fields, location)
        row: Row = dict(zip(self.reader.columns, fields))
        for name in self.reader.columns[len(fields) :]:
            row[name] = ""
        return row if self._cast(row, location) and good else None

    def _bad_encoding(self, raw: bytes, line: int, offset: int) -> bool:
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            location = Location(self.file, line=line + raw.count(b"\n", 0, error.start), byte=offset + error.start)
            return usable(self.report, BAD_ENCODING, encoding_message(raw, error), location)
        return True

    def _ragged(self, fields: list[str], location: Location) -> bool:
        count = plural(len(fields), "field")
        if len(fields) < self.width:
            missing = self.reader.columns[len(fields)]
            return usable(
                self.report,
                ROW_SHORT,
                f"{count} instead of {self.width}; {short_repr(missing)} is the first missing",
                location,
            )
        extra = fields[self.width :]
        if not any(extra):
            return usable(self.report, TRAILING_DELIMITER, f"{plural(len(extra), 'delimiter')} too many", location)
        return usable(
            self.report,
            ROW_LONG,
            f"{count} instead of {self.width}; the first too many is {short_repr(extra[0])}",
            location,
        )

    def _cast_all(self, lists: dict[str, list[Any]]) -> bool:
        """Cast the declared columns of clean rows; whether all could be."""
        try:
            for name, kind in self.reader.types.items():
                lists[name] = list(map(TYPES[kind], lists[name]))
        except (ValueError, KeyError, OverflowError):
            return False
        return True

    def _cast(self, row: Row, location: Location) -> bool:
        good = True
        for name, kind in self.reader.types.items():
            value = row[name]
            if isinstance(value, str):
                try:
                    row[name] = TYPES[kind](value)
                except (ValueError, KeyError, OverflowError):
                    row[name] = None
                    field_location = Location(location.file, line=location.line, byte=location.byte, field=name)
                    good &= usable(self.report, BAD_CAST, f"{short_repr(value)} is not {kind}", field_location)
        return good


def _first_bad_byte(data: bytes) -> int:
    """Position of the first NUL or byte that is not UTF-8; the length if there is none."""
    nul = data.find(b"\0")
    limit = nul if nul >= 0 else len(data)
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            limit = min(limit, error.start)
    return limit


def _joined(blocks: list[Block]) -> Block:
    """Stretches as one block."""
    if len(blocks) == 1:
        return blocks[0]
    blocks = [block for block in blocks if block.rows]
    sizes = np.cumsum([0, *(len(block.rows) for block in blocks)]).tolist()
    empty = np.zeros(0, np.int64)
    lists: dict[str, list[Any]] = {}
    for block in blocks:
        for name, values in (column_lists(block.rows) or {}).items():
            lists.setdefault(name, []).extend(values)
    return Block(
        ColumnRows(lists),
        np.concatenate([empty, *(block.starts for block in blocks)]),
        np.concatenate([empty, *(block.ends for block in blocks)]),
        list(chain.from_iterable(block.lines for block in blocks)),
        {size + position for size, block in zip(sizes, blocks) for position in block.repaired},
    )
