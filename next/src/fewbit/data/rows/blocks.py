# SPDX-License-Identifier: Apache-2.0
"""Text tables in blocks of about 1 MB: shared by the CSV and JSON readers.

A reader parses a block by a few calls that run in C. Only if something in it looks wrong are its records read one by
one, and every problem is reported with its code at its physical line. Either way a block ends up with the byte offset
of each usable record, which is all that random access needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, overload

import numpy as np

from fewbit.data.rows.table import Row
from fewbit.data.rows.text import TextFile
from fewbit.data.types import DataReport, IssueType, Location, SampleError, Severity

MOST_RECORD = 64 << 20
"""Bytes of one record; a longer one is the wrong file, or a line that never ends."""

BAD_ENCODING = IssueType(
    "bad-encoding", Severity.ERROR, "bytes that are not in the text's encoding",
    "save the file as UTF-8, or name its encoding: {data_option=encoding=cp1252}", "raise", ("drop",),
    "leaves the row out",
)  # fmt: skip
NUL_BYTE = IssueType(
    "nul-byte", Severity.ERROR, "NUL byte in a text file",
    "copy the file again; if it is UTF-16 without a mark, {data_option=encoding=utf-16}", "raise", ("drop",),
    "leaves the row out",
)  # fmt: skip
ROW_TOO_LONG = IssueType(
    "row-too-long", Severity.ERROR, f"row longer than {MOST_RECORD >> 20} MB",
    "check that this is a table, one row per line", "raise", ("drop",), "leaves the row out",
)  # fmt: skip
EMPTY_FILE = IssueType("empty-file", Severity.WARNING, "file without a row", "remove the file, or write it again")
ISSUES = (BAD_ENCODING, NUL_BYTE, ROW_TOO_LONG, EMPTY_FILE)


class ColumnRows(Sequence[Row]):
    """Rows that are stored by column; a row is built when it is accessed.

    >>> rows = ColumnRows({"a": ["1", "3"], "b": ["2", "4"]})
    >>> len(rows), rows[1]
    (2, {'a': '3', 'b': '4'})
    """

    def __init__(self, lists: dict[str, list[Any]]):
        self.lists = lists

    def __len__(self) -> int:
        return len(next(iter(self.lists.values()), ()))

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> ColumnRows: ...
    def __getitem__(self, index: int | slice) -> Row | ColumnRows:
        if isinstance(index, slice):
            return ColumnRows({name: values[index] for name, values in self.lists.items()})
        return {name: values[index] for name, values in self.lists.items()}

    def __iter__(self) -> Iterator[Row]:
        names = list(self.lists)
        for fields in zip(*self.lists.values()):
            yield dict(zip(names, fields))


@dataclass
class Block:
    """Usable records that were read together.

    Args:
        rows: their values.
        starts: offset of each in the plain text, int64.
        ends: offset after each.
        lines: physical line each begins on, from 1.
        repaired: positions of rows whose values are no longer what the bytes say.
    """

    rows: Sequence[Row]
    starts: np.ndarray
    ends: np.ndarray
    lines: Sequence[int]
    repaired: set[int] = field(default_factory=set)

    @property
    def dense(self) -> bool:
        """Whether each row is one line, and no line lies between."""
        return isinstance(self.lines, range)


class Reader(Protocol):
    """Reads the records of one text file; cheap to make, picklable."""

    @property
    def text(self) -> TextFile:
        """The file."""
        ...

    @property
    def columns(self) -> Sequence[str]:
        """The columns known so far."""
        ...

    def blocks(self, report: DataReport) -> Iterator[Block]:
        """Every usable record, in order; problems go into the report."""
        ...

    def parse(self, chunk: bytes, report: DataReport) -> Row | None:
        """The first record of a piece of text; `None` if it is not usable."""
        ...


class Lines(NamedTuple):
    """Complete lines of a text.

    Args:
        data: the bytes; `None` for a line that is too long for memory.
        offset: of the first byte in the plain text.
        line: of the first byte, from 1.
        last: no text follows.
    """

    data: bytes | None
    offset: int
    line: int
    last: bool


def complete_lines(pieces: Iterable[bytes], offset: int, max_bytes: int | None = None) -> Iterator[Lines]:
    """Regroup pieces of any size into pieces of complete lines.

    Args:
        pieces: of the plain text.
        offset: of the first byte.
        max_bytes: of a line; a longer one is skipped.

    >>> [(lines.data, lines.line, lines.last) for lines in complete_lines([b"a\\nb", b"c\\nd"], 0)]
    [(b'a\\n', 1, False), (b'bc\\n', 2, False), (b'd', 3, True)]
    """
    limit = MOST_RECORD if max_bytes is None else max_bytes
    incomplete: list[bytes] = []
    size, line, skipping = 0, 1, False
    for piece in pieces:
        end = piece.rfind(b"\n") + 1
        if not end:
            size += len(piece)
            skipping = skipping or size > limit
            incomplete = [] if skipping else [*incomplete, piece]
            continue
        if skipping:
            first = piece.find(b"\n") + 1
            yield Lines(None, offset, line, False)
            offset, line, skipping = offset + size + first, line + 1, False
            data = piece[first:end]
        else:
            data = b"".join((*incomplete, piece[:end]))
        if data:
            yield Lines(data, offset, line, False)
        offset, line = offset + len(data), line + data.count(b"\n")
        incomplete, size = ([piece[end:]], len(piece) - end) if end < len(piece) else ([], 0)
    yield Lines(None if skipping else b"".join(incomplete), offset, line, True)


def readable(pieces: Iterator[bytes], report: DataReport) -> Iterator[bytes]:
    """The pieces up to where the file is damaged, which is reported."""
    try:
        yield from pieces
    except SampleError as error:
        report.add(error.issue.type, error.issue.message, error.issue.location)


def usable(report: DataReport, kind: IssueType, message: str, location: Location) -> bool:
    """Report a problem of a record; whether the record can be used all the same."""
    return report.add(kind, message, location) in ("keep", "repair")


def short_repr(text: str, max_length: int = 40) -> str:
    """A value in a message, cut to a readable length.

    >>> short_repr("a" * 50)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…'"
    """
    return repr(text if len(text) <= max_length else text[: max_length - 1] + "…")


def encoding_message(raw: bytes, error: UnicodeDecodeError) -> str:
    """What is wrong with a byte, for an issue."""
    return f"byte 0x{raw[error.start]:02x} is not UTF-8"
