# SPDX-License-Identifier: Apache-2.0
"""model.safetensors, or several files with an index, as Hugging Face checkpoints have them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import orjson

from fewbit.modules import tensor_file
from fewbit.modules.tensor_file import Entry, Stored


def write_files(folder: Path, entries: Iterable[Entry], shard_bytes: int) -> dict[str, Stored]:
    """Write tensors into one file, or several of at most `shard_bytes`; returns where each is."""
    shards = list(_shards(entries, shard_bytes))
    stored: dict[str, Stored] = {}
    for number, shard in enumerate(shards, start=1):
        name = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        stored |= tensor_file.write(folder / name, shard)
    if len(shards) > 1:
        total = sum(entry.nbytes for shard in shards for entry in shard)
        index = {"metadata": {"total_size": total}, "weight_map": {name: each.file for name, each in stored.items()}}
        path = folder / "model.safetensors.index.json"
        path.write_bytes(orjson.dumps(index, option=orjson.OPT_INDENT_2))
    return stored


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
