# SPDX-License-Identifier: Apache-2.0
"""Rows as lines: cutting a text at its line ends, in order or into an index.

A line ends at LF (a CR before it is white space to JSON), or at CR in a file that has no LF at all. Nothing
else is a line end: U+2028 or a form feed inside a string stays where it is. Blank lines are no rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from fewbit.data import limits
from fewbit.data.tables.index import Index
from fewbit.data.tables.json_value import Record

_SPACE = np.zeros(256, dtype=bool)
_SPACE[[9, 10, 11, 12, 13, 32]] = True


def newline(head: bytes) -> bytes:
    """The line end of a text that begins like this.

    >>> newline(b'{"a": 1}\\r{"a": 2}\\r'), newline(b'{"a": 1}\\r\\n')
    (b'\\r', b'\\n')
    """
    return b"\r" if b"\r" in head and b"\n" not in head else b"\n"


def records(chunks: Iterable[bytes], end: bytes) -> Iterator[Record]:
    """Every line that is not blank, in memory bounded by `limits.ROW_BYTES`."""
    offset, line = 0, 1
    held: list[bytes] = []  # the beginning of a line whose end has not come yet
    size = 0  # how long that is, even when too long to be held; such a line is told of at once
    for chunk in chunks:
        pieces = chunk.split(end)
        if len(pieces) > 1:
            first = size + len(pieces[0])
            if first <= limits.ROW_BYTES:
                raw = b"".join([*held, pieces[0]])
                if raw and not raw.isspace():
                    yield Record(raw, line, offset)
            elif size <= limits.ROW_BYTES:
                yield Record(None, line, offset)
            offset, line = offset + first + 1, line + 1
            for raw in pieces[1:-1]:
                if raw and not raw.isspace():
                    yield Record(raw, line, offset)
                offset += len(raw) + 1
                line += 1
            held, size = [], 0
        before, size = size, size + len(pieces[-1])
        held.append(pieces[-1])
        if size > limits.ROW_BYTES:
            held = []
            if before <= limits.ROW_BYTES:
                yield Record(None, line, offset)
    if (raw := b"".join(held)) and not raw.isspace():
        yield Record(raw, line, offset, ended=False)


def offsets(chunks: Iterable[bytes], end: bytes) -> Index:
    """Where each line that is not blank begins, at the speed of memory."""
    builder = _Builder(end[0])
    for chunk in chunks:
        builder.add(chunk)
    return builder.finish()


class _Builder:
    """Collects the starts of lines chunk by chunk; line numbers only once a blank line makes them differ."""

    def __init__(self, end: int):
        self.end = end
        self.base = 0  # offset of the chunk at hand
        self.open = 0  # where the unfinished line begins
        self.open_blank = True
        self.line = 1  # number of the unfinished line
        self.rows = 0
        self.starts: list[np.ndarray] = []
        self.lines: list[np.ndarray] | None = None

    def add(self, chunk: bytes) -> None:
        buffer = np.frombuffer(chunk, dtype=np.uint8)
        ends = np.flatnonzero(buffer == self.end)
        if len(ends) == 0:
            self.open_blank = self.open_blank and chunk.isspace()
        else:
            self._finish_lines(chunk, buffer, ends)
        self.base += len(chunk)

    def _finish_lines(self, chunk: bytes, buffer: np.ndarray, ends: np.ndarray) -> None:
        starts = np.concatenate(([0], ends[:-1] + 1))
        full = ~_SPACE[buffer[starts]]
        lengths = ends - starts
        # A line that begins with a space may still hold a row. Empty ones and lone CRs are blank for sure.
        doubtful = ~full & (lengths > 0) & ~((lengths == 1) & (buffer[starts] == 13))
        for row in np.flatnonzero(doubtful):
            full[row] = not chunk[starts[row] : ends[row]].isspace()
        head = chunk[: ends[0]]
        full[0] = not (self.open_blank and (not head or head.isspace()))
        positions = starts + self.base
        positions[0] = self.open
        self._keep(positions, full)
        tail = chunk[ends[-1] + 1 :]
        self.open, self.open_blank = self.base + int(ends[-1]) + 1, not tail or tail.isspace()
        self.line += len(ends)

    def _keep(self, positions: np.ndarray, full: np.ndarray) -> None:
        if self.lines is None and not full.all():
            self.lines = [np.arange(1, self.rows + 1, dtype=np.uint64)]
        if self.lines is not None:
            self.lines.append((np.flatnonzero(full) + self.line).astype(np.uint64))
            positions = positions[full]
        self.starts.append(positions.astype(np.uint64))
        self.rows += len(positions)

    def finish(self) -> Index:
        last = [np.array([self.base], dtype=np.uint64)]
        if not self.open_blank:
            self._keep(np.array([self.open]), np.array([True]))
        lines = None
        if self.lines is not None:
            lines = np.concatenate([*self.lines, np.array([self.line + 1], dtype=np.uint64)])
        return Index(np.concatenate([*self.starts, *last]), lines)
