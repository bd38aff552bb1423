# SPDX-License-Identifier: Apache-2.0
"""What a model is called with, one batch after the other, and where each came from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Fed(Iterator[Any]):
    """Model inputs in order; of those that were given out, the places are known.

    Args:
        placed: pairs of a place, in words, and an input.

    >>> inputs = Fed(iter([("sample 0 (a.npz)", 1.5), ("sample 1 (b.npz)", 2.5)]))
    >>> list(inputs), inputs.place(1), inputs.place(7)
    ([1.5, 2.5], 'sample 1 (b.npz)', None)
    """

    def __init__(self, placed: Iterator[tuple[str, Any]]):
        self._placed = placed
        self._places: list[str] = []

    def __next__(self) -> Any:
        place, item = next(self._placed)
        self._places.append(place)
        return item

    def place(self, item: int) -> str | None:
        """Where the input of a number, from 0, came from; none if it was not given out."""
        return self._places[item] if 0 <= item < len(self._places) else None
