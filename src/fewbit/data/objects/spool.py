# SPDX-License-Identifier: Apache-2.0
"""A generator that can be read again: what it yields is kept on disk the first time.

The first pass hands elements on while it writes them down; a pass that stops early is continued later from
where the generator stands. One temporary file, gone with the object; nothing in it is pickled.
"""

from __future__ import annotations

import os
import tempfile
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import orjson

from fewbit.data.objects.leaf import decode, encode
from fewbit.data.randomness import Loan
from fewbit.data.sample import Place
from fewbit.data.source import Source
from fewbit.data.tree import classes_of, flatten, rebuild, structure_of
from fewbit.errors import DataError


class SpoolWarning(UserWarning):
    """Says that a one-shot iterator is being kept on disk."""


class Spooled(Source):
    """A one-shot iterator as a re-iterable source with random access to what has been read.

    Args:
        iterator: the user's generator; it is read only as far as a pass needs.
        batched: whether it yields items or samples.
    """

    def __init__(self, iterator: Iterator[Any], *, batched: bool):
        super().__init__()
        self.batched = batched
        self._elements = Loan().iterate(lambda: iterator, _failed)
        self._file = tempfile.TemporaryFile(prefix="fewbit-spool-")  # noqa: SIM115  (lives as long as the object)
        weakref.finalize(self, self._file.close)
        self._spans: list[tuple[tuple[int, int], int]] = []  # span of the description, end of the leaves
        self._classes: dict[str, type] = {}
        self._ended = False
        message = "a generator can be read once: what it yields is kept on disk, so that a second pass sees the same"
        self.record.note("spooled", message, where=tempfile.gettempdir())
        warnings.warn(message, SpoolWarning, stacklevel=2)

    @property
    def random_access(self) -> bool:
        """Once the generator has been read to its end."""
        return self._ended

    def __len__(self) -> int:
        return len(self._spans) if self._ended else super().__len__()

    def __iter__(self) -> Iterator[Any]:
        index = 0
        while index < len(self._spans) or self._advance():
            yield self.get(index)
            index += 1

    def get(self, index: int) -> Any:
        head, end = self._spans[index]
        structure, tags, sizes = orjson.loads(self._read(head))
        leaves, start = [], head[1]
        for tag, size in zip(tags, sizes):
            leaves.append(decode(tag, self._read((start, start + size))))
            start += size
        assert start == end
        return rebuild(structure, leaves, self._classes)

    def place(self, index: int) -> Place:
        return Place("generator", index=index)

    def _advance(self) -> bool:
        if self._ended:
            return False
        try:
            element = next(self._elements)
        except StopIteration:
            self._ended = True
            return False
        self._write(element)
        return True

    def _read(self, span: tuple[int, int]) -> bytes:
        return os.pread(self._file.fileno(), span[1] - span[0], span[0])

    def _write(self, element: Any) -> None:
        encoded = [encode(leaf) for _, leaf in flatten(element)]
        description = orjson.dumps(
            [structure_of(element), [tag for tag, _ in encoded], [len(raw) for _, raw in encoded]]
        )
        self._classes |= classes_of(element)
        start = self._file.seek(0, os.SEEK_END)
        for part in (description, *(raw for _, raw in encoded)):
            self._file.write(part)
        self._file.flush()
        self._spans.append(((start, start + len(description)), self._file.tell()))


def _failed(index: int, error: Exception) -> DataError:
    return DataError(
        f"the generator raised {type(error).__name__}: {error}",
        code="element-failed",
        where=f"element {index}",
        try_="step through the generator by hand: the error comes from inside it",
    )
