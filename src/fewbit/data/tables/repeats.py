# SPDX-License-Identifier: Apache-2.0
"""Rows that stand twice, in one split or in two, found by their hashes: 16 bytes a row, nothing else is kept."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import orjson

from fewbit.data.sample import Place

_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS


def row_bytes(values: dict[str, Any]) -> bytes:
    """A row as bytes that do not depend on the order of its keys; their hash is good within one process.

    >>> row_bytes({"a": 1, "b": [2]}) == row_bytes({"b": [2], "a": 1})
    True
    """
    try:
        return orjson.dumps(values, option=_OPTIONS, default=repr)
    except TypeError:  # an integer beyond 64 bits, half a character: rare, so slow is fine
        return repr(sorted(values.items())).encode("utf-8", "surrogatepass")


class Repeats:
    """Every row's hash, by file."""

    def __init__(self) -> None:
        self._hashes = array("q")
        self._lines = array("q")
        self._files: list[tuple[str, str]] = []  # name, split
        self._firsts: list[int] = []  # the number of each file's first row

    def begin(self, name: str, split: str) -> None:
        """The rows that follow are of this file."""
        self._files.append((name, split))
        self._firsts.append(len(self._hashes))

    def add(self, hashes: Sequence[int], lines: Sequence[int]) -> None:
        """Take in some rows. In a file without lines, `lines` are the numbers of the rows, inverted (`~number`)."""
        self._hashes.extend(hashes)
        self._lines.extend(lines)

    def place(self, row: int) -> Place:
        """Where a row stands, by its number among all."""
        line = self._lines[row]
        name, _ = self._files[bisect_right(self._firsts, row) - 1]
        return Place(name, line) if line >= 0 else Place(name, index=~line)

    def split(self, row: int) -> str:
        """The split of a row by its number among all."""
        return self._files[bisect_right(self._firsts, row) - 1][1]

    def pairs(self) -> Iterator[tuple[int, int]]:
        """For each row that repeats another, in order: the first of its kind (in the same split, if any), and itself.

        Hashes differ from process to process, so rows found in the order of their hashes are put back in their own.
        """
        self._sort()
        firsts, again = array("q"), array("q")
        for first, row in self._by_hash():
            firsts.append(first)
            again.append(row)
        for position in np.argsort(np.array(again, dtype=np.int64), kind="stable").tolist():
            yield firsts[position], again[position]

    def _sort(self) -> None:
        """Put the rows of each file in the order of their lines; a CSV hands the odd ones of a block out last."""
        hashes, lines = (np.frombuffer(found, np.int64) for found in (self._hashes, self._lines))
        for start, stop in pairwise([*self._firsts, len(hashes)]):
            at = np.maximum(lines[start:stop], ~lines[start:stop])
            if (at[1:] < at[:-1]).any():
                order = start + np.argsort(at, kind="stable")
                hashes[start:stop], lines[start:stop] = hashes[order], lines[order]

    def _by_hash(self) -> Iterator[tuple[int, int]]:
        hashes = np.array(self._hashes, dtype=np.int64)
        ordered = np.sort(hashes)
        if not (ordered[1:] == ordered[:-1]).any():  # twice as fast to see as to say which
            return
        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        first: dict[str, int] = {}
        last = -1
        for position in (np.flatnonzero(ordered[1:] == ordered[:-1]) + 1).tolist():
            if position != last + 1 or not first:
                earliest = int(order[position - 1])
                first = {self.split(earliest): earliest}
            last = position
            row = int(order[position])
            split = self.split(row)
            yield first.get(split, next(iter(first.values()))), row
            first.setdefault(split, row)
