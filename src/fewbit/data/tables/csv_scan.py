# SPDX-License-Identifier: Apache-2.0
"""The structure of a piece of CSV found with whole-array operations: where fields and records begin and end.

The rule is the one of RFC 4180, and of Python's `csv` where a file breaks it: a quote opens a field only as its
first byte; inside quotes `""` is one quote, a single one closes; anywhere else a quote is an ordinary byte.
That rule needs no loop, because a run of adjacent quotes can only do one of three things:

    an even run                       leaves the state as it was
    an odd run after , or a line end  turns the state over (it opens from outside, closes from inside)
    an odd run after another byte     ends outside (it closes from inside, is ordinary text outside)

so the state after a run is the parity of the turns since the last odd run of the third kind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]

QUOTE, LF, CR = b'"\n\r'


@dataclass(frozen=True, slots=True)
class Tokens:
    """The bytes of a piece that mean something, as positions in it.

    Args:
        ends: where each field ends, i.e. delimiters and line ends outside quotes (`\\r\\n` counts once, at `\\r`).
        after: where the next field begins.
        closing: indices into `ends` of those that end a record.
        breaks: the byte after each line end, inside quotes or outside.
        quotes: how many quote bytes each field holds, those around it included; `None` when there are none at all.
        stray: quotes that are ordinary text in a field without quotes.
        early: quotes that close their field although text follows.
    """

    ends: Positions
    after: Positions
    closing: Positions
    breaks: Positions
    quotes: NDArray[np.int32] | None
    stray: Positions
    early: Positions


_NONE: Positions = np.empty(0, np.int64)


def tokens(data: bytes, delimiter: int) -> Tokens:
    """Find the structure of a piece that begins at the beginning of a record.

    Args:
        data: bytes; a piece that is not the last must not end in `\\r`, whose `\\n` would be missing.
        delimiter: one byte, neither a quote nor a line end.

    >>> found = tokens(b'a,"b,\\n"\\r\\nc', ord(","))
    >>> found.ends.tolist(), found.after.tolist(), found.closing.tolist()
    ([1, 7], [2, 9], [1])
    """
    view = np.frombuffer(data, np.uint8)
    mask = view == LF
    mask |= view == delimiter
    if returns := b"\r" in data:
        mask |= view == CR
    if quoted := b'"' in data:
        mask |= view == QUOTE
    at = np.flatnonzero(mask)
    kind = view[at]
    stray = early = _NONE
    seen = inside = None
    if quoted:
        is_quote = kind == QUOTE
        seen = np.cumsum(is_quote, dtype=np.int32)
        regular = _regular(at, is_quote, seen, len(data))
        bare = np.flatnonzero(~is_quote)
        at, kind, seen = at[bare], kind[bare], seen[bare]
        if regular:
            inside = (seen & 1).astype(bool)
        else:
            runs = Runs.of(data, delimiter)
            stray, early, inside = runs.stray, runs.early, runs.inside_at(at)
    after = at + 1
    is_break = kind != delimiter
    kept = None if inside is None else ~inside
    if returns:
        second = np.flatnonzero((kind[:-1] == CR) & (kind[1:] == LF) & (at[1:] == after[:-1])) + 1
        after[second - 1] += 1
        is_break[second] = False
        kept = np.ones(len(at), bool) if kept is None else kept
        kept[second] = False
    breaks = after[is_break]
    if kept is not None:
        chosen = np.flatnonzero(kept)
        at, after, is_break = at[chosen], after[chosen], is_break[chosen]
        seen = seen if seen is None else np.diff(seen[chosen], prepend=np.int32(0))
    return Tokens(at, after, np.flatnonzero(is_break), breaks, seen, stray, early)


def _regular(at: Positions, is_quote: NDArray[np.bool_], seen: NDArray[np.int32], size: int) -> bool:
    """Whether each quote that opens has a separator or quote before it and each one that closes has one after it.

    Then counting quotes is enough: the state is the parity, and runs need not be looked at.
    """
    apart = np.ones(len(at) + 1, bool)
    np.not_equal(at[1:], at[:-1] + 1, out=apart[1:-1])
    apart[0] = at[0] != 0
    apart[-1] = at[-1] != size - 1
    opens = (seen & 1).astype(bool)
    return not (is_quote & ((opens & apart[:-1]) | (~opens & apart[1:]))).any()


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of adjacent quotes.

    Args:
        first: the first byte of each run.
        inside: whether the state after it is inside quotes.
        stray, early: as in `Tokens`.
        held: whether the data ends in a quote that closes its field, which one more quote would reopen.
    """

    first: Positions
    inside: NDArray[np.bool_]
    stray: Positions
    early: Positions
    held: bool

    @classmethod
    def of(cls, data: bytes, delimiter: int) -> Runs:
        """Look at every run.

        Args:
            data: bytes that begin at the beginning of a record, with at least one quote.
            delimiter: one byte.
        """
        view = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(view == QUOTE)
        new = np.ones(len(quotes), bool)
        np.not_equal(quotes[1:], quotes[:-1] + 1, out=new[1:])
        index = np.flatnonzero(new)
        first = quotes[index]
        past = first + np.diff(index, append=len(quotes))
        odd = ((past - first) & 1).astype(bool)
        opening = _separates(view[first - 1], delimiter)
        if first[0] == 0:
            opening[0] = True
        turns: Positions = np.cumsum(odd & opening)
        settled: Positions = np.maximum.accumulate(np.where(odd & ~opening, turns, 0))
        inside = ((turns - settled) & 1) == 1
        before = np.concatenate((np.zeros(1, bool), inside[:-1]))
        stray = ~before & ~opening
        closes = ~inside & ~stray
        follower = view[np.minimum(past, len(view) - 1)]
        early = closes & (past < len(view)) & ~_separates(follower, delimiter)
        return cls(first, inside, first[stray], past[early] - 1, bool(past[-1] == len(view) and closes[-1]))

    def inside_at(self, at: Positions) -> NDArray[np.bool_]:
        """Whether each position lies inside quotes."""
        states = np.concatenate((np.zeros(1, bool), self.inside))
        return states[np.searchsorted(self.first, at)]

    def opener(self) -> int:
        """The first byte of the run that opened the last field, when that is still open or ends with the data."""
        closed = np.flatnonzero(~self.inside[:-1])
        return int(self.first[closed[-1] + 1 if len(closed) else 0])


def _separates(byte: NDArray[np.uint8], delimiter: int) -> NDArray[np.bool_]:
    separates: NDArray[np.bool_] = (byte == delimiter) | (byte == LF) | (byte == CR)
    return separates
