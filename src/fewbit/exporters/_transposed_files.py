# SPDX-License-Identifier: Apache-2.0
"""A folder that transformers and vLLM open: config.json that says how weights are kept, and model.safetensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from torch import Tensor

from fewbit.errors import DataError, UsageError, require
from fewbit.exporters._transposed_model import Parts
from fewbit.modules import huggingface
from fewbit.modules.tensor_file import Entry

_INDEX = "model.safetensors.index.json"


def save(
    parts: Parts, folder: Path, coded: Iterable[Entry], quantization: dict[str, Any], shard_bytes: int, tokenizer: Any
) -> None:
    """Write everything.

    Args:
        parts: the model.
        folder: an empty folder.
        coded: the tensors of the layers that stay codes.
        quantization: what config.json shall say of them.
        shard_bytes: the most bytes of tensors in one file; memory holds one file's tensors.
        tokenizer: saved beside the model, if given.
    """
    if shard_bytes < 1:
        raise UsageError(f"shard_bytes={shard_bytes}", expected="a number of bytes, such as 4 << 30")
    library = require("safetensors.torch", extra="torch", purpose="writing a .safetensors file")
    huggingface.save_files(parts.model, folder)
    _add_to_config(folder / "config.json", parts, quantization)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    shards = list(_shards([*coded, *parts.rest], shard_bytes))
    files = {}
    for number, shard in enumerate(shards, start=1):
        name = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        # Cloned: parts of one tensor share memory, which the library does not write twice.
        tensors = {entry.name: entry.read().detach().cpu().contiguous().clone() for entry in shard}
        library.save_file(tensors, folder / name, metadata={"format": "pt"})
        files |= dict.fromkeys(tensors, name)
    if len(shards) > 1:
        size = sum(entry.nbytes for shard in shards for entry in shard)
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(files.items()))}
        (folder / _INDEX).write_bytes(orjson.dumps(index, option=orjson.OPT_INDENT_2))


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


def _add_to_config(path: Path, parts: Parts, quantization: dict[str, Any]) -> None:
    config = orjson.loads(path.read_bytes())
    config["quantization_config"] = quantization
    head = parts.model.get_output_embeddings()
    table = parts.model.get_input_embeddings()
    stored = parts.names.keys()
    names = [f"{name}.weight" for name, module in parts.model.named_modules() if module in (head, table)]
    if config.get("tie_word_embeddings") and len(names) == 2 and set(names) <= stored:
        config["tie_word_embeddings"] = False  # each has values of its own now, and a loader would tie them again
    path.write_bytes(orjson.dumps(config, option=orjson.OPT_INDENT_2))


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
