# SPDX-License-Identifier: Apache-2.0
"""Where the elements of a JSON array end, found without parsing.

Only six bytes matter: quotes, brackets, braces and commas. They are picked out of each piece of the text with
array operations, those inside strings are left out, and the running depth says the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_QUOTE, _OPEN, _CLOSE, _COMMA = 1, 2, 3, 4
_KINDS = np.zeros(256, dtype=np.uint8)
_KINDS[ord('"')] = _QUOTE
_KINDS[[ord("["), ord("{")]] = _OPEN
_KINDS[[ord("]"), ord("}")]] = _CLOSE
_KINDS[ord(",")] = _COMMA


@dataclass(frozen=True, slots=True)
class Frame:
    """Where in a text the rows lie.

    Args:
        begin: offset of the first byte behind the array's `[`; 0 for values one after another.
        depth: how many brackets are open there: 1 in an array, 2 in the array of `{"data": [...]}`, 0 without.
        line: the line of that byte, from 1.
        empty: the array is `[]`.
    """

    begin: int
    depth: int
    line: int = 1
    empty: bool = False


@dataclass(slots=True)
class Cuts:
    """What one piece of the text contributes.

    Args:
        ends: offsets at which elements end: at a comma or the array's own bracket; behind a value at depth 0.
        starts: where the next element begins, one for each end.
        closed: the array has been closed, in this piece or before.
    """

    ends: np.ndarray
    starts: np.ndarray
    closed: bool


class Cursor:
    """The state between two pieces: depth, inside a string or not, an escape pending."""

    def __init__(self, frame: Frame):
        self.frame = frame
        self.depth = frame.depth
        self.in_string = False
        self.escape = False
        self.array_closed = frame.depth == 0
        self.after: int | None = None  # where everything was closed
        self.garbage: int | None = None

    def cut(self, chunk: bytes, base: int) -> Cuts:
        """The element ends in the next piece, whose first byte has the offset `base`."""
        positions, kinds = self._structure(chunk)
        depths = self.depth + np.cumsum(np.where(kinds == _OPEN, 1, np.where(kinds == _CLOSE, -1, 0)))
        if len(depths):
            self.depth = int(depths[-1])
        level = self.frame.depth
        if level == 0:
            ends = positions[(kinds == _CLOSE) & (depths == 0)] + 1
            return Cuts(ends + base, ends + base, False)
        if self.array_closed:
            self._look_behind(chunk, base, positions, depths, 0)
            return Cuts(positions[:0], positions[:0], True)
        closing = np.flatnonzero((kinds == _CLOSE) & (depths < level))
        stop = int(closing[0]) if len(closing) else len(kinds)
        ends = positions[:stop][(kinds[:stop] == _COMMA) & (depths[:stop] == level)]
        if stop < len(kinds):
            self.array_closed = True
            ends = np.append(ends, positions[stop])
            self._look_behind(chunk, base, positions[stop:], depths[stop:], int(positions[stop]) + 1)
        return Cuts(ends + base, ends + base + 1, self.array_closed)

    def _look_behind(self, chunk: bytes, base: int, positions: np.ndarray, depths: np.ndarray, start: int) -> None:
        if self.after is None:
            done = np.flatnonzero(depths <= 0)
            if len(done) == 0:
                return
            start = int(positions[done[0]]) + 1
            self.after = base + start
        rest = chunk[start:]
        if self.garbage is None and rest.strip():
            self.garbage = base + start + len(rest) - len(rest.lstrip())

    def _structure(self, chunk: bytes) -> tuple[np.ndarray, np.ndarray]:
        buffer = np.frombuffer(chunk, dtype=np.uint8)
        kinds = _KINDS[buffer]
        positions = np.flatnonzero(kinds)
        kinds = kinds[positions]
        escaped = self._escaped(chunk, buffer, positions)
        if escaped is not None:
            plain = ~(escaped & (kinds == _QUOTE))
            positions, kinds = positions[plain], kinds[plain]
        quotes = kinds == _QUOTE
        inside = (np.cumsum(quotes) + self.in_string) & 1
        if len(inside):
            self.in_string = bool(inside[-1])
        outside = ~quotes & (inside == 0)
        return positions[outside], kinds[outside]

    def _escaped(self, chunk: bytes, buffer: np.ndarray, positions: np.ndarray) -> np.ndarray | None:
        """Which positions have an odd run of backslashes before them; `None` when none has."""
        carried, self.escape = self.escape, False
        if b"\\" not in chunk:
            return (positions == 0) & carried if carried else None
        slashes = np.flatnonzero(buffer == 92)
        fresh = np.concatenate(([True], np.diff(slashes) != 1))
        order = np.arange(len(slashes))
        first = np.maximum.accumulate(np.where(fresh, order, 0))
        run = order - first + 1
        if carried:
            run = run + (slashes[first] == 0)  # the run goes on from the piece before
        if slashes[-1] == len(chunk) - 1:
            self.escape = bool(run[-1] & 1)
        at = np.searchsorted(slashes, positions - 1)
        near = np.minimum(at, len(slashes) - 1)
        escaped = (slashes[near] == positions - 1) & (run[near] & 1 == 1)
        found: np.ndarray = escaped | ((positions == 0) & carried)
        return found
