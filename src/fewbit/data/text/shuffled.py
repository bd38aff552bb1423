# SPDX-License-Identifier: Apache-2.0
"""Rows of text in random order, so that the first samples made of them are spread over the whole source."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from fewbit.data.sample import Place, Sample
from fewbit.data.source import Source, known_length
from fewbit.data.text.plain import Articles, TextFiles
from fewbit.data.views import Picked

_MOST = 1 << 27
"""Characters of plain text that are held in memory; of longer text the documents up to there are shuffled."""


def in_random_order(source: Source, seed: int) -> Source | None:
    """The same rows in random order; `None` if they can only be read in their own.

    Plain text does not say how many documents it holds: it is read once, and kept.
    """
    if isinstance(source, TextFiles | Articles):
        return _Documents(source, seed)
    count = known_length(source)
    if count is None or not source.random_access:
        return source.reordered(None, True, seed)
    return Picked(source, random.Random(seed).sample(range(count), count))


class _Documents(Source):
    """Documents of plain text in random order."""

    def __init__(self, inner: Source, seed: int):
        super().__init__()
        self.facts, self.record = inner.facts, inner.record
        self._documents: list[Sample] = []
        length = 0
        for document in inner:
            self._documents.append(document)
            length += len(document["text"])
            if length > _MOST:
                self.record.note("head-only", f"of the text, the first {length} characters were read")
                break
        random.Random(seed).shuffle(self._documents)

    def __len__(self) -> int:
        return len(self._documents)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._documents)

    def get(self, index: int) -> Sample:
        return self._documents[index]

    def place(self, index: int) -> Place:
        return self._documents[index].place
