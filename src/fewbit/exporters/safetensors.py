# SPDX-License-Identifier: Apache-2.0
"""fewbit's own lossless format: codes, scales and everything else as safetensors, what they mean in fewbit.json."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fewbit import registry
from fewbit.errors import DataError, UsageError
from fewbit.modules import compact_file, huggingface, tensor_file
from fewbit.modules.description import Description
from fewbit.modules.inventory import named_modules, take
from fewbit.modules.loading import load_folder, read_contents, read_table
from fewbit.modules.tensor_file import Entry, same_bits

read = load_folder


def write(
    model: Any,
    folder: Path,
    *,
    shard_bytes: int = 4 << 30,
    factory: str | None = None,
    tokenizer: Any = None,
    compact: bool = False,
) -> dict[str, Any]:
    """Write a model's tensors into `fewbit.safetensors`, or into several files of at most `shard_bytes`.

    The name is not `model.safetensors` on purpose: transformers would take it for a float model, find no weights it
    knows, and go on with random ones.

    Args:
        model: a quantized model, frozen or not; one without quantized layers is written as it is.
        folder: an empty folder.
        shard_bytes: the most bytes of tensors in one file; a larger tensor has a file of its own.
        factory: `"file.py:function"` that makes the float model; it is noted for whoever loads, and not run.
        tokenizer: a tokenizer or processor to be saved beside the model.
        compact: leave zeros out (`fewbit.compact.safetensors`): smaller, as lossless, and not mapped but read.
    """
    if shard_bytes < 1:
        raise UsageError(f"shard_bytes={shard_bytes}", expected="a number of bytes, such as 4 << 30")
    if factory is not None and not registry.is_reference(factory):
        raise UsageError(f"factory={factory!r} does not name a function", expected="'file.py:function'")
    model = _module(model)
    inventory = take(model)
    shards = list(_shards(inventory.entries.values(), shard_bytes))
    tensors = {}
    for number, shard in enumerate(shards, start=1):
        name = "fewbit" if len(shards) == 1 else f"fewbit-{number:05}-of-{len(shards):05}"
        if compact:
            written = compact_file.write(folder / f"{name}{compact_file.SUFFIX}", shard)
        else:
            written = tensor_file.write(folder / f"{name}.safetensors", shard)
        for key, stored in written.items():
            tensors[key] = stored.to_dict() | {"kind": inventory.kinds[key]}
    content: dict[str, Any] = {"class": type(model).__name__}
    if huggingface.is_pretrained(model):
        content["huggingface"] = huggingface.save_files(model, folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    config = getattr(model, "fewbit_config", None)
    content |= {"factory": factory, "config": None if config is None else config.to_dict()}
    return {**content, **Description.of(model).to_dict(), "tensors": tensors, "aliases": inventory.aliases}


def check(model: Any, folder: Path, manifest: Mapping[str, Any]) -> None:
    """Read every tensor with the safetensors library and compare its bytes with the model's own.

    Raises:
        DataError: a bit that differs, a tensor of the model that is not in the files.
    """
    model = _module(model)
    found = read_contents(folder, manifest, verify=False)
    held = dict(_tensors(model))
    faults = [name for name in (*held, *Description.of(model).parts()) if name not in found.tensors]
    if found.description != Description.of(model):
        faults.append("the description of its layers")
    del found
    stored = read_table(manifest)
    for file in dict.fromkeys(each.file for each in stored.values()):  # one after the other: memory follows a file
        tensors = compact_file.read_files(folder, {name: each for name, each in stored.items() if each.file == file})
        # Codes that a kernel keeps in its own layout are not among the held: their hashes were taken while writing.
        faults += [name for name in tensors if name in held and not same_bits(held[name], tensors[name])]
    if faults:
        raise DataError(
            "what was written is not what the model holds",
            code="export-differs",
            where=", ".join(faults[:5]),
            expected="every tensor of the model, bit by bit",
            try_="was the model changed while it was exported?",
        )


def _module(model: Any) -> nn.Module:
    model = getattr(model, "_orig_mod", model)  # what torch.compile stands before
    if not isinstance(model, nn.Module):
        raise UsageError(f"a {type(model).__name__} cannot be written in this format", expected="a torch.nn.Module")
    return model


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter and buffer under all its names, as the modules hold them; those of kernels are left out."""
    for path, module in named_modules(model):
        for name, tensor in chain(module._parameters.items(), module._buffers.items()):
            if tensor is not None:
                yield f"{path}.{name}".lstrip("."), tensor


def _shards(entries: Iterable[Entry], limit: int) -> Iterator[list[Entry]]:
    shard: list[Entry] = []
    for entry in entries:
        if shard and sum(each.nbytes for each in shard) + entry.nbytes > limit:
            yield shard
            shard = []
        shard.append(entry)
    yield shard
