# SPDX-License-Identifier: Apache-2.0
"""The models and inputs of the benchmarks, the same in every environment: weights and tokens are read from files."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

WORK = Path(__file__).parents[1] / ".bench"
DECODER = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_position_embeddings": 2048,
}
"""A Llama of 0.37 billion parameters."""


def minilm(folder: Path = WORK / "assets" / "minilm") -> nn.Module:
    """all-MiniLM-L6-v2 with its own weights, mapped from the file: copy it before changing it."""
    transformers = load_transformers()
    config = transformers.BertConfig(**json.loads((folder / "config.json").read_text()))
    return _filled(transformers.BertModel, config, folder / "model.safetensors")


def decoder(layers: int = 24) -> nn.Module:
    """The first layers of a Llama with random weights, mapped from the file: copy it before changing it."""
    transformers = load_transformers()
    config = transformers.LlamaConfig(**{**DECODER, "num_hidden_layers": layers}, use_cache=False)
    return _filled(transformers.LlamaForCausalLM, config, decoder_file())


def decoder_file() -> Path:
    """The decoder's weights, made from a seed once: normal, with the few large input channels real ones have."""
    path = WORK / "models" / "decoder.safetensors"
    if not path.exists():
        from safetensors.torch import save_file

        transformers = load_transformers()
        with torch.device("meta"):
            shapes = transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER)).state_dict()
        draw = torch.Generator().manual_seed(0)
        tensors = {name: _random(tensor, draw) for name, tensor in shapes.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path.with_suffix(".unfinished"))
        path.with_suffix(".unfinished").rename(path)
    return path


def inputs(batch: int, length: int, seed: int = 0) -> dict[str, Tensor]:
    """Random tokens without padding."""
    draw = torch.Generator().manual_seed(seed)
    words = torch.randint(1000, 30000, (batch, length), generator=draw)
    return {"input_ids": words, "attention_mask": torch.ones_like(words)}


def calibration(model: str) -> list[dict[str, Tensor]]:
    """The calibration set: 64 passages for MiniLM in batches of 8, padded; 8 × 64 tokens for the decoder."""
    if model == "decoder":
        return [inputs(1, 64, seed) for seed in range(8)]
    from safetensors.torch import load_file

    stored = load_file(WORK / "models" / "passages.safetensors")
    count = len(stored) // 2
    return [{name: stored[f"{i}.{name}"] for name in ("input_ids", "attention_mask")} for i in range(count)]


def judging(model: str) -> list[dict[str, Tensor]]:
    """Inputs that no calibration saw, to weigh errors by what layers really read."""
    if model == "decoder":
        return [inputs(1, 64, seed) for seed in (100, 101)]
    from safetensors.torch import load_file

    stored = load_file(WORK / "models" / "judging.safetensors")
    return [stored]


def linears(model: nn.Module) -> dict[str, nn.Module]:
    """The layers every side quantizes: all linear layers but the head."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    return {name: module for name, module in found.items() if not name.endswith("lm_head")}


def held_bytes(model: nn.Module | list[nn.Module]) -> int:
    """Bytes of every tensor a model or several keep, shared memory once.

    Parameters and buffers are not all of it: kernels keep weights in layouts of their own, as plain attributes.
    """
    found: dict[tuple[str, int], int] = {}
    seen: set[int] = set()
    stack: list[Any] = [model]
    while stack:
        one = stack.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | FunctionType):
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            inner = one.__tensor_flatten__()[0] if hasattr(one, "__tensor_flatten__") else []
            stack += [getattr(one, name) for name in inner]
            if not inner:
                found |= _memory(one)
        elif isinstance(one, Mapping):
            stack += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            stack += one
        elif isinstance(one, MethodType):
            stack.append(one.__self__)
        elif isinstance(one, partial):
            stack += [one.func, one.args, one.keywords]
        else:
            stack += getattr(one, "__dict__", {}).values()
            stack += [getattr(one, name) for name in getattr(type(one), "__slots__", ()) if hasattr(one, name)]
    return sum(found.values())


def _memory(tensor: Tensor) -> dict[tuple[str, int], int]:
    if tensor.is_mkldnn or tensor.layout is not torch.strided:  # no storage to ask
        return {("opaque", id(tensor)): tensor.numel() * tensor.element_size()}
    storage = tensor.untyped_storage()
    return {("storage", storage.data_ptr()): storage.nbytes()}


def load_transformers() -> Any:
    """transformers, loaded while this folder is no place to import from.

    It takes any module called `kernels` for an optional package of its own, and bench/kernels.py is one.
    """
    path = list(sys.path)
    sys.path[:] = [entry for entry in path if Path(entry or ".").resolve() != Path(__file__).parent]
    try:
        import transformers

        _ = transformers.BertModel, transformers.LlamaForCausalLM  # loaded on first use
    finally:
        sys.path[:] = path
    return transformers


def _filled(make: Any, config: Any, file: Path) -> nn.Module:
    from safetensors.torch import load_file

    model = make(config)
    stored = load_file(file)  # mapped, so that the sides share one copy in memory
    model.load_state_dict({name: stored[name] for name, _ in model.named_parameters()}, strict=False, assign=True)
    return model.eval().requires_grad_(False)


def _random(like: Tensor, draw: torch.Generator) -> Tensor:
    if like.ndim == 1:
        return torch.ones(like.shape)
    values = torch.empty(like.shape).normal_(std=0.02, generator=draw)
    values[:, torch.randint(like.shape[1], (like.shape[1] // 128,), generator=draw)] *= 4
    return values
