# SPDX-License-Identifier: Apache-2.0
"""Samples that are made of rows as they are asked for, and kept: every row is read once, however often one looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fewbit.data.source import Source
from fewbit.data.text.shuffled import in_random_order


class Packed(Source):
    """What a function makes of the rows of another source.

    Args:
        inner: the rows; its record and its facts go on.
        make: starts making samples, from the first.
        alike: whether they are all of one length, and can be put into batches.
        batched: whether they have a batch axis.
        again: makes the same of other rows.
    """

    def __init__(
        self,
        inner: Source,
        make: Callable[[], Iterator[Any]],
        *,
        alike: bool,
        batched: bool = False,
        again: Callable[[Source], Packed] | None = None,
    ):
        super().__init__()
        self.batched = batched
        self.facts = {**inner.facts, "format": "text", "alike": alike}
        self.record = inner.record
        self._make = make
        self._inner, self._again = inner, again
        self._made: list[Any] = []
        self._going: Iterator[Any] | None = None
        self._complete = False

    def __len__(self) -> int:
        if not self._complete:
            return super().__len__()  # which says that it takes reading
        return len(self._made)

    def __iter__(self) -> Iterator[Any]:
        index = 0
        while True:
            while index >= len(self._made):
                if not self._more():
                    return
            yield self._made[index]
            index += 1

    def reordered(self, n: int | None, by_item: bool, seed: int) -> Source | None:
        """Samples of the rows in random order, which are read as far as samples are asked for."""
        rows = None if self._again is None else in_random_order(self._inner, seed)
        if self._again is None or rows is None:
            return None
        made = self._again(rows)
        made.facts["rows"] = len(rows)
        return made

    def _more(self) -> bool:
        """Make one sample more; whether there was one."""
        if self._complete:
            return False
        if self._going is None:
            self._going = self._make()
        try:
            self._made.append(next(self._going))
        except StopIteration:
            self._complete, self._going = True, None
            return False
        except BaseException:
            # A generator that raised gives nothing more, so the next reading starts from the first row.
            self._going = None
            self._made.clear()
            raise
        return True
