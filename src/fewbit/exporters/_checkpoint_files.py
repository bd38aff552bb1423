# SPDX-License-Identifier: Apache-2.0
"""The files of a Hugging Face checkpoint: config.json, and tensors in one file or several and an index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from torch import Tensor

from fewbit.errors import DataError, UsageError, require
from fewbit.exporters._checkpoint_layout import Laid
from fewbit.modules import tensor_file
from fewbit.modules.tensor_file import Entry

_INDEX = "model.safetensors.index.json"


def write_checkpoint(lay_out: Callable[[], Laid], folder: Path, shard_bytes: int, tokenizer: Any) -> dict[str, Any]:
    """Lay a checkpoint out and write it; returns what the manifest shall say.

    Args:
        lay_out: writes config.json and says which tensors there are.
        folder: an empty folder.
        shard_bytes: the most bytes of tensors in one file.
        tokenizer: a tokenizer or processor to be saved beside the model, or none.
    """
    if shard_bytes < 1:
        raise UsageError(f"shard_bytes={shard_bytes}", expected="a number of bytes, such as 4 << 30")
    laid = lay_out()
    write_files(folder, laid.entries, shard_bytes)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return laid.content


def write_files(folder: Path, entries: Iterable[Entry], shard_bytes: int) -> None:
    """Write tensors into one file, or several of at most `shard_bytes`; a larger tensor has a file of its own.

    The manifest has the hashes of the files: none is taken of each tensor.
    """
    shards = list(_shards(entries, shard_bytes))
    files: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        files |= dict.fromkeys(tensor_file.write(folder / name, shard, format="pt", hashed=False), name)
    if len(shards) > 1:
        size = sum(entry.nbytes for shard in shards for entry in shard)
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(files.items()))}
        (folder / _INDEX).write_bytes(orjson.dumps(index, option=orjson.OPT_INDENT_2))


def add_to_config(folder: Path, quantization: Mapping[str, Any], *, untie: bool) -> None:
    """Complete the config.json that is there.

    Args:
        folder: where it is.
        quantization: what it shall say of codes.
        untie: say that the head has values of its own, which a loader would replace by the table's.
    """
    path = folder / "config.json"
    content = orjson.loads(path.read_bytes()) | {"quantization_config": dict(quantization)}
    if untie and content.get("tie_word_embeddings", True):
        content["tie_word_embeddings"] = False
    path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))


class Stored:
    """The tensors of a folder, read one at a time by the safetensors library."""

    def __init__(self, handles: dict[str, Any]):
        self._handles = handles

    def names(self) -> set[str]:
        """Every tensor in the files."""
        return set(self._handles)

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._handles[name].get_tensor(name)
        return tensor


@contextmanager
def open_files(folder: Path) -> Iterator[Stored]:
    """The tensors of a folder, wherever its index says they are.

    Raises:
        DataError: a file that cannot be read, or an index that is not true.
    """
    library = require("safetensors", extra="torch", purpose="reading a .safetensors file")
    handles: dict[str, Any] = {}
    places: dict[str, str] = {}
    try:
        for path in sorted(folder.glob("model*.safetensors")):
            handle = library.safe_open(path, framework="pt", device="cpu")
            handles |= dict.fromkeys(handle.keys(), handle)
            places |= dict.fromkeys(handle.keys(), path.name)
    except Exception as error:  # whatever a damaged file makes the library raise
        raise DataError(f"the file cannot be read: {str(error)[:200]}", code="file-unreadable", where=path) from error
    index = folder / _INDEX
    if index.is_file() and orjson.loads(index.read_bytes())["weight_map"] != places:
        raise DataError("the index does not say where the tensors are", code="export-differs", where=index)
    yield Stored(handles)


def _shards(entries: Iterable[Entry], limit: int) -> Iterator[list[Entry]]:
    shard: list[Entry] = []
    size = 0
    for entry in entries:
        if shard and size + entry.nbytes > limit:
            yield shard
            shard, size = [], 0
        shard.append(entry)
        size += entry.nbytes
    yield shard
