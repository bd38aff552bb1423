# SPDX-License-Identifier: Apache-2.0
"""Records of a CSV file: array operations for clean stretches, our own parser for the few records that are not.

blocks          complete lines, about 1 MB
  _clean        quotes, delimiters and line ends by array operations, fields by one `split`, up to the first odd record
  _look_closer  record by record from there on: every problem with its code and line
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fewbit.data.rows.table import Row, column_lists
from fewbit.data.rows.text import (
    BAD_ENCODING,
    MOST_RECORD,
    NUL_BYTE,
    ROW_TOO_LONG,
    TextFile,
    complete_lines,
    encoding_message,
    readable,
    row_error,
    short_repr,
    usable,
)
from fewbit.data.rows.text_table import Block, ColumnRows
from fewbit.data.types import DataReport, IssueType, Location, Severity
from fewbit.errors import plural

MOST_QUOTED = 16 << 20
"""Bytes of a record with line breaks; a longer one is a quote that was never closed."""
_STRETCH = 1 << 12
_UNUSED = (b"\x1f", b"\x1e", b"\x1d", b"\x01")
"""Bytes that hardly any text holds, to split at."""

QUOTE_EARLY = row_error(
    "quote-early", "text after the quote that closes a field", 'double the quotes inside the field: "" for each "',
    "keep",
)  # fmt: skip
QUOTE_STRAY = IssueType(
    "quote-stray", Severity.WARNING, "quote inside a field without quotes around it",
    "put quotes around the field and double the one inside", "keep", ("raise",),
)  # fmt: skip
QUOTE_UNCLOSED = row_error(
    "quote-unclosed", "quote that is opened and never closed", "close it, or double it if it belongs to the text"
)
ROW_SHORT = row_error(
    "row-short", "row with fewer fields than the header",
    "add what is missing; {on_error=row-short=repair} fills it with empty text", by_code=("repair",),
)  # fmt: skip
ROW_LONG = row_error(
    "row-long", "row with more fields than the header",
    "put quotes around the field that holds the delimiter; {on_error=row-long=repair} cuts the row",
    by_code=("repair",),
)  # fmt: skip
TRAILING_DELIMITER = IssueType(
    "trailing-delimiter", Severity.WARNING, "row that ends in delimiters with nothing after them", "remove them",
    "repair", ("raise",), "removes them",
)  # fmt: skip
BAD_CAST = row_error(
    "bad-cast", "value that is not of the type its column was declared to have",
    "correct the value or the type; {on_error=bad-cast=repair} makes it None", by_code=("repair",),
)  # fmt: skip
ISSUES = (QUOTE_EARLY, QUOTE_STRAY, QUOTE_UNCLOSED, ROW_SHORT, ROW_LONG, TRAILING_DELIMITER, BAD_CAST)


def _matching(pattern: str, convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """A conversion of what a program writes; Python's own would take `1_000`, spaces and digits of any script."""
    matches = re.compile(pattern).fullmatch

    def checked(text: str) -> Any:
        if not matches(text):
            raise ValueError(text)
        return convert(text)

    return checked


