# SPDX-License-Identifier: Apache-2.0
"""Which of llama.cpp's architectures a Hugging Face model is, and whether llama.cpp computes what it does.

Tensor names come from the gguf library and hyperparameters from names that all configurations share. What remains is a
line for each architecture: where llama.cpp computes something that its file must be made for, or computes only one of
several things a configuration may ask for. An architecture without a line is refused: it might load and talk nonsense.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewbit.errors import UsageError


@dataclass(frozen=True)
class Architecture:
    """What is particular about an architecture of llama.cpp.

    Args:
        name: its name in the file.
        activation: the activation functions it computes, by the names configurations use.
        interleaved: whether rotary positions turn neighbouring elements; then rows of queries and keys are reordered.
        norm_shift: what its norms add to their weights, and llama.cpp expects to be in them.
        window_every: one layer of so many sees all positions, the others those of a window; 0 if all see all.
        all_biases: whether it reads the biases of all linear layers, not only of queries, keys and values.
    """

    name: str
    activation: tuple[str, ...] = ("silu", "swish")
    interleaved: bool = False
    norm_shift: float = 0.0
    window_every: int = 0
    all_biases: bool = False


_GELU = ("gelu_pytorch_tanh", "gelu_new")
_KNOWN = {
    "llama": Architecture("llama", interleaved=True, all_biases=True),
    "mistral": Architecture("llama", interleaved=True, all_biases=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "gemma": Architecture("gemma", _GELU, norm_shift=1.0),
    "gemma2": Architecture("gemma2", _GELU, norm_shift=1.0, window_every=2),
    "gemma3_text": Architecture("gemma3", _GELU, norm_shift=1.0, window_every=6),
    "phi3": Architecture("phi3"),
    "gpt2": Architecture("gpt2", _GELU, all_biases=True),
}


def architecture(model: Any) -> Architecture:
    """What a model is to llama.cpp.

    Raises:
        UsageError: an architecture that is not known, or a configuration that llama.cpp computes differently.
    """
    config = model.config
    known = _KNOWN.get(config.model_type)
    if known is None or not type(model).__name__.removeprefix("Quantized").endswith(("ForCausalLM", "LMHeadModel")):
        raise UsageError(
            f"a {type(model).__name__} (model type {config.model_type!r}) cannot be written as GGUF",
            expected=f"a causal language model of type {', '.join(_KNOWN)}",
            try_="format='safetensors' or 'compressed-tensors', or llama.cpp's own converter for the float model",
        )
    faults = [*_activation_faults(config, known), *_attention_faults(config, known), *_rope_faults(config, known)]
    if faults:
        raise UsageError(
            f"llama.cpp's {known.name!r} computes something else than this model: " + "; ".join(faults),
            where="the model's configuration",
            expected="a configuration that llama.cpp can compute",
        )
    return known


def row_order(rows: int, heads: int) -> Tensor:
    """Rows of queries or keys so that those that turn together are neighbours; in the model they are half a head apart.

    >>> row_order(8, 2).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    return torch.arange(rows).reshape(heads, 2, -1).transpose(1, 2).reshape(-1)


def head_size(config: Any) -> int:
    """Elements of one attention head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def rope_of(config: Any, kind: str = "full_attention") -> dict[str, Any]:
    """How positions are turned, in layers of a kind."""
    found: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    return found.get(kind, {}) if "full_attention" in found else found


def _activation_faults(config: Any, known: Architecture) -> list[str]:
    names = ("hidden_activation", "hidden_act", "activation_function")
    found = next((getattr(config, name) for name in names if getattr(config, name, None)), None)
    return [] if found in known.activation else [f"its activation is {found!r}, not {known.activation[0]!r}"]


def _attention_faults(config: Any, known: Architecture) -> list[str]:
    faults = []
    scalar, size = getattr(config, "query_pre_attn_scalar", None), head_size(config)
    if scalar is not None and scalar != size:
        faults.append(f"queries are scaled by {scalar} (query_pre_attn_scalar), not by the head's size {size}")
    every = known.window_every
    kinds = getattr(config, "layer_types", None) or []
    wanted = ["sliding_attention" if every and (n + 1) % every else "full_attention" for n in range(len(kinds))]
    if list(kinds) != wanted:
        faults.append(
            f"its layers attend in another pattern than one of {every} to all" if every else "it has a window"
        )
    if getattr(config, "scale_attn_by_inverse_layer_idx", False) or not getattr(config, "scale_attn_weights", True):
        faults.append("attention is scaled layer by layer, or not at all")
    return faults


def _rope_faults(config: Any, known: Architecture) -> list[str]:
    rope = rope_of(config)
    kind = rope.get("rope_type", "default")
    usual = {"rope_type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings"}
    if kind == "llama3" and known.name == "llama":
        usual |= {"low_freq_factor", "high_freq_factor"}
    elif kind not in ("default", "linear", "yarn"):
        return [f"rotary positions of kind {kind!r}"]
    faults = [f"{name} of rotary positions" for name in sorted(rope.keys() - usual) if rope[name] is not None]
    if known.interleaved and rope.get("partial_rotary_factor", 1.0) != 1.0:
        faults.append("positions turn a part of each head only")
    return faults
