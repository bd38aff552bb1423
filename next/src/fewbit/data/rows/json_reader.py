# SPDX-License-Identifier: Apache-2.0
"""Records of a JSON file: lines, the elements of an array, or objects one after another.

orjson parses every record. What it passes over shows in cheap counts per block: a key that occurs twice is missing when
the rows are written again, and an integer beyond 64 bits is a float whose text has 19 digits. Only such records, and
those it refuses, are read a second time, strictly, with a code for each problem.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
import orjson

from fewbit.data.rows import text as plain_text
from fewbit.data.rows.check import ParsedRows, canonical, hash_rows
from fewbit.data.rows.table import Row
from fewbit.data.rows.text import (
    BAD_ENCODING,
    NUL_BYTE,
    ROW_TOO_LONG,
    TextFile,
    complete_lines,
    encoding_message,
    readable,
    row_error,
    usable,
)
from fewbit.data.rows.text_table import Block
from fewbit.data.types import DataReport, IssueType, Location, Severity
from fewbit.errors import plural

DEEPEST = 253
"""Levels that orjson writes again."""

BAD_JSON = row_error(
    "bad-json", "row that is not JSON", "correct the row, or leave it out: {on_error=bad-json=drop}"
)  # fmt: skip
TRUNCATED_ROW = row_error("truncated-row", "file that ends inside a row", "download the file again")
NOT_AN_OBJECT = row_error(
    "not-an-object", "row that is not an object", 'write {"text": …} instead of the bare value'
)  # fmt: skip
DUPLICATE_KEY = row_error("duplicate-key", "key that occurs twice in one object", "keep one of the two", "keep")
LONE_SURROGATE = row_error(
    "lone-surrogate", "half of a surrogate pair, which is no character", "write the text again as UTF-8"
)
TOO_DEEP = row_error("too-deep", f"value nested more than {DEEPEST} deep", "flatten it")
NAN_IN_JSON = IssueType(
    "nan-in-json", Severity.WARNING, "NaN or Infinity, which JSON does not have", "write null", "keep", ("raise",)
)
MARK_INSIDE = IssueType(
    "mark-inside", Severity.WARNING, "byte-order mark inside the text", "join files without their marks", "repair",
    ("raise",), "removes the mark",
)  # fmt: skip
TRUNCATED_FILE = IssueType(
    "truncated-file", Severity.ERROR, "JSON array that is not closed", "download the file again", "raise", ("drop",),
    "closes the array after the last complete row",
)  # fmt: skip
TRAILING_DATA = IssueType(
    "trailing-data", Severity.ERROR, "text after the end of the JSON array",
    "write one array per file, or one row per line", "raise", ("drop",), "leaves the text out",
)  # fmt: skip
ISSUES = (
    BAD_JSON, TRUNCATED_ROW, NOT_AN_OBJECT, DUPLICATE_KEY, LONE_SURROGATE, TOO_DEEP, NAN_IN_JSON, MARK_INSIDE,
    TRUNCATED_FILE, TRAILING_DATA,
)  # fmt: skip

TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+("?)|[\[\]{},:]', re.DOTALL)
"""A string, whose group is empty if it is not closed, or a sign."""
_LEADING_MARKS = re.compile("\\s*(?:\ufeff\\s*)+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_DIGITS_TO_ZERO = bytes(48 if 48 <= byte < 58 else byte for byte in range(256))
_VALUES = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean"}

Layout = Literal["lines", "array", "values"]
Problem = tuple[IssueType, str, int]
"""Issue, message, and offset in the record."""


class _Records(NamedTuple):
    """The undecoded text of some records: where each begins and ends, its line, and its number in an array."""

    raws: list[bytes]
    starts: np.ndarray
    ends: np.ndarray
    lines: np.ndarray
    numbers: np.ndarray | None
    ended: bool
    """Whether a line end follows the last record."""


@dataclass(frozen=True)
class JsonReader:
    """Reads one JSON file."""

    text: TextFile  # the plain text
    layout: Layout = "lines"  # one record per line, elements of an array, or objects one after another
    begin: int = 0  # where the elements of the array begin
    wrapped: bool = False  # the array is a value of an object
    columns = ()

    @property
    def numbered(self) -> bool:
        """Whether records have a number."""
        return self.layout == "array"

    def blocks(self, report: DataReport) -> Iterator[Block]:
        pieces = readable(self.text.pieces(), report)
        read = self._lines if self.layout == "lines" else self._elements
        for records in read(pieces, report):
            block = _block(records, self.text.name, report)
            if block.rows:
                yield block

    def parse(self, chunk: bytes, report: DataReport) -> Row | None:
        """The first record of a piece of text; `None` if it is not usable."""
        if self.layout == "lines":
            raw = chunk.partition(b"\n")[0]
        else:
            spans, _, _ = _spans(chunk, 0)
            raw = chunk[slice(*spans[0])] if spans else chunk
        rows = _loaded([raw])
        if type(rows[0]) is dict and _is_faithful([raw], rows):
            row: Row = rows[0]
            return row
        return _strictly(raw, Location(self.text.name), True, report)[0]

    def _lines(self, pieces: Iterator[bytes], report: DataReport) -> Iterator[_Records]:
        for chunk in complete_lines(pieces, self.text.begin):
            if chunk.data is None:
                location = Location(self.text.name, line=chunk.line, byte=chunk.offset)
                report.add(ROW_TOO_LONG, f"more than {plain_text.MOST_RECORD:,} bytes", location)
            elif chunk.data:
                raws = chunk.data.removesuffix(b"\n").split(b"\n")
                newlines = np.flatnonzero(np.frombuffer(chunk.data, np.uint8) == 10)
                starts = np.concatenate(([0], newlines + 1))[: len(raws)] + chunk.offset
                ends = np.append(starts[1:], chunk.offset + len(chunk.data))
                lines = np.arange(chunk.line, chunk.line + len(raws))
                yield _Records(raws, starts, ends, lines, None, not chunk.last)

    def _elements(self, pieces: Iterator[bytes], report: DataReport) -> Iterator[_Records]:
        """Elements of an array, or objects one after another."""
        level = 1 if self.layout == "array" else 0
        cursor = _Cursor(self.text.begin)
        skip, enough = self.begin, 0
        for piece in chain(pieces, [b""]):
            if skip:
                skipped = min(skip, len(piece))
                cursor.pass_over(piece[:skipped])
                skip, piece = skip - skipped, piece[skipped:]
            cursor.buffer += piece
            if piece and len(cursor.buffer) < enough:
                continue
            if len(cursor.buffer) > plain_text.MOST_RECORD + plain_text.BLOCK:
                message = f"more than {plain_text.MOST_RECORD:,} bytes"
                report.add(ROW_TOO_LONG, message, Location(self.text.name, line=cursor.line))
                return  # where an element ends cannot be found from inside it
            spans, used, closed = _spans(cursor.buffer, level)
            records = self._records(cursor, spans, closed, report)
            cursor.advance(used)
            if records.raws:
                yield records
            if closed:
                self._after(cursor, pieces, report)
                return
            enough = 0 if used else 2 * len(cursor.buffer)  # a long element is not searched again for every piece
        text = cursor.buffer.lstrip()
        if level or text:
            cursor.advance(len(cursor.buffer) - len(text))
            message = "the file ends before the array does" if level and not text else "the file ends inside an object"
            report.add(TRUNCATED_FILE, message, Location(self.text.name, line=cursor.line))

    def _records(self, cursor: _Cursor, spans: list[tuple[int, int]], closed: bool, report: DataReport) -> _Records:
        raws: list[bytes] = []
        fields: list[tuple[int, int, int, int]] = []
        line, counted = cursor.line, 0
        for begin, end in spans:
            raw = cursor.buffer[begin:end]
            value = raw.strip()
            start = begin + len(raw) - len(raw.lstrip())
            line, counted = line + cursor.buffer.count(b"\n", counted, start), start
            offset = cursor.offset + start
            if value:
                raws.append(value)
                fields.append((offset, offset + len(value), line, cursor.number))
            elif not (closed and cursor.number == 0 and len(spans) == 1):  # an empty array
                location = Location(self.text.name, line=line, row=cursor.number, byte=offset)
                report.add(BAD_JSON, "an element is missing", location)
            cursor.number += 1
        starts, ends, lines, numbers = np.array(fields, np.int64).reshape(-1, 4).T
        return _Records(raws, starts, ends, lines, numbers if self.numbered else None, True)

    def _after(self, cursor: _Cursor, pieces: Iterator[bytes], report: DataReport) -> None:
        """What follows the array: nothing, or the rest of the object around it."""
        piece: bytes | None = b""
        while not cursor.buffer.strip() and (piece := next(pieces, None)) is not None:
            cursor.advance(len(cursor.buffer))
            cursor.buffer = piece
        text = cursor.buffer.lstrip()
        if text and not (self.wrapped and text[:1] in (b"}", b",")):
            cursor.advance(len(cursor.buffer) - len(text))
            message = f"{text[:20].decode(errors='replace')!r} after the array"
            report.add(TRAILING_DATA, message, Location(self.text.name, line=cursor.line))


@dataclass
class _Cursor:
    """Text that was not split into elements yet, and where it is."""

    offset: int
    line: int = 1
    number: int = 0
    buffer: bytes = b""

    def pass_over(self, piece: bytes) -> None:
        self.offset, self.line = self.offset + len(piece), self.line + piece.count(b"\n")

    def advance(self, used: int) -> None:
        self.pass_over(self.buffer[:used])
        self.buffer = self.buffer[used:]


def _spans(buffer: bytes, level: int) -> tuple[list[tuple[int, int]], int, bool]:
    """Begin and end of each complete element, the bytes they take, and whether the array was closed.

    >>> _spans(b' {"a": "]"}, 5, ', 1), _spans(b"{} {", 0)
    (([(0, 11), (12, 14)], 15, False), ([(0, 2)], 2, False))
    """
    spans: list[tuple[int, int]] = []
    depth, begin = level, 0
    for token in TOKEN.finditer(buffer):
        byte = buffer[token.start()]
        if byte == 34:
            if not token[1]:  # the string continues in the next piece
                break
        elif byte in b"{[":
            depth += 1
        elif byte in b"}]":
            depth -= 1
            if level and depth == 0:
                return [*spans, (begin, token.start())], token.end(), True
            if not level and depth <= 0:
                spans.append((begin, token.end()))
                begin, depth = token.end(), 0
        elif byte == 44 and depth == level == 1:
            spans.append((begin, token.start()))
            begin = token.end()
    return spans, begin, False


def _block(records: _Records, file: str, report: DataReport) -> Block:
    """The rows of records; those that orjson refused or may have misread are read again."""
    raws, starts, ends, lines, numbers, ended = records
    rows = _loaded(raws)
    if set(map(type, rows)) == {dict} and _is_faithful(raws, rows):
        return Block(rows, starts, ends, lines, numbers)
    parsed = [position for position, row in enumerate(rows) if type(row) is dict]
    clean = ParsedRows(rows[position] for position in parsed)
    suspects = {parsed[suspect] for suspect in _suspects([raws[position] for position in parsed], clean)}
    known_hashes = dict(zip(parsed, clean.hashes or ()))
    repaired: set[int] = set()
    for position in sorted(suspects.union(set(range(len(rows))).difference(parsed))):
        number = int(numbers[position]) if numbers is not None else None
        location = Location(file, line=int(lines[position]), row=number, byte=int(starts[position]))
        is_ended = ended or position < len(raws) - 1
        rows[position], changed = _strictly(raws[position], location, is_ended, report)
        repaired |= {position} if changed else set()
    good = [position for position, row in enumerate(rows) if row is not None]
    usable_rows = ParsedRows(rows[position] for position in good)
    if known_hashes:
        hashes = ((row, known_hashes.get(position)) for row, position in zip(usable_rows, good))
        usable_rows.hashes = [hash(canonical(row)) if hashed is None else hashed for row, hashed in hashes]
    kept_numbers = numbers[good] if numbers is not None else None
    changed_rows = {number for number, position in enumerate(good) if position in repaired} if repaired else set()
    return Block(usable_rows, starts[good], ends[good], lines[good], kept_numbers, changed_rows)


def _loaded(raws: list[bytes]) -> ParsedRows:
    """Every record parsed by orjson; `None` where it fails."""
    rows = ParsedRows()
    remaining = iter(raws)
    while len(rows) < len(raws):
        try:
            rows.extend(map(orjson.loads, remaining))  # in C until one fails; what was parsed before that stays
        except orjson.JSONDecodeError:
            rows.append(None)
    return rows


def _suspects(raws: list[bytes], rows: list[Row], first: int = 0) -> Iterator[int]:
    """Positions of rows that orjson may have misread, found by halving and halving again."""
    if not rows or _is_faithful(raws, rows):
        return
    if len(rows) == 1:
        yield first
        return
    step = -(-len(rows) // 8)
    for start in range(0, len(rows), step):
        yield from _suspects(raws[start : start + step], rows[start : start + step], first + start)


def _is_faithful(raws: list[bytes], rows: list[Row]) -> bool:
    """Whether rows hold as many keys as their text, are not too deep, and no integer lost its last digits."""
    try:
        hashes, keys = hash_rows(rows)
    except TypeError:  # too deep
        return False
    text = b"\n".join(raws).translate(_DIGITS_TO_ZERO, b" \t\r\n")  # `"key" :` becomes `"key":`
    if text.count(b'":') != keys:
        return False
    if isinstance(rows, ParsedRows):
        rows.hashes = hashes
    return b"0" * 19 not in text or not any(map(_has_huge_float, rows))


def _has_huge_float(value: Any) -> bool:
    """Whether a float may have been an integer beyond 64 bits; a value that orjson wrote is not too deep to recurse."""
    if type(value) is float:
        return not -9e18 < value < 9e18
    if type(value) is dict:
        value = list(value.values())
    return type(value) is list and any(map(_has_huge_float, value))


def _strictly(raw: bytes, location: Location, ended: bool, report: DataReport) -> tuple[Row | None, bool]:
    """The row of a record that may be wrong, and whether it was repaired; every problem of it is reported.

    Returns:
        `None` instead of the row if it cannot be used.
    """
    problems: list[Problem] = []
    row = _parsed(raw, ended, problems) if raw.strip() else None
    good = [
        usable(
            report, kind, message, Location(location.file, location.line, location.row, (location.byte or 0) + shift)
        )
        for kind, message, shift in problems
    ]
    repaired = any(kind in (BAD_ENCODING, MARK_INSIDE, LONE_SURROGATE) for kind, _, _ in problems)
    return (row, repaired) if row is not None and all(good) else (None, False)


def _parsed(raw: bytes, ended: bool, problems: list[Problem]) -> Row | None:
    """The row as the standard library reads it, and every problem; `None` if there is no row."""
    if raw.count(b"[") + raw.count(b"{") > DEEPEST and _depth(raw) > DEEPEST:
        problems.append((TOO_DEEP, f"more than {DEEPEST} levels", 0))
        return None
    if b"\0" in raw:
        only = not raw.strip(b"\0 \t\r\n")
        message = "nothing but NUL bytes" if only else f"{plural(raw.count(0), 'NUL byte')} in the row"
        problems.append((NUL_BYTE, message, raw.index(0)))
        return None
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        if not ended and error.reason == "unexpected end of data":
            problems.append((TRUNCATED_ROW, "the last line is not complete", 0))
            return None
        problems.append((BAD_ENCODING, encoding_message(raw, error), error.start))
        text = raw.decode(errors="replace")
    if marks := _LEADING_MARKS.match(text):
        problems.append((MARK_INSIDE, "a byte-order mark at the start of the row", 0))
        text = text[marks.end() :]
    row = _loaded_strictly(text, ended, problems)
    if row is not None and "\\u" in text and (cleaned := _without_surrogates(row)) != row:
        problems.append((LONE_SURROGATE, "an escape names half of a surrogate pair", 0))
        row = cleaned
    return row


def _loaded_strictly(text: str, ended: bool, problems: list[Problem]) -> Row | None:
    remarks: dict[str, IssueType] = {}  # once each, and only if the text is JSON at all

    def from_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            remarks.update({f"key {key[:60]!r} occurs twice": DUPLICATE_KEY for key in counts if counts[key] > 1})
        return values

    def from_digits(digits: str) -> float:
        if math.isinf(number := float(digits)):
            remarks[f"{digits[:40]} is beyond the largest number"] = NAN_IN_JSON
        return number

    def from_word(word: str) -> float:
        remarks[f"{word} is not JSON"] = NAN_IN_JSON
        return float(word)

    try:
        row = json.loads(text, object_pairs_hook=from_pairs, parse_float=from_digits, parse_constant=from_word)
    except json.JSONDecodeError as error:
        if not ended and not text.rstrip().endswith("}"):
            problems.append((TRUNCATED_ROW, "the last line is not complete", 0))
        else:
            near = text[max(0, error.pos - 12) : error.pos + 12]
            shift = len(text[: error.pos].encode("utf-8", "replace"))
            problems.append((BAD_JSON, f"{error.msg[:1].lower()}{error.msg[1:]} near {near!r}", shift))
        return None
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits
        problems.append((BAD_JSON, str(error).partition(":")[0], 0))
        return None
    if type(row) is not dict:
        problems.append((NOT_AN_OBJECT, f"the row is {_VALUES.get(type(row), 'null')}", 0))
        return None
    problems += [(kind, message, 0) for message, kind in remarks.items()]
    return row


def _depth(raw: bytes) -> int:
    depth = deepest = 0
    for token in TOKEN.finditer(raw):
        byte = raw[token.start()]
        depth += (byte in b"[{") - (byte in b"]}")
        deepest = max(deepest, depth)
    return deepest


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return [_without_surrogates(item) for item in value] if isinstance(value, list) else value