TYPES: dict[str, Callable[[str], Any]] = {
    "int": _matching(r"[+-]?[0-9]+", int),
    "float": _matching(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", float),
    "bool": _matching(r"(?i:true|false|0|1)", lambda text: text.lower() in ("true", "1")),
    "str": str,
}
_CAST_ERRORS = (ValueError, OverflowError)


class CsvRecord(NamedTuple):
    """One record of a CSV file."""

    fields: list[bytes]  # undecoded values
    end: int  # position after its line end
    complete: bool  # its line end was seen
    early: int | None = None  # the first field with text after its closing quote
    stray: int | None = None  # the first field without quotes around it that holds one


def parse_record(data: bytes, position: int, delimiter: bytes) -> CsvRecord | None:
    """One record from a position on; `None` if a quote is opened and not closed.

    Quotes open a field only at its start, and a line ends at LF, so this reads what the `csv` module refuses.

    >>> parse_record(b'a,"b ""c""\\n",5" disk\\nnext', 0, b",").fields
    [b'a', b'b "c"\\n', b'5" disk']
    """
    fields: list[bytes] = []
    early = stray = None
    while True:
        quoted = b""
        is_quoted = data.startswith(b'"', position)
        if is_quoted:
            close = data.find(b'"', position + 1)
            while close >= 0 and data.startswith(b'"', close + 1):
                close = data.find(b'"', close + 2)
            if close < 0:
                return None
            quoted, position = data[position + 1 : close].replace(b'""', b'"'), close + 1
        line_end = data.find(b"\n", position)
        stop = len(data) if line_end < 0 else line_end
        cut = data.find(delimiter, position, stop)
        bare = data[position : stop if cut < 0 else cut]
        bare = bare.removesuffix(b"\r") if cut < 0 else bare
        if is_quoted and bare and early is None:
            early = len(fields)
        if not is_quoted and b'"' in bare and stray is None:
            stray = len(fields)
        fields.append(quoted + bare)
        if cut < 0:
            return CsvRecord(fields, stop + (line_end >= 0), line_end >= 0, early, stray)
        position = cut + len(delimiter)


@dataclass(frozen=True)
class CsvReader:
    """Reads one CSV file."""

    text: TextFile  # the plain text
    columns: Sequence[str]  # names, all different
    delimiter: str  # one character
    lead: int  # bytes before the first row: Excel's `sep=` line and the header
    types: Mapping[str, str]  # declared types by column; other columns stay text
    renamed: bool = False  # columns had to be renamed, so the header is not what the file says
    numbered = False

    def blocks(self, report: DataReport) -> Iterator[Block]:
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
        text = self.reader.text
        remainder, skip = b"", self.reader.lead
        for chunk in complete_lines(readable(text.pieces(), self.report), text.begin):
            if chunk.data is None:
                location = Location(self.file, line=chunk.line, byte=chunk.offset)
                self.report.add(ROW_TOO_LONG, f"more than {MOST_RECORD:,} bytes", location)
                continue
            data = remainder + chunk.data
            offset, line = chunk.offset - len(remainder), chunk.line - remainder.count(b"\n")
            skipped = min(skip, len(data))  # the header may span several pieces
            line, offset, skip = line + data.count(b"\n", 0, skipped), offset + skipped, skip - skipped
            data = data[skipped:]
            stretches, used = self._stretches(data, offset, line, chunk.last)
            remainder = data[used:]
            if stretches:
                yield _joined(stretches)

    def _stretches(self, data: bytes, offset: int, line: int, last: bool) -> tuple[list[Block], int]:
        """The records of complete lines, and how many bytes were used; the rest continues in the next piece."""
        stretches: list[Block] = []
        position, size = 0, len(data)
        while position < len(data):
            end = len(data) if position + size >= len(data) else data.find(b"\n", position + size) + 1 or len(data)
            at_end = end == len(data)
            block, used, odd = self._clean(data[position:end], offset + position, line, last and at_end)
            stretches += [block] if block is not None else []
            line += data.count(b"\n", position, position + used)
            position += used
            if odd or (at_end and not used and (last or len(data) - position > MOST_QUOTED)):
                # One record is odd, probably; where even the first one is, look at some more.
                block, looked = self._look_closer(data, position, offset, line, last, 1 if used else _STRETCH)
                stretches += [block] if block.rows else []
                line += data.count(b"\n", position, position + looked)
                position, size = position + looked, _STRETCH
                if not looked:
                    break
            elif at_end:
                break
            else:
                size *= 4  # back to long stretches, step by step
        return stretches, position

    def _clean(self, data: bytes, offset: int, line: int, last: bool) -> tuple[Block | None, int, bool]:
        """The records before the first one that is not clean.

        Returns:
            The records, the bytes they take, and whether an odd record follows, rather than an incomplete one.
        """
        view = np.frombuffer(data, np.uint8)
        limit = _first_bad_byte(data)
        newlines = ends = np.flatnonzero(view == 10)
        quotes = np.flatnonzero(view == 34) if b'"' in data else np.zeros(0, np.int64)
        delimiters = np.flatnonzero(view == ord(self.separator))
        if len(quotes):
            limit = min(limit, self._first_bad_quote(view, quotes))
            ends, delimiters = (marks[np.searchsorted(quotes, marks) % 2 == 0] for marks in (newlines, delimiters))
        if last and len(quotes) % 2:
            limit = min(limit, int(quotes[-1]))
        elif last and not data.endswith(b"\n"):
            ends = np.append(ends, len(data))
        odd = limit < len(data)
        if odd:
            ends = ends[ends < limit]
        wrong = np.diff(np.searchsorted(delimiters, ends), prepend=0) != self.width - 1
        if self.width == 1:  # a blank line is no record
            wrong |= np.diff(ends, prepend=-1) - 1 <= (b"\r" in data)
        if wrong.any():
            odd, ends = True, ends[: int(wrong.argmax())]
        mark = next((byte for byte in _UNUSED if byte not in data), None)
        if not len(ends) or mark is None:
            return None, 0, odd or mark is None
        used = min(int(ends[-1]) + 1, len(data))
        lists = self._lists(view[:used], delimiters[delimiters < used], ends, quotes[quotes < used], mark[0])
        if not self._cast_all(lists):
            return None, 0, True
        starts = np.concatenate(([0], ends[:-1] + 1))
        lines = line + np.searchsorted(newlines, starts)
        return Block(ColumnRows(lists), starts + offset, np.minimum(ends + 1, len(data)) + offset, lines), used, odd

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
        self, view: np.ndarray, delimiters: np.ndarray, ends: np.ndarray, quotes: np.ndarray, mark: int
    ) -> dict[str, list[Any]]:
        """The fields of clean records by column: every separator becomes one unused byte, then one `split`."""
        marked = view.copy()
        borders = ends[ends < len(view)]
        marked[delimiters] = mark
        marked[borders] = mark
        fields = marked.tobytes().decode().split(chr(mark))
        columns = self.reader.columns
        lists: dict[str, list[Any]] = {
            name: fields[number : len(ends) * self.width : self.width] for number, name in enumerate(columns)
        }
        if (view == 13).any():
            lists[columns[-1]] = [value.removesuffix("\r") for value in lists[columns[-1]]]
        if len(quotes):
            opening = quotes[::2]
            fields_before = np.searchsorted(delimiters, opening) + np.searchsorted(ends, opening)
            for number in np.unique(fields_before % self.width).tolist():
                values = lists[columns[number]]
                lists[columns[number]] = [
                    value[1:-1].replace('""', '"') if value[:1] == '"' else value for value in values
                ]
        return lists

    def _cast_all(self, lists: dict[str, list[Any]]) -> bool:
        """Cast the declared columns of clean rows; whether all could be."""
        try:
            for name, kind in self.reader.types.items():
                lists[name] = list(map(TYPES[kind], lists[name]))
        except _CAST_ERRORS:
            return False
        return True

    def _look_closer(
        self, data: bytes, position: int, offset: int, line: int, last: bool, stretch: int
    ) -> tuple[Block, int]:
        """The records that begin within a stretch, one by one, and the bytes they take."""
        begin = position
        rows: list[Row] = []
        spans: list[tuple[int, int, int]] = []
        repaired: set[int] = set()
        while position < min(len(data), begin + stretch):
            record = parse_record(data, position, self.separator)
            next_line = data.find(b"\n", position) + 1 or len(data)
            if record is None or (record.early is not None and record.end > next_line):
                if record is None and not last and len(data) - position <= MOST_QUOTED:
                    break  # it may be closed in the next piece
                message = "no quote closes the field" if record is None else "the next quote is not at a field's end"
                self.report.add(QUOTE_UNCLOSED, message, Location(self.file, line=line, byte=offset + position))
                position, line = next_line, line + 1
                continue
            if not record.complete and not last:
                break
            raw = data[position : record.end]
            row = self.row(raw, record, line, offset + position) if raw.strip(b"\r\n") else None  # not a blank line
            if row is not None:
                if len(record.fields) != self.width:
                    repaired.add(len(rows))
                rows.append(row)
                spans.append((offset + position, offset + record.end, line))
            position, line = record.end, line + raw.count(b"\n")
        starts, ends, lines = np.array(spans, np.int64).reshape(-1, 3).T
        return Block(rows, starts, ends, lines, None, repaired), position - begin

    def row(self, raw: bytes, record: CsvRecord, line: int, offset: int) -> Row | None:
        location = Location(self.file, line=line, byte=offset)
        problems: list[tuple[IssueType, str, Location]] = []
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            place = Location(self.file, line=line + raw.count(b"\n", 0, error.start), byte=offset + error.start)
            problems.append((BAD_ENCODING, encoding_message(raw, error), place))
        if b"\0" in raw:
            place = Location(self.file, line=line, byte=offset + raw.index(0))
            problems.append((NUL_BYTE, f"{plural(raw.count(0), 'NUL byte')} in the row", place))
        fields = [field.decode("utf-8", "replace") for field in record.fields]
        if record.early is not None:
            message = f"text follows a closing quote: {short_repr(fields[record.early])}"
            problems.append((QUOTE_EARLY, message, location))
        if record.stray is not None:
            message = f"a quote inside a bare field: {short_repr(fields[record.stray])}"
            problems.append((QUOTE_STRAY, message, location))
        if len(fields) != self.width:
            problems.append((*self._ragged(fields), location))
        columns = self.reader.columns
        row: Row = dict(zip(columns, fields + [""] * (self.width - len(fields))))
        for name, kind in self.reader.types.items():
            try:
                row[name] = TYPES[kind](row[name])
            except _CAST_ERRORS:
                place = Location(self.file, line=line, byte=offset, field=name)
                problems.append((BAD_CAST, f"{short_repr(row[name])} is not {kind}", place))
                row[name] = None
        good = [usable(self.report, *problem) for problem in problems]
        return row if all(good) else None

    def _ragged(self, fields: list[str]) -> tuple[IssueType, str]:
        """What is wrong with a row of another width than the header's."""
        count = f"{plural(len(fields), 'field')} instead of {self.width}"
        if len(fields) < self.width:
            return ROW_SHORT, f"{count}; {short_repr(self.reader.columns[len(fields)])} is the first missing"
        extra = fields[self.width :]
        if not any(extra):
            return TRAILING_DELIMITER, f"{plural(len(extra), 'delimiter')} too many"
        return ROW_LONG, f"{count}; the first too many is {short_repr(extra[0])}"


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
    sizes = np.cumsum([0, *(len(block.rows) for block in blocks)]).tolist()
    lists: dict[str, list[Any]] = {}
    for block in blocks:
        for name, values in (column_lists(block.rows) or {}).items():
            lists.setdefault(name, []).extend(values)
    starts, ends, lines = (
        np.concatenate([getattr(block, name) for block in blocks]) for name in ("starts", "ends", "lines")
    )
    repaired = {size + position for size, block in zip(sizes, blocks) for position in block.repaired}
    return Block(ColumnRows(lists), starts, ends, lines, None, repaired)
