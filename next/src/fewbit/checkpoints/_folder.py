# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face folder: weights in safetensors files, `config.json`, files of tokenizers and processors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from fewbit.checkpoints._base import CheckpointJob, LayerFormat, NamedTensor
from fewbit.checkpoints._shards import ShardWriter
from fewbit.errors import ModelError
from fewbit.numerics.ops import Array
from fewbit.numerics.qtensor import QTensor

if TYPE_CHECKING:
    from torch import Tensor

_COPIED = (
    "generation_config.json", "chat_template*", "tokenizer*", "vocab*", "merges.txt", "*.model",
    "special_tokens_map.json", "added_tokens.json", "*processor_config.json", "preprocessing.json",
)  # fmt: skip
"""Files next to the weights that readers need, copied unchanged; never code."""


def write_folder(
    folder: Path,
    tensors: Iterable[NamedTensor],
    job: CheckpointJob,
    encode: Callable[[str, QTensor], Mapping[str, Tensor]],
    quantization: Mapping[str, Any],
    *,
    stem: str = "model",
) -> list[str]:
    """Write a model as a Hugging Face folder.

    Args:
        folder: exists and is empty, or has files of the same run.
        tensors: of the model.
        job: what is written.
        encode: the stored tensors of a layer by the last part of their names.
        quantization: the section `quantization_config` of `config.json`.
        stem: of the weight files.

    Returns:
        The names of all files.
    """
    shards = ShardWriter(folder, stem=stem)
    for tensor in tensors:
        if isinstance(tensor.value, QTensor):
            assert tensor.layer is not None
            arrays = encode(tensor.layer, tensor.value)
            shards.add_together({f"{tensor.layer}.{part}": array for part, array in arrays.items()})
        else:
            shards.add(tensor.name, cast_float(tensor.value, job.dtype))
    files = shards.close()
    config, extra_files = _config_and_files(job.source, folder)
    config["quantization_config"] = dict(quantization)
    if job.dtype is not None:
        config.pop("torch_dtype", None)
        config["dtype"] = job.dtype
    (folder / "config.json").write_bytes(orjson.dumps(config, option=orjson.OPT_INDENT_2))
    return [*files, "config.json", *extra_files]


def _config_and_files(source: Path, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The configuration of the float model, and the files next to it; both lie inside a GGUF file."""
    if source.suffix != ".gguf":
        return read_config(source), copy_tokenizer_files(source, folder)
    from transformers import AutoTokenizer

    from fewbit.checkpoints._open import open_weights

    before = set(folder.iterdir())
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, local_files_only=True)
        tokenizer.save_pretrained(folder)
    except (ValueError, KeyError, TypeError, AttributeError, NotImplementedError, ImportError, OSError):
        pass  # a file without a tokenizer, or one that transformers does not know: the result has none either
    return open_weights(source).config(), sorted(file.name for file in set(folder.iterdir()) - before)


def read_config(source: Path) -> dict[str, Any]:
    """`config.json` without what only the original could use; empty if there is none.

    Code of the hub (`auto_map`) is not written and never run.
    """
    file = source / "config.json"
    if not file.is_file():
        return {}
    try:
        config = orjson.loads(file.read_bytes())
    except ValueError as error:
        raise ModelError(
            "config.json is no JSON", code="config-unreadable", where=str(file), hint="download the model again"
        ) from error
    assert isinstance(config, dict)
    for key in ("quantization_config", "_pre_quantization_dtype", "_name_or_path", "name_or_path", "auto_map"):
        config.pop(key, None)
    return config


def quantization_of(folder: Path) -> dict[str, Any]:
    """The section `quantization_config` of a folder; empty if there is none.

    Some tools write `compression_config`, or a file `quantize_config.json` or `quant_config.json` instead.
    """
    for name in ("config.json", "quantize_config.json", "quant_config.json"):
        file = folder / name
        if not file.is_file():
            continue
        try:
            content = orjson.loads(file.read_bytes())
        except ValueError:
            continue
        if name != "config.json":
            return content if isinstance(content, dict) else {}
        nested = content.get("text_config") if isinstance(content, dict) else None
        for section in (content, nested):
            if isinstance(section, dict):
                for key in ("quantization_config", "compression_config"):
                    if isinstance(section.get(key), dict):
                        return dict(section[key])
    return {}


def copy_tokenizer_files(source: Path, folder: Path) -> list[str]:
    """Copy tokenizer, processor, chat template and generation settings; returns their names."""
    if not source.is_dir():
        return []
    names = sorted({file.name for pattern in _COPIED for file in source.glob(pattern) if file.is_file()})
    for name in names:
        (folder / name).write_bytes((source / name).read_bytes())
    return names


def cast_float(value: Array, dtype: str | None) -> Tensor:
    """A torch tensor; floats in another dtype if one is named."""
    import torch

    tensor = torch.as_tensor(value)
    return tensor.to(getattr(torch, dtype)) if dtype is not None and tensor.is_floating_point() else tensor


def split_layers(layers: Mapping[str, LayerFormat | None]) -> tuple[dict[str, LayerFormat], list[str]]:
    """The quantized layers with their formats, and the names of the others."""
    quantized = {name: layer for name, layer in layers.items() if layer is not None}
    return quantized, [name for name in layers if name not in quantized]
