# SPDX-License-Identifier: Apache-2.0
"""The tensors of a Hugging Face folder where they lie: names, dtypes and shapes from the headers, rows when asked for.

Rows are read and not mapped: pages of a mapped file count as memory of whoever touched them, until somebody else needs
theirs, and memory here shall follow what is worked on.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import orjson
import torch
from torch import Tensor

from fewbit.errors import DataError, UsageError
from fewbit.modules.manifest import is_inside
from fewbit.modules.tensor_file import NAMES

_DTYPES = {name: dtype for dtype, name in NAMES.items()}
_INDEX = "model.safetensors.index.json"
_MOST_BYTES = 100 << 20
"""Of a header; the library that everybody reads these files with takes no longer ones."""


@dataclass(frozen=True)
class Place:
    """One tensor in a file.

    Args:
        path: the file.
        start: its first byte there.
        dtype: its dtype.
        shape: its shape.
    """

    path: Path
    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row along the first axis; of all there is, where there is no axis."""
        return prod(self.shape[1:]) * self.dtype.itemsize

    def rows(self, start: int, stop: int) -> Tensor:
        """Some rows along the first axis.

        Raises:
            DataError: the file ends before them.
        """
        size = self.row_bytes
        raw = torch.empty((stop - start) * size, dtype=torch.uint8)
        content: Any = raw.numpy()
        left = memoryview(content)
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.start + start * size)
            while left and (count := file.readinto(left)):
                left = left[count:]
        if left:
            raise _damaged(self.path, "it is shorter than its header says")
        return raw.view(self.dtype).reshape(stop - start, *self.shape[1:])


def find_tensors(folder: Path) -> dict[str, Place]:
    """Every tensor of a folder, from its one file or from those that its index names.

    Raises:
        UsageError: no tensors there.
        DataError: a header that contradicts its file, an index that is not true.
    """
    index, alone = folder / _INDEX, folder / "model.safetensors"
    found = _indexed(folder, index) if index.is_file() else _header(alone) if alone.is_file() else {}
    if not found:
        raise UsageError("no weights here", where=folder, expected=f"model.safetensors, or several and {_INDEX}")
    return found


def tensors_in(path: Path) -> dict[str, Place]:
    """Every tensor of one file.

    Raises:
        DataError: a header that contradicts its file.
    """
    return _header(path)


def _indexed(folder: Path, index: Path) -> dict[str, Place]:
    try:
        named = dict(orjson.loads(index.read_bytes())["weight_map"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise _damaged(index, f"it is no index ({type(error).__name__}: {error})") from error
    files = list(dict.fromkeys(named.values()))
    if not all(is_inside(file) and (folder / file).is_file() for file in files):
        raise _damaged(index, "it names files that are not there")
    found: dict[str, Place] = {}
    for file in files:
        found |= _header(folder / file)
    if {name: place.path for name, place in found.items()} != {name: folder / file for name, file in named.items()}:
        raise _damaged(index, "it does not say where the tensors are")
    return found


def _header(path: Path) -> dict[str, Place]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, _MOST_BYTES):
            raise _damaged(path, "it is no .safetensors file")
        text = file.read(length)
    try:
        content = orjson.loads(text)
        content.pop("__metadata__", None)
        found = {name: _place(path, 8 + length, how) for name, how in content.items()}
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(path, f"its header cannot be read ({type(error).__name__}: {str(error)[:100]})") from error
    if any(place.start + prod(place.shape) * place.dtype.itemsize > size for place in found.values()):
        raise _damaged(path, "it is shorter than its header says")
    return found


def _place(path: Path, data: int, how: Any) -> Place:
    shape, (begin, end) = tuple(how["shape"]), how["data_offsets"]
    if not all(type(side) is int and side >= 0 for side in (*shape, begin, end)):
        raise ValueError(f"shape {shape}, from {begin} to {end}")
    if how["dtype"] not in _DTYPES or prod(shape) * _DTYPES[how["dtype"]].itemsize != end - begin:
        raise ValueError(f"{how['dtype']} {list(shape)} in {end - begin} bytes")
    return Place(path, data + begin, _DTYPES[how["dtype"]], shape)


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"the file cannot be read: {why}", code="file-unreadable", where=path)
