# SPDX-License-Identifier: Apache-2.0
"""How long the texts of each column are: shortest, median, longest, from counts in fixed memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_LONGEST = 1 << 16
_COLUMNS = 64


class Lengths:
    """Counts of lengths by column.

    Args:
        unit: what is counted, in words.

    >>> lengths = Lengths()
    >>> lengths.add("text", [3, 5, 4])
    >>> lengths.text("text")
    '3 to 5 characters, median 4'
    """

    def __init__(self, unit: str = "characters") -> None:
        self.unit = unit
        self._counts: dict[str, np.ndarray] = {}
        self._ends: dict[str, tuple[int, int]] = {}

    def add(self, column: str, lengths: Sequence[int] | np.ndarray) -> None:
        """Take in some lengths of one column."""
        found = np.asarray(lengths, dtype=np.int64)
        if len(found) == 0 or (column not in self._counts and len(self._counts) >= _COLUMNS):
            return
        counts = self._counts.setdefault(column, np.zeros(_LONGEST, dtype=np.int64))
        more = np.bincount(np.minimum(found, _LONGEST - 1))
        counts[: len(more)] += more
        low, high = int(found.min()), int(found.max())
        known = self._ends.get(column, (low, high))
        self._ends[column] = min(known[0], low), max(known[1], high)

    def columns(self) -> list[str]:
        """The columns that hold text."""
        return list(self._counts)

    def text(self, column: str) -> str:
        """A column in words; the median of very long texts is a lower bound."""
        running = np.cumsum(self._counts[column])
        median = int(np.searchsorted(running, (running[-1] + 1) // 2))
        shortest, longest = self._ends[column]
        about = ""
        if median == _LONGEST - 1:  # all that is longer is counted there
            median, about = max(median, shortest), "" if shortest == longest else "at least "
        return f"{shortest:,} to {longest:,} {self.unit}, median {about}{median:,}"
