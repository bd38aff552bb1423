# SPDX-License-Identifier: Apache-2.0
"""Tiny language models in Hugging Face folders, and their weights quantized by rounding."""

from pathlib import Path

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, LlamaConfig

from fewbit.algorithms._scale_search import search_scales
from fewbit.checkpoints._base import CheckpointJob, LayerFormat, NamedTensor
from fewbit.checkpoints._verification import write_verified
from fewbit.numerics.qtensor import QTensor

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 64, "initializer_range": 0.2,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def save_llama(folder: Path, dtype=torch.bfloat16, **changes) -> Path:
    """A random Llama."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(LlamaConfig(**SIZES | changes), dtype=dtype).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of the files of a folder."""
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as stream:
            tensors |= {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    return tensors


def write_quantized(source: Path, folder: Path, checkpoint, layer: LayerFormat, *, ignore: str = "lm_head"):
    """Round all linear layers, write and verify them; returns the float values of every tensor."""
    folder.mkdir(parents=True)
    values, tensors, layers = {}, [], {"lm_head": None}
    for name, value in read_tensors(source).items():
        values[name] = value
        owner = name.removesuffix(".weight")
        if not name.endswith("proj.weight"):
            tensors.append(NamedTensor(name, value))
            continue
        layers[owner] = None if ignore in name else layer
        if layers[owner] is None:
            tensors.append(NamedTensor(name, value))
            continue
        tensor = QTensor.encode(value.float(), search_scales(value.float(), layer.weight))
        tensors.append(NamedTensor(name, tensor, owner))
        values[name] = tensor.dequantize()
    files, count = write_verified(checkpoint, folder, tensors, CheckpointJob(source, layers))
    assert count == len(values) and all((folder / file).is_file() for file in files)
    return values
