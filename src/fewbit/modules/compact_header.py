# SPDX-License-Identifier: Apache-2.0
"""What a file without zeros says of its tensors, believed as far as it agrees with itself and the file's length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import orjson

from fewbit.data.limits import EXPANSION, EXPANSION_FLOOR
from fewbit.errors import DataError
from fewbit.modules.description import read_dtype, read_sides
from fewbit.modules.tensor_file import Stored

_MOST_HEADER = 256 << 20


@dataclass(frozen=True)
class Kept:
    """What a file says of one tensor.

    Args:
        stored: its dtype, shape and hash.
        facts: what its pieces mean.
        pieces: where each lies in the file.
    """

    stored: Stored
    facts: Mapping[str, Any]
    pieces: Mapping[str, tuple[int, int]]

    @property
    def dense_bytes(self) -> int:
        """Bytes of the tensor."""
        return prod(self.stored.shape) * self.stored.dtype.itemsize

    @property
    def stored_bytes(self) -> int:
        """Bytes in the file."""
        return sum(end - begin for begin, end in self.pieces.values())


def contents(path: Path) -> dict[str, Kept]:
    """What a file has, as far as its header says and its length allows; no tensor is read.

    Raises:
        DataError: no such file, or one that is cut short or contradicts itself, with the tensor where it is one.
    """
    if not path.is_file():
        raise DataError(f"the file {path.name} is missing", code="file-missing", where=path.parent)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MOST_HEADER):
            raise damaged(path, f"it has {size:,} bytes, and its header would have {length:,}")
        try:
            header = orjson.loads(file.read(length))
            described = orjson.loads(header["__metadata__"]["tensors"])
            spans = _spans(header, 8 + length)
            found = {name: _kept(path, name, entry, spans) for name, entry in described.items()}
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(path, f"its header is none: {type(error).__name__}: {str(error)[:100]}") from error
    order = sorted(span for kept in found.values() for span in kept.pieces.values())
    ends = [8 + length, *(end for _, end in order)]
    for name, kept in found.items():
        if any(end > size for _, end in kept.pieces.values()):
            raise damaged(path, f"it ends at byte {size:,}, inside of this tensor", name)
    if [begin for begin, _ in order] != ends[:-1] or ends[-1] != size:
        raise damaged(path, "its pieces do not lie one behind the other up to its end")
    return found


def _spans(header: Mapping[str, Any], start: int) -> dict[str, dict[str, tuple[int, int]]]:
    """Where the pieces of each number lie in the file."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for key, value in header.items():
        if key != "__metadata__":
            number, _, piece = key.partition(".")
            begin, end = value["data_offsets"]
            found.setdefault(number, {})[piece] = (start + begin, start + end)
    return found


def _kept(path: Path, name: str, entry: Any, spans: Mapping[str, Mapping[str, tuple[int, int]]]) -> Kept:
    """One tensor of the description; a size that nothing speaks for is not believed."""
    try:
        pieces = spans[str(entry["number"])]
        stored = Stored(path.name, read_dtype(entry["dtype"]), read_sides(entry["shape"]), str(entry["sha256"]))
        if any(begin > end for begin, end in pieces.values()):
            raise ValueError("a piece ends before it begins")
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, f"its description is none: {type(error).__name__}: {error}", name) from error
    kept = Kept(stored, entry, pieces)
    if kept.dense_bytes > max(EXPANSION_FLOOR, EXPANSION * kept.stored_bytes):
        claim = f"{kept.stored_bytes:,} bytes claim to be {kept.dense_bytes:,}"
        raise damaged(path, f"{claim}, more than {EXPANSION} times as many", name)
    return kept


def damaged(path: Path, why: str, name: str | None = None) -> DataError:
    """What is to be said of a file that is not as it was written, or of one tensor of it."""
    return DataError(
        f"the file cannot be read: {why}",
        code="file-unreadable",
        where=path if name is None else f"{path}: {name}",
        expected="the file as it was written",
        try_="copy it again from where it was written",
    )
