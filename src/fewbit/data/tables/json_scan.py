# SPDX-License-Identifier: Apache-2.0
"""Rows as the elements of one JSON array, or as values one after another: in order, or into an index.

Each element is later parsed on its own, so a fault inside one stays inside it, and no more than one is ever
held in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from fewbit.data import limits
from fewbit.data.tables.index import Index
from fewbit.data.tables.json_structure import Cursor, Frame
from fewbit.data.tables.json_value import Record
from fewbit.data.tables.table import Fault


def records(chunks: Iterable[bytes], frame: Frame) -> Iterator[Record | Fault]:
    """Every element in order, in memory bounded by `limits.ROW_BYTES`; last a fault when the array is not whole."""
    cursor = Cursor(frame)
    held: list[bytes] = []  # the beginning of an element whose end has not come yet
    size, start, line, end = 0, frame.begin, frame.line, frame.begin
    skip, told = frame.empty, False  # a row that is too long is told of at once, not at its end
    tail = _Tail(cursor)
    for chunk, base in _pieces(chunks, frame.begin):
        end = base + len(chunk)
        done = cursor.array_closed and frame.depth > 0
        cuts = cursor.cut(chunk, base)
        tail.read(chunk, base)
        if done:
            continue
        low = base
        for stop, after in zip(cuts.ends.tolist(), cuts.starts.tolist()):
            size += stop - low
            raw = b"".join([*held, chunk[low - base : stop - base]]) if size <= limits.ROW_BYTES else None
            if not skip and not told:
                yield Record(raw, line, start)
            line += chunk.count(b"\n", max(0, low - base), after - base) + sum(piece.count(b"\n") for piece in held)
            held, size, start, low, skip, told = [], 0, after, after, False, False
        rest = chunk[low - base :]
        size += len(rest)
        held.append(rest)
        if size > limits.ROW_BYTES and not cuts.closed:
            if not told:
                yield Record(None, line, start)
            line += sum(piece.count(b"\n") for piece in held)
            held, told = [], True
    open_end = not cursor.array_closed or frame.depth == 0
    if open_end and not told and (raw := b"".join(held)).strip():
        yield Record(raw, line, start)
    fault = tail.fault(end)
    if fault is not None:
        yield fault


def offsets(chunks: Iterable[bytes], frame: Frame) -> Index:
    """Where each element of `records` begins, and on which line.

    Row `i` is the text from `offsets[i]` to `offsets[i + 1]`, less one byte (the comma) inside an array.
    """
    cursor = Cursor(frame)
    starts, lines = [np.array([frame.begin])], [np.array([frame.line])]
    line, end, text = frame.line, frame.begin, False
    tail = _Tail(cursor)
    for chunk, base in _pieces(chunks, frame.begin):
        end = base + len(chunk)
        cuts = cursor.cut(chunk, base)
        tail.read(chunk, base)
        breaks = np.flatnonzero(np.frombuffer(chunk, dtype=np.uint8) == 10)
        if len(cuts.starts):
            starts.append(cuts.starts)
            lines.append(line + np.searchsorted(breaks, cuts.starts - base))
            text = False
        text = text or bool(chunk[int(starts[-1][-1]) - base if len(cuts.starts) else 0 :].strip())
        line += len(breaks)
    if text and (frame.depth == 0 or not cursor.array_closed):
        starts.append(np.array([end + (frame.depth > 0)]))  # the byte of the comma that never came
        lines.append(np.array([line]))
    first = int(frame.empty)
    found = [np.concatenate(part).astype(np.uint64)[first:] for part in (starts, lines)]
    return Index(found[0], found[1], tail.fault(end))


class _Tail:
    """Watches for what is wrong with the text behind the last element, and on which line."""

    def __init__(self, cursor: Cursor):
        self._cursor = cursor
        self._line = cursor.frame.line
        self._garbage_line: int | None = None

    def read(self, chunk: bytes, base: int) -> None:
        """A piece that the cursor has just been over."""
        if self._cursor.garbage is not None and self._garbage_line is None:
            self._garbage_line = self._line + chunk.count(b"\n", 0, self._cursor.garbage - base)
        self._line += chunk.count(b"\n")

    def fault(self, end: int) -> Fault | None:
        """What is wrong, once all has been read."""
        cursor = self._cursor
        if cursor.frame.depth == 0:
            return None
        if cursor.garbage is not None:
            message = "the text goes on after the end of the array"
            return Fault("trailing-data", message, self._garbage_line, cursor.garbage)
        if cursor.after is None:
            message = f"the array that begins at byte {cursor.frame.begin - 1} is never closed"
            return Fault("truncated-file", message, self._line, end)
        return None


def _pieces(chunks: Iterable[bytes], begin: int) -> Iterator[tuple[bytes, int]]:
    offset = 0
    for chunk in chunks:
        if offset + len(chunk) > begin:
            skip = max(0, begin - offset)
            yield chunk[skip:], offset + skip
        offset += len(chunk)
