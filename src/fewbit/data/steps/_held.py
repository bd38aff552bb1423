# SPDX-License-Identifier: Apache-2.0
"""A source whose samples can be asked for in any order, whatever it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fewbit.data.source import Source, known_length
from fewbit.data.views import View
from fewbit.record import Record


def hold(source: Source, record: Record) -> Source:
    """The source itself if it can be read in any order, else its samples in memory, which the record then says.

    >>> from fewbit.data.opening import open_source
    >>> rows = open_source([{"text": "a"}, {"text": "b"}])
    >>> hold(rows, Record("prepare")) is rows
    True
    """
    return source if source.random_access and known_length(source) is not None else Held(source, record)


class Held(View):
    """The samples of a stream, kept from the first time they are asked for."""

    def __init__(self, inner: Source, record: Record):
        super().__init__(inner)
        self._record = record
        self._samples: list[Any] | None = None

    @property
    def random_access(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self._held())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._held())

    def get(self, index: int) -> Any:
        return self._held()[index]

    def replan(self) -> None:
        """Read it again: what is beneath has changed."""
        if self._samples is not None:
            self._samples, self._record = None, Record("prepare")  # what was told stays told

    def _held(self) -> list[Any]:
        if self._samples is None:
            self._samples = list(self.inner)
            reason = f"{len(self._samples):,} samples are kept in memory: the data can only be read in order"
            self._record.note("held-in-memory", reason, count=len(self._samples))
        return self._samples
