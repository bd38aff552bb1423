# SPDX-License-Identifier: Apache-2.0
"""Whether a JSON text is lines, an array, an object around an array, or objects one after another; where its rows are.

Decided on the first kilobytes, never by the name: people call all of these `.json`, and some of them `.jsonl`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson

from fewbit.data.rows import blocks
from fewbit.data.rows.blocks import ROW_TOO_LONG
from fewbit.data.types import DataReport, IssueType, Location, Severity

ENOUGH = 1 << 20
"""How much of a text is read at most to find its shape."""
_MOST_KEYS = 64
_COCO = frozenset({"images", "annotations"})
_BOXES = re.compile(rb'"(?:file_name|bbox)"\s*:')  # of a long file only one of the two arrays is seen
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+("?)|[\[\]{},:]', re.DOTALL)
"""A string, whose group is empty if it is not closed, or a sign."""

TRUNCATED_FILE = IssueType(
    "truncated-file", Severity.ERROR, "JSON array that is not closed", "download the file again", "raise", ("drop",),
    "closes the array after the last complete row",
)  # fmt: skip
TRAILING_DATA = IssueType(
    "trailing-data", Severity.ERROR, "text after the end of the JSON array",
    "write one array per file, or one row per line", "raise", ("drop",), "leaves the text out",
)  # fmt: skip
BAD_JSON = IssueType(
    "bad-json", Severity.ERROR, "row that is not JSON", "correct the row, or leave it out: {on_error=bad-json=drop}",
    "raise", ("drop",), "leaves the row out",
)  # fmt: skip
ISSUES = (TRUNCATED_FILE, TRAILING_DATA, BAD_JSON)


@dataclass(frozen=True)
class Shape:
    """What a JSON text is.

    Args:
        kind: `lines`, `array`, `data` (an object around the array), `values` (objects one after another).
        begin: where the elements of an array begin.
        alone: the text is a single object.
        keys: of the first object.
        coco: the object is a COCO annotation file.
    """

    kind: str
    begin: int = 0
    alone: bool = False
    keys: tuple[str, ...] = ()
    coco: bool = False


def find_shape(head: bytes, is_complete: bool) -> Shape | None:
    """What a text is by its beginning; `None` if more of it is needed.

    Args:
        head: the first bytes of the text.
        is_complete: whether that is the entire text.

    >>> find_shape(b'[{"a": 1}]', True).kind, find_shape(b'{"a": 1}\\n{"a": 2}\\n', True).kind
    ('array', 'lines')
    >>> find_shape(b'{"version": 2, "data": [{"a": 1}]}', True).begin
    24
    """
    body = head.lstrip(b" \t\r\n")
    start = len(head) - len(body)
    if body.startswith(b"["):
        return Shape("array", start + 1)
    if not body.startswith(b"{"):
        return Shape("lines")
    end, data, keys = _first_object(head, start)
    holds_objects = data is not None and head[data:].lstrip()[:1] in (b"{", b"]")
    if end is None:  # the first value is longer than what was read, or never ends
        if not is_complete and len(head) < ENOUGH:
            return None
        coco = bool(_COCO & set(keys)) and bool(_BOXES.search(head))
        if data is not None and holds_objects:
            return Shape("data", data, keys=keys, coco=coco)
        return Shape("lines", keys=keys, coco=coco)
    alone = is_complete and not head[end:].strip()
    coco = alone and set(keys) >= _COCO
    if alone and data is not None and holds_objects:
        return Shape("data", data, keys=keys, coco=coco)
    if b"\n" in head[start:end] and _is_json(head[start:end]):  # else a damaged line swallowed the next one
        return Shape("values", alone=alone, keys=keys if alone else (), coco=coco)
    return Shape("lines", alone=alone, keys=keys if alone else (), coco=coco)


def _is_json(value: bytes) -> bool:
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    return True


def _first_object(head: bytes, start: int) -> tuple[int | None, int | None, tuple[str, ...]]:
    """Where the first object ends, where the array under its own key `data` begins, and its own keys."""
    depth, data, last, key = 0, None, b"", b""
    keys: list[str] = []
    for token in _TOKEN.finditer(head, start):
        text = token.group()
        if token[1] == b"":  # an unfinished string
            break
        if text in (b"{", b"["):
            if text == b"[" and depth == 1 and last == b":" and key == b'"data"' and data is None:
                data = token.end()
            depth += 1
        elif text in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return token.end(), data, tuple(keys)
        elif text == b":":
            key = last
            if depth == 1 and len(keys) < _MOST_KEYS:
                keys.append(key[1:-1].decode(errors="replace"))
        last = text
    return None, data, tuple(keys)


class Elements:
    """Splits the text of an array, or of objects one after another, into its elements.

    Args:
        file: for locations.
        shape: `array`, `data` or `values`.
    """

    def __init__(self, file: str, shape: Shape):
        self.file, self.shape = file, shape
        self.level = 0 if shape.kind == "values" else 1

    def first(self, chunk: bytes) -> bytes:
        """The object at the start of a piece of text."""
        depth = 0
        for token in _TOKEN.finditer(chunk):
            byte = chunk[token.start()]
            if token[1] == b"":
                break
            depth += (byte in b"{[") - (byte in b"}]")
            if depth == 0 and byte in b"}]":
                return chunk[: token.end()]
        return chunk

    def split(
        self, pieces: Iterator[bytes], report: DataReport
    ) -> Iterator[tuple[list[bytes], list[int], Sequence[int]]]:
        """Elements, their offsets and their lines, a piece at a time."""
        buffer, offset, line = b"", 0, 1
        skip, enough = self.shape.begin, 0
        for piece in pieces:
            if skip:
                skipped = min(skip, len(piece))
                line, offset, skip = line + piece.count(b"\n", 0, skipped), offset + skipped, skip - skipped
                piece = piece[skipped:]
            buffer += piece
            if len(buffer) < enough:
                continue
            if len(buffer) > blocks.MOST_RECORD + len(piece):
                report.add(ROW_TOO_LONG, f"more than {blocks.MOST_RECORD:,} bytes", Location(self.file, line=line))
                return  # where an element ends cannot be found from inside it
            raws, starts, lines, used, closed = self._elements(buffer, offset, line, report)
            if raws:
                yield raws, starts, lines
            line, offset, buffer = line + buffer.count(b"\n", 0, used), offset + used, buffer[used:]
            enough = 0 if used else 2 * len(buffer)  # a long element is not searched again for every piece
            if closed:
                self._after(buffer, pieces, line, report)
                return
        if enough:
            raws, starts, lines, used, closed = self._elements(buffer, offset, line, report)
            if raws:
                yield raws, starts, lines
            line, buffer = line + buffer.count(b"\n", 0, used), buffer[used:]
            if closed:
                self._after(buffer, pieces, line, report)
                return
        self._end(buffer, line, report)

    def _elements(
        self, buffer: bytes, offset: int, line: int, report: DataReport
    ) -> tuple[list[bytes], list[int], list[int], int, bool]:
        """Complete elements of a buffer: values, offsets, lines, bytes used, and whether the array was closed."""
        raws: list[bytes] = []
        starts: list[int] = []
        lines: list[int] = []
        depth, begin, counted = self.level, 0, 0

        def take(end: int, closing: bool) -> None:
            nonlocal line, counted
            raw = buffer[begin:end]
            value = raw.strip()
            start = begin + (len(raw) - len(raw.lstrip()))
            line += buffer.count(b"\n", counted, start)
            counted = start
            if value:
                raws.append(value)
                starts.append(offset + start)
                lines.append(line)
            elif not closing or begin or offset != self.shape.begin:
                report.add(BAD_JSON, "an element is missing", Location(self.file, line=line, byte=offset + start))

        for token in _TOKEN.finditer(buffer):
            byte = buffer[token.start()]
            if token[1] == b"":  # the string continues in the next piece
                break
            if byte in b"{[":
                depth += 1
            elif byte in b"}]":
                depth -= 1
                if self.level == 0 and depth <= 0:
                    take(token.end(), True)
                    begin, depth = token.end(), 0
                elif self.level == 1 and depth == 0:
                    take(token.start(), True)
                    return raws, starts, lines, token.end(), True
            elif byte == 44 and depth == 1 and self.level == 1:
                take(token.start(), False)
                begin = token.end()
        return raws, starts, lines, begin, False

    def _after(self, remainder: bytes, pieces: Iterator[bytes], line: int, report: DataReport) -> None:
        """What follows the array: nothing, or the rest of the object around it."""
        while not remainder.strip() and (piece := next(pieces, None)) is not None:
            line += remainder.count(b"\n")
            remainder = piece
        text = remainder.lstrip()
        if not text or (self.shape.kind == "data" and text[:1] in (b"}", b",")):
            return
        line += remainder.count(b"\n", 0, len(remainder) - len(text))
        report.add(
            TRAILING_DATA, f"{text[:20].decode(errors='replace')!r} after the array", Location(self.file, line=line)
        )

    def _end(self, remainder: bytes, line: int, report: DataReport) -> None:
        """The text ended inside the array, or after the last object."""
        text = remainder.lstrip()
        if self.level == 0 and not text:
            return
        line += remainder.count(b"\n", 0, len(remainder) - len(text))
        message = "the file ends inside an object" if self.level == 0 or text else "the file ends before the array does"
        report.add(TRUNCATED_FILE, message, Location(self.file, line=line))
