# SPDX-License-Identifier: Apache-2.0
"""Safetensors files of bounded size, written as tensors arrive: memory holds one tensor, not one file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from torch import Tensor

SHARD_BYTES = 4 << 30
"""Size of a file before the next one begins."""
_HEADER_BYTES = 1 << 18
"""Kept free at the start of a file that is larger than `_BUFFERED`; a reader skips the spaces that fill it."""
_BUFFERED = 32 << 20
"""Smaller files are collected in memory and have no spaces."""
_SMALL = 4096
"""Tensors below this size come last, so that large ones stay aligned in a memory-mapped file."""
DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0", "int64": "I64", "int32": "I32", "int16": "I16",
    "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "complex64": "C64",
}  # fmt: skip
"""Names of PyTorch and of safetensors."""


class ShardWriter:
    """Writes `model.safetensors`, or several files with `model.safetensors.index.json`.

    Args:
        folder: of the model.
        limit: bytes per file.
        stem: of the file names.
    """

    def __init__(self, folder: Path, limit: int = SHARD_BYTES, stem: str = "model"):
        self._folder, self._limit, self._stem = folder, limit, stem
        self.total = 0
        self._shards: list[_Shard] = []

    def add(self, name: str, tensor: Any) -> None:
        """Add a torch tensor."""
        self.add_together({name: tensor})

    def add_together(self, tensors: Mapping[str, Any]) -> None:
        """Add the tensors of one layer, which readers want in one file."""
        size = sum(tensor.nbytes for tensor in tensors.values())
        shard = self._shards[-1] if self._shards else None
        if shard is None or (shard.bytes and (shard.bytes + size > self._limit or shard.header_full)):
            if shard is not None:
                shard.close()
            shard = _Shard(self._folder / _temporary(len(self._shards)))
            self._shards.append(shard)
        for name, tensor in tensors.items():
            shard.add(name, tensor.detach().cpu().contiguous())
        self.total += size

    def close(self) -> list[str]:
        """Finish the last file, name the files as readers expect, and return the names."""
        if not self._shards:
            self._shards.append(_Shard(self._folder / _temporary(0)))
        self._shards[-1].close()
        count = len(self._shards)
        if count == 1:
            names = [f"{self._stem}.safetensors"]
        else:
            names = [f"{self._stem}-{index + 1:05}-of-{count:05}.safetensors" for index in range(count)]
        for index, name in enumerate(names):
            (self._folder / _temporary(index)).rename(self._folder / name)
        if count == 1:
            return names
        weight_map = {tensor: name for name, shard in zip(names, self._shards) for tensor in shard.entries}
        index_name = f"{self._stem}.safetensors.index.json"
        content = {"metadata": {"total_size": self.total}, "weight_map": dict(sorted(weight_map.items()))}
        (self._folder / index_name).write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
        return [*names, index_name]


class _Shard:
    """One file: tensors go to disk at once as soon as there are many bytes of them."""

    def __init__(self, path: Path):
        self._path = path
        self._file: IO[bytes] | None = None
        self._waiting: list[tuple[str, Tensor]] = []
        self._small: list[tuple[str, Tensor]] = []
        self._offset = 0
        self.entries: dict[str, dict[str, Any]] = {}
        self.bytes = 0

    @property
    def header_full(self) -> bool:
        """Whether the free space at the start could be too short for one more layer."""
        return sum(len(name) + 120 for name in self.entries) > _HEADER_BYTES - 16384

    def add(self, name: str, tensor: Tensor) -> None:
        self.bytes += tensor.nbytes
        # The place in the file follows later; the key keeps the order of arrival.
        self.entries[name] = {"dtype": DTYPES[str(tensor.dtype).removeprefix("torch.")], "shape": list(tensor.shape)}
        if tensor.nbytes < _SMALL or tensor.nbytes % 8:
            self._small.append((name, tensor))
        elif self._file is not None:
            self._put(name, tensor)
        else:
            self._waiting.append((name, tensor))
            if self.bytes > _BUFFERED:
                self._open(_HEADER_BYTES)

    def close(self) -> None:
        rest = sorted(self._small, key=lambda item: (-item[1].element_size(), item[0]))
        self._small = []
        if self._file is None:
            self._waiting += rest
            stop = 0
            for name, tensor in self._waiting:  # as `_put` will place them
                self.entries[name]["data_offsets"] = [stop, stop := stop + tensor.nbytes]
            header = self._header()
            self._open(len(header) + -len(header) % 8)
        else:
            for name, tensor in rest:
                self._put(name, tensor)
        assert self._file is not None
        header = self._header()
        space = self._start - 8
        self._file.seek(0)
        self._file.write(space.to_bytes(8, "little") + header.ljust(space, b" "))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def _open(self, header: int) -> None:
        self._file = self._path.open("wb")
        self._start = 8 + header
        self._file.seek(self._start)
        for name, tensor in self._waiting:
            self._put(name, tensor)
        self._waiting = []

    def _put(self, name: str, tensor: Tensor) -> None:
        import torch

        assert self._file is not None
        self.entries[name]["data_offsets"] = [self._offset, self._offset + tensor.nbytes]
        self._offset += tensor.nbytes
        if tensor.nbytes:
            self._file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)

    def _header(self) -> bytes:
        return orjson.dumps({"__metadata__": {"format": "pt"}, **self.entries})


def _temporary(index: int) -> str:
    return f"shard-{index:05}.tmp"
