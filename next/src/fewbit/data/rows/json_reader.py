# SPDX-License-Identifier: Apache-2.0
"""Records of a JSON file: lines, an array, `{"data": [...]}`, or objects one after another.

orjson parses every record. What it hides is found by cheap counting per block, and only such records are read again:
duplicate keys (more `":` in the text than when the rows are written again), integers beyond 64 bits (a float
whose text has 19 digits).
What it refuses is read again too, and our own look at the text gives the code: NUL, encoding, depth, NaN, surrogates.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from fewbit.data.rows.blocks import (
    BAD_ENCODING,
    MOST_RECORD,
    NUL_BYTE,
    ROW_TOO_LONG,
    Block,
    complete_lines,
    encoding_message,
    readable,
    usable,
)
from fewbit.data.rows.duplicates import ParsedRows, canonical, hash_rows
from fewbit.data.rows.json_shape import BAD_JSON, Elements, Shape
from fewbit.data.rows.table import Row
from fewbit.data.rows.text import TextFile
from fewbit.data.types import DataReport, IssueType, Location, Severity
from fewbit.errors import plural

DEEPEST = 253
"""What orjson writes again."""

TRUNCATED_ROW = IssueType(
    "truncated-row", Severity.ERROR, "file that ends inside a row", "download the file again", "raise", ("drop",),
    "leaves the row out",
)  # fmt: skip
NOT_AN_OBJECT = IssueType(
    "not-an-object", Severity.ERROR, "row that is not an object", 'write {"text": …} instead of the bare value',
    "raise", ("drop",), "leaves the row out",
)  # fmt: skip
DUPLICATE_KEY = IssueType(
    "duplicate-key", Severity.ERROR, "key that occurs twice in one object", "keep one of the two", "raise",
    ("drop", "keep"), "leaves the row out",
)  # fmt: skip
NAN_IN_JSON = IssueType(
    "nan-in-json", Severity.WARNING, "NaN or Infinity, which JSON does not have", "write null", "keep", ("raise",)
)
LONE_SURROGATE = IssueType(
    "lone-surrogate", Severity.ERROR, "half of a surrogate pair, which is no character",
    "write the text again as UTF-8", "raise", ("drop",), "leaves the row out",
)  # fmt: skip
TOO_DEEP = IssueType(
    "too-deep",
    Severity.ERROR,
    f"value nested more than {DEEPEST} deep",
    "flatten it",
    "raise",
    ("drop",),
    "leaves the row out",
)
MARK_INSIDE = IssueType(
    "mark-inside", Severity.WARNING, "byte-order mark inside the text", "join files without their marks", "repair",
    ("raise",), "removes the mark",
)  # fmt: skip
ISSUES = (
    TRUNCATED_ROW, NOT_AN_OBJECT, DUPLICATE_KEY, NAN_IN_JSON, LONE_SURROGATE, TOO_DEEP, MARK_INSIDE,
)  # fmt: skip

_SPACED_KEY = re.compile(rb'"[ \t\r\n]+:')
_MARKS = re.compile(rb"\s*(?:\xef\xbb\xbf\s*)+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_DIGITS = bytes(48 if 48 <= byte < 58 else 32 for byte in range(256))
_KINDS = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean", type(None): "null"}


@dataclass(frozen=True)
class JsonReader:
    """Reads one JSON file.

    Args:
        text: the plain text.
        shape: lines, array or the like.
        columns: keys that are known; filled from the first rows.
    """

    text: TextFile
    shape: Shape
    columns: list[str] = field(default_factory=list)

    def blocks(self, report: DataReport) -> Iterator[Block]:
        """Every usable record; problems go into the report."""
        pieces = readable(self.text.pieces(), report)
        if self.shape.kind == "lines":
            return self._lines(pieces, report)
        return self._elements(pieces, report)

    def parse(self, chunk: bytes, report: DataReport) -> Row | None:
        """The first record of a piece of text; `None` if it is not usable."""
        if self.shape.kind == "lines":
            raw, _, _ = chunk.partition(b"\n")
        else:
            raw = Elements(self.text.name, Shape("values")).first(chunk)
        rows = _load([raw])
        if type(rows[0]) is not dict or not _is_faithful([raw], rows):
            return _look_closer(raw, Location(self.text.name), True, report)[0]
        row: Row = rows[0]
        return row

    def _lines(self, pieces: Iterator[bytes], report: DataReport) -> Iterator[Block]:
        for chunk in complete_lines(pieces, self.text.begin):
            if chunk.data is None:
                message = f"more than {MOST_RECORD:,} bytes"
                report.add(ROW_TOO_LONG, message, Location(self.text.name, line=chunk.line, byte=chunk.offset))
                continue
            raws = chunk.data.split(b"\n")
            if not raws[-1]:
                raws.pop()
            if not raws:
                continue
            newlines = np.flatnonzero(np.frombuffer(chunk.data, np.uint8) == 10)
            starts = np.concatenate(([0], newlines + 1))[: len(raws)] + chunk.offset
            ends = np.append(starts[1:], chunk.offset + len(chunk.data))
            yield from self._block(
                raws, starts, ends, range(chunk.line, chunk.line + len(raws)), not chunk.last, report
            )

    def _elements(self, pieces: Iterator[bytes], report: DataReport) -> Iterator[Block]:
        for raws, starts, lines in Elements(self.text.name, self.shape).split(pieces, report):
            begins = np.array(starts, np.int64) + self.text.begin
            ends = begins + np.array([len(raw) for raw in raws], np.int64)
            yield from self._block(raws, begins, ends, lines, True, report)

    def _block(
        self,
        raws: list[bytes],
        starts: np.ndarray,
        ends: np.ndarray,
        lines: Sequence[int],
        ended: bool,
        report: DataReport,
    ) -> Iterator[Block]:
        loaded = _load(raws)
        if set(map(type, loaded)) == {dict} and _is_faithful(raws, loaded):
            yield Block(loaded, starts, ends, lines)
            return

        def location(position: int) -> Location:
            return Location(self.text.name, line=lines[position], byte=int(starts[position]))

        rows, hashes, repaired = _look_closer_where_odd(raws, loaded, location, ended, report)
        good = [position for position, row in enumerate(rows) if row is not None]
        if not good:
            return
        values = ParsedRows(rows[position] for position in good)
        if hashes:
            good_hashes = (hashes.get(position) for position in good)
            values.hashes = [
                hash(canonical(row)) if known_hash is None else known_hash
                for row, known_hash in zip(values, good_hashes)
            ]
        if len(good) < len(rows):
            starts, ends, lines = starts[good], ends[good], [lines[position] for position in good]
        changed = (
            {row_number for row_number, position in enumerate(good) if position in repaired} if repaired else set[int]()
        )
        yield Block(values, starts, ends, lines, changed)


def _load(raws: list[bytes]) -> ParsedRows:
    """Every record parsed by orjson; `None` where it fails."""
    rows = ParsedRows()
    waiting = iter(raws)
    while len(rows) < len(raws):
        try:
            rows.extend(map(orjson.loads, waiting))  # in C until one fails; what was parsed before that stays
        except orjson.JSONDecodeError:
            rows.append(None)
    return rows


def _look_closer_where_odd(
    raws: list[bytes], rows: list[Any], location: Callable[[int], Location], ended: bool, report: DataReport
) -> tuple[list[Row | None], dict[int, int], set[int]]:
    """Read again the records that orjson refused, or may have read wrongly.

    Returns:
        The row of each, `None` where it cannot be used; hashes by position, where they are known; positions of rows
        that were repaired.
    """
    good = [position for position, row in enumerate(rows) if type(row) is dict]
    clean = ParsedRows(rows[position] for position in good)
    suspects = {good[suspect] for suspect in _suspects([raws[position] for position in good], clean)}
    hashes = dict(zip(good, clean.hashes or ()))
    repaired = set()
    for position in sorted(suspects | set(range(len(rows))).difference(good)):
        is_ended = ended or position < len(raws) - 1
        rows[position], changed = _look_closer(raws[position], location(position), is_ended, report)
        if changed:
            repaired.add(position)
    return rows, hashes, repaired


def _suspects(raws: list[bytes], rows: list[Row], first: int = 0) -> Iterator[int]:
    """Positions of rows that orjson may have misread; found by bisecting the block."""
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
    block = b"\n".join(raws)
    try:
        hashes, keys = hash_rows(rows)
    except TypeError:  # too deep
        return False
    if block.count(b'":') + len(_SPACED_KEY.findall(block)) != keys:
        return False
    if isinstance(rows, ParsedRows):
        rows.hashes = hashes
    return b"0" * 19 not in block.translate(_DIGITS) or not any(map(_has_huge_float, rows))


def _has_huge_float(row: Row) -> bool:
    """Whether a float may have been an integer beyond 64 bits."""
    level: list[Any] = [row]
    while level:
        items = [item for value in level for item in (value.values() if type(value) is dict else value)]
        if any(type(item) is float and not -9e18 < item < 9e18 for item in items):
            return True
        level = [item for item in items if type(item) is dict or type(item) is list]
    return False


def _look_closer(raw: bytes, location: Location, ended: bool, report: DataReport) -> tuple[Row | None, bool]:
    """The row of a record that may be wrong, and whether it was repaired; every problem of it is reported.

    Returns:
        `None` instead of the row if it cannot be used.
    """
    if not raw.strip():
        return None, False
    if raw.count(b"[") + raw.count(b"{") > DEEPEST and _depth(raw) > DEEPEST:
        report.add(TOO_DEEP, f"more than {DEEPEST} levels", location)
        return None, False
    if b"\0" in raw:
        message = (
            "nothing but NUL bytes" if not raw.strip(b"\0 \t\r\n") else f"{plural(raw.count(0), 'NUL byte')} in the row"
        )
        report.add(NUL_BYTE, message, _shifted(location, raw.index(0)))
        return None, False
    bad_bytes = False
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        if not ended and error.reason == "unexpected end of data":
            report.add(TRUNCATED_ROW, "the last line is not complete", location)
            return None, False
        if not usable(report, BAD_ENCODING, encoding_message(raw, error), _shifted(location, error.start)):
            return None, False
        text, bad_bytes = raw.decode(errors="replace"), True
    good, changed = True, bad_bytes
    if marks := _MARKS.match(raw):
        good &= usable(report, MARK_INSIDE, "a byte-order mark at the start of the row", location)
        text, changed = raw[marks.end() :].decode(errors="replace"), True
    strict = _Strict(location, report)
    try:
        row = json.loads(
            text, object_pairs_hook=strict.pairs, parse_constant=strict.constant, parse_float=strict.number
        )
    except json.JSONDecodeError as error:
        _report_syntax(text, error, location, ended, report)
        return None, False
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits
        report.add(BAD_JSON, str(error).partition(":")[0], location)
        return None, False
    if type(row) is not dict:
        report.add(NOT_AN_OBJECT, f"the row is {_KINDS.get(type(row), 'no object')}", location)
        return None, False
    good &= strict.report_all()
    if "\\u" in text and (cleaned := _without_surrogates(row)) != row:
        good &= usable(report, LONE_SURROGATE, "an escape names half of a surrogate pair", location)
        row, changed = cleaned, True
    return (row if good else None), changed


class _Strict:
    """Hooks of the standard parser that notice what it would let pass; reported only if the row parses."""

    def __init__(self, location: Location, report: DataReport):
        self.location, self.report = location, report
        self.problems: dict[str, IssueType] = {}

    def pairs(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            keys: set[str] = set()
            for key, _ in pairs:
                if key in keys:
                    self.problems[f"key {key[:60]!r} occurs twice"] = DUPLICATE_KEY
                keys.add(key)
        return values

    def constant(self, word: str) -> float:
        self.problems[f"{word} is not JSON"] = NAN_IN_JSON
        return float(word)

    def number(self, digits: str) -> float:
        value = float(digits)
        if math.isinf(value):
            self.problems[f"{digits[:40]} is beyond the largest number"] = NAN_IN_JSON
        return value

    def report_all(self) -> bool:
        good = [usable(self.report, kind, message, self.location) for message, kind in self.problems.items()]
        return all(good)


def _report_syntax(text: str, error: json.JSONDecodeError, location: Location, ended: bool, report: DataReport) -> None:
    near = text[max(0, error.pos - 12) : error.pos + 12]
    if not ended and not text.rstrip().endswith("}"):
        report.add(TRUNCATED_ROW, "the last line is not complete", location)
        return
    message = error.msg[:1].lower() + error.msg[1:]
    error_location = _shifted(location, len(text[: error.pos].encode("utf-8", "replace")))
    report.add(BAD_JSON, f"{message} near {near!r}", error_location)


def _depth(raw: bytes) -> int:
    depth = deepest = 0
    for token in re.finditer(rb'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', raw, re.DOTALL):
        byte = raw[token.start()]
        if byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return [_without_surrogates(item) for item in value] if isinstance(value, list) else value


def _shifted(location: Location, shift: int) -> Location:
    return Location(location.file, line=location.line, byte=None if location.byte is None else location.byte + shift)
