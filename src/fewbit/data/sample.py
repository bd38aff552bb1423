# SPDX-License-Identifier: Apache-2.0
"""One sample and the place it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sample or a fault was found, as precisely as the format can say.

    Args:
        path: the file, relative to the dataset's root (posix, NFC), or the name of a Python source.
        line: line number in that file, from 1.
        offset: byte offset in that file.
        index: number of the sample in the dataset, from 0.
        field: the column, array or input inside the sample.

    >>> print(Place("train.jsonl", line=7, field="text"))
    train.jsonl:7, field 'text'
    """

    path: str | None = None
    line: int | None = None
    offset: int | None = None
    index: int | None = None
    field: str | None = None

    def __str__(self) -> str:
        parts = [self.path] if self.path else []
        if self.line is not None:
            parts = [f"{self.path or 'line'}:{self.line}"]
        if self.offset is not None:
            parts.append(f"byte {self.offset}")
        if self.index is not None:
            parts.append(f"sample {self.index}")
        if self.field is not None:
            parts.append(f"field {self.field!r}")
        return ", ".join(parts) or "unknown place"


class Sample(dict[str, Any]):
    """One example without a batch axis: a plain `dict` that also knows where it came from.

    >>> sample = Sample({"text": "hello"}, place=Place("train.jsonl", line=1))
    >>> sample["text"], str(sample.place)
    ('hello', 'train.jsonl:1')
    """

    __slots__ = ("place",)

    def __init__(self, values: Mapping[str, Any] | None = None, *, place: Place | None = None):
        super().__init__(values or {})
        self.place = place or Place()
