# SPDX-License-Identifier: Apache-2.0
"""A CSV text as blocks of whole records, in bounded memory whatever the text holds.

Nearly every record comes in a `Block`, some thousand at a time, as arrays of positions. One that is longer than
a piece, longer than a row may be, or whose quote is never closed comes alone, as an `Odd`. After a quote that is
never closed the text goes on at the next line, so one slip does not swallow the rest of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fewbit.data import limits
from fewbit.data.tables.csv_feed import Feed
from fewbit.data.tables.csv_scan import Positions, Runs, Tokens, tokens


@dataclass(frozen=True, slots=True)
class Block:
    """Whole records; blank lines are left out.

    Args:
        data: the bytes the positions point into.
        offset: where `data` begins in the text.
        starts, ends: where each field begins and ends, quotes included, shape (fields,).
        first: the index of each record's first field, and the number of fields, shape (records + 1,).
        lines: the line each record begins on, from 1, shape (records,).
        quotes: how many quote bytes each field holds, shape (fields,), or `None`.
        stray, early: as in `Tokens`.
    """

    data: bytes
    offset: int
    starts: Positions
    ends: Positions
    first: Positions
    lines: Positions
    quotes: NDArray[np.int32] | None
    stray: Positions
    early: Positions

    def __len__(self) -> int:
        return len(self.lines)

    def begins(self) -> Positions:
        """Where each record begins in `data`, shape (records,)."""
        return self.starts[self.first[:-1]]

    def record(self, index: int) -> bytes:
        """The bytes of one record without its line end."""
        return self.data[self.starts[self.first[index]] : self.ends[self.first[index + 1] - 1]]

    def without(self, count: int) -> Block:
        """The block without its first records; some are left."""
        cut = self.first[count]
        return replace(
            self,
            starts=self.starts[cut:],
            ends=self.ends[cut:],
            first=self.first[count:] - cut,
            lines=self.lines[count:],
            quotes=None if self.quotes is None else self.quotes[cut:],
        )

    def records(self) -> Iterator[bytes]:
        """The bytes of every record."""
        return map(self.data.__getitem__, map(slice, self.begins().tolist(), self.ends[self.first[1:] - 1].tolist()))


@dataclass(frozen=True, slots=True)
class Odd:
    """One record that needs a closer look.

    Args:
        data: its bytes without the line end; `None` when they are more than a row may have.
        offset: where it begins in the text.
        line: the line it begins on.
        quote_line: the line of the quote that is never closed, if there is one.
    """

    data: bytes | None
    offset: int
    line: int
    quote_line: int | None = None


class Blocks:
    """Cuts a feed into blocks; iterate once.

    Args:
        feed: the bytes of the text.
        delimiter: one byte: punctuation or a tab.
        offset, line: where in the text the feed begins.

    After the last block `offset` and `line` say where the text ended. When `feed.fault` says that the text broke
    off, the record in which it did so is not handed out.
    """

    def __init__(self, feed: Feed, delimiter: int, *, offset: int = 0, line: int = 1):
        self.offset = offset
        self.line = line
        self._feed = feed
        self._delimiter = delimiter

    def __iter__(self) -> Iterator[Block | Odd]:
        carry = b""
        while piece := self._feed.next():
            data = carry + piece
            found = tokens(data, self._delimiter)
            if len(found.closing):
                block, used = self._block(data, found)
                carry = data[used:]
                if len(block):
                    yield block
            elif len(carry) < self._feed.size:
                carry = data
            else:
                carry = b""
                state = _State(self._delimiter)
                odd = self._long(data, state)
                if odd is not None:
                    yield odd
                    if odd.data is None:  # told of at once, not at its end
                        self._pass_over(state)
        if carry and self._feed.fault is None:
            yield from self._last(carry)

    def _last(self, data: bytes) -> Iterator[Block | Odd]:
        found = tokens(data + b"\n", self._delimiter)
        if len(found.closing):
            block, _ = self._block(data + b"\n", found)
            self.offset -= 1
            yield block
        else:
            yield self._unclosed(data, Runs.of(data, self._delimiter).opener())
            yield from self

    def _block(self, data: bytes, found: Tokens) -> tuple[Block, int]:
        last = int(found.closing[-1])
        used = int(found.after[last])
        ends, starts = found.ends[: last + 1], np.empty(last + 1, np.int64)
        starts[0], starts[1:] = 0, found.after[:last]
        quotes = None if found.quotes is None else found.quotes[: last + 1]
        first = np.concatenate((np.zeros(1, np.int64), found.closing + 1))
        breaks = found.breaks[: np.searchsorted(found.breaks, used, "right")]
        if len(breaks) == len(found.closing):
            lines = np.arange(self.line, self.line + len(breaks))
        else:
            lines = self.line + np.searchsorted(breaks, starts[first[:-1]], "right")
        blank = (np.diff(first) == 1) & (starts[first[:-1]] == ends[first[:-1]])
        if blank.any():
            kept = np.ones(len(ends), bool)
            kept[first[:-1][blank]] = False
            counts = np.diff(first)[~blank]
            starts, ends, lines = starts[kept], ends[kept], lines[~blank]
            quotes = None if quotes is None else quotes[kept]
            first = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        block = Block(data, self.offset, starts, ends, first, lines, quotes, found.stray, found.early)
        self._pass(used, len(breaks))
        return block, used

    def _pass(self, size: int, breaks: int) -> None:
        self.offset += size
        self.line += breaks

    def _long(self, data: bytes, state: _State) -> Odd | None:
        """Collect a record whose end is not in the data yet; of one that is too long only the beginning."""
        state.read(data)
        parts, size = [data], len(data)
        while size <= limits.ROW_BYTES:
            piece = self._feed.next(limits.ROW_BYTES + 1 - size)
            end = state.read(piece)
            parts.append(piece if end is None else piece[:end])
            size += len(parts[-1])
            if end is not None:
                self._feed.push(piece[end:])
                return self._whole(b"".join(parts))
            if not piece:
                if self._feed.fault is not None:
                    return None
                whole = b"".join(parts)
                return self._unclosed(whole, state.opener) if state.open else self._whole(whole)
        whole = b"".join(parts)
        if state.open and line_breaks(whole[state.opener :]):
            return self._unclosed(whole, state.opener)
        odd = Odd(None, self.offset, self.line)
        self._pass(size, line_breaks(whole))
        return odd

    def _whole(self, data: bytes) -> Odd:
        odd = Odd(data.removesuffix(b"\n").removesuffix(b"\r"), self.offset, self.line)
        self._pass(len(data), line_breaks(data))
        return odd

    def _unclosed(self, data: bytes, opener: int) -> Odd:
        """Give up the record at the end of the line its open quote is on, and hand the rest back."""
        ends = [end for end in (data.find(b"\n", opener), data.find(b"\r", opener)) if end >= 0]
        end = min(ends, default=len(data))
        width = 2 if data.startswith(b"\r\n", end) else min(1, len(data) - end)
        self._feed.push(data[end + width :])
        odd = Odd(data[:end], self.offset, self.line, self.line + line_breaks(data[:opener]))
        self._pass(end + width, line_breaks(data[: end + width]))
        return odd

    def _pass_over(self, state: _State) -> None:
        """Read on to the end of a record that is too long, without keeping it."""
        end = None
        while end is None and (piece := self._feed.next()):
            end = state.read(piece)
            passed = piece if end is None else piece[:end]
            self._pass(len(passed), line_breaks(passed))
            self._feed.push(piece[len(passed) :])


class _State:
    """How far a record has been read that comes in several pieces.

    What a later piece must know of the earlier ones is said by a few bytes put before it: none at the beginning of a
    field, `x` inside a bare one, `"x` inside a quoted one, `"x"` behind a quote that may close it or be doubled.
    """

    def __init__(self, delimiter: int):
        self.open = False
        self.opener = -1
        self._delimiter = delimiter
        self._before = b""
        self._done = 0

    def read(self, piece: bytes) -> int | None:
        """Where in the piece the next record begins, or `None` when the record goes on behind it."""
        data = self._before + piece
        known = len(self._before)
        found = tokens(data, self._delimiter)
        if len(found.closing):
            return int(found.after[found.closing[0]]) - known
        self.open, before = False, b"" if not data or data[-1] == self._delimiter else b"x"
        if found.quotes is not None:
            runs = Runs.of(data, self._delimiter)
            self.open = bool(runs.inside[-1])
            if self.open or runs.held:
                before = b'"x' if self.open else b'"x"'
                opener = runs.opener()
                self.opener = self.opener if opener < known else self._done + opener - known
        self._before = before
        self._done += len(piece)
        return None


def line_breaks(data: bytes) -> int:
    """How many lines end in the data."""
    return data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n")
