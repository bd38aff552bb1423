# SPDX-License-Identifier: Apache-2.0
"""What llama.cpp calls the tensors and settings of a Hugging Face model, and whether it computes what the model does.

An architecture is one entry here: the names of its tensors, and where llama.cpp computes one thing only of several that
a configuration may ask for. A model that is not here, or asks for something else, is refused: it might load and talk
nonsense.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fewbit.errors import ModelError

_LLAMA = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm", "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj", "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
    "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm", "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj", "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
}  # fmt: skip
_QK_NORMS = {
    "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_norm", "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_norm",
}  # fmt: skip
_GEMMA2 = _LLAMA | {
    "blk.{}.post_attention_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_norm": "model.layers.{}.pre_feedforward_layernorm",
    "blk.{}.post_ffw_norm": "model.layers.{}.post_feedforward_layernorm",
}
_PHI3 = {key: name for key, name in _LLAMA.items() if not re.search(r"attn_[qkv]$|ffn_gate", key)} | {
    "blk.{}.attn_qkv": "model.layers.{}.self_attn.qkv_proj", "blk.{}.ffn_up": "model.layers.{}.mlp.gate_up_proj",
}  # fmt: skip
_GPT2 = {
    "token_embd": "transformer.wte", "position_embd": "transformer.wpe", "output_norm": "transformer.ln_f",
    "output": "lm_head", "blk.{}.attn_norm": "transformer.h.{}.ln_1", "blk.{}.attn_qkv": "transformer.h.{}.attn.c_attn",
    "blk.{}.attn_output": "transformer.h.{}.attn.c_proj", "blk.{}.ffn_norm": "transformer.h.{}.ln_2",
    "blk.{}.ffn_up": "transformer.h.{}.mlp.c_fc", "blk.{}.ffn_down": "transformer.h.{}.mlp.c_proj",
}  # fmt: skip
ROPE_FACTORS = "rope_freqs.weight"
"""A tensor that no model has: factors of the rotary frequencies."""
_COMPUTED = re.compile(r"\.(rotary_emb\.inv_freq|attn\.bias|attn\.masked_bias)$")
"""Buffers of old files that every runtime computes."""


@dataclass(frozen=True)
class Architecture:
    """One architecture of llama.cpp.

    Args:
        name: in the file.
        names: tensors of the file and what transformers calls them, without `.weight` and `.bias`.
        activations: the activation functions it computes, as configurations name them.
        interleaved: whether rotary embeddings rotate neighbors: rows of queries and keys are then reordered.
        norm_shift: what the norms of the model add to their weights, and llama.cpp expects to be in them.
        window_every: one layer in so many sees all positions, the others a window; 0 if all see all.
        biases: tensors whose biases it reads.
        transposed: whether linear layers are stored as [in, out].
    """

    name: str
    names: dict[str, str] = field(default_factory=lambda: _LLAMA)
    activations: tuple[str, ...] = ("silu", "swish")
    interleaved: bool = False
    norm_shift: float = 0.0
    window_every: int = 0
    biases: str = r"attn_[qkv]$"
    transposed: bool = False

    @cached_property
    def _sources(self) -> dict[str, str]:
        return {name: key for key, name in self.names.items()}

    def target(self, name: str) -> str | None:
        """The name in the file for a tensor of transformers; `None` if there is no place for it.

        >>> ARCHITECTURES["llama"].target("model.layers.3.mlp.up_proj.weight")
        'blk.3.ffn_up.weight'
        """
        layer, _, own = name.rpartition(".")
        block = re.search(r"\.(\d+)\.", layer)
        key = self._sources.get(layer.replace(block[0], ".{}.", 1) if block else layer)
        if key is None or own not in ("weight", "bias"):
            return None
        is_norm = "norm" in key
        if own == "bias" and not (re.search(self.biases, key) or (is_norm and self.name == "gpt2")):
            return None
        return f"{key.format(block[1]) if block else key}.{own}"

    def source(self, target: str) -> str | None:
        """The name in transformers for a tensor of the file."""
        key, _, own = target.rpartition(".")
        block = re.match(r"blk\.(\d+)\.", key)
        name = self.names.get(f"blk.{{}}.{key[block.end() :]}" if block else key)
        return None if name is None else f"{name.format(block[1]) if block else name}.{own}"

    def is_transposed(self, target: str) -> bool:
        """Whether the model stores this tensor as [in, out]."""
        return self.transposed and bool(re.search(r"(attn_qkv|attn_output|ffn_up|ffn_down)\.weight$", target))

    def heads_of(self, target: str, heads: int, heads_kv: int) -> int:
        """The heads whose rows are reordered; 0 for tensors that stay in order."""
        if not self.interleaved:
            return 0
        return heads if ".attn_q." in target else heads_kv if ".attn_k." in target else 0

    def shift_of(self, target: str) -> float:
        """What is added to the values of a tensor."""
        return self.norm_shift if target.endswith("norm.weight") else 0.0


_GELU = ("gelu_pytorch_tanh", "gelu_new")
ARCHITECTURES = {
    "llama": Architecture("llama", interleaved=True, biases="."),
    "mistral": Architecture("llama", interleaved=True, biases="."),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3", _LLAMA | _QK_NORMS),
    "gemma": Architecture("gemma", activations=_GELU, norm_shift=1.0),
    "gemma2": Architecture("gemma2", _GEMMA2, _GELU, norm_shift=1.0, window_every=2),
    "gemma3_text": Architecture("gemma3", _GEMMA2 | _QK_NORMS, _GELU, norm_shift=1.0, window_every=6),
    "phi3": Architecture("phi3", _PHI3),
    "gpt2": Architecture("gpt2", _GPT2, _GELU, biases=".", transposed=True),
}
"""By the model type of transformers."""


def is_computed(name: str) -> bool:
    """Whether a tensor is a buffer that llama.cpp computes itself."""
    return _COMPUTED.search(name) is not None


def find_architecture(config: Any) -> Architecture:
    """What a configuration of transformers is to llama.cpp.

    Raises:
        ModelError: it has no such architecture, or computes something else; all reasons.
    """
    kind = ARCHITECTURES.get(config.model_type)
    if kind is None:
        raise ModelError(
            f"models of type {config.model_type!r} cannot be written as GGUF", code="gguf-architecture",
            expected=", ".join(ARCHITECTURES), hint="{format=compressed-tensors}",
        )  # fmt: skip
    problems = [*_activation_problems(config, kind), *_attention_problems(config, kind), *_rope_problems(config, kind)]
    if problems:
        raise ModelError(
            f"llama.cpp computes {kind.name!r} differently: {'; '.join(problems)}", code="gguf-architecture",
            where="config.json", expected="a configuration that llama.cpp can compute",
            hint="{format=compressed-tensors}",
        )  # fmt: skip
    return kind


def describe(writer: Any, config: Any, kind: Architecture) -> list[str]:
    """Write the hyperparameters; returns what a user should know of them."""
    heads, size = config.num_attention_heads, head_size(config)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    width = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None)
    writer.add_feed_forward_length(width or 4 * config.hidden_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads_kv(config))
    writer.add_key_length(size)
    writer.add_value_length(size)
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if getattr(config, name, None):
            getattr(writer, f"add_{name}")(getattr(config, name))
    _describe_rope(writer, config, kind)
    window = getattr(config, "sliding_window", None) or 0
    if kind.window_every and window:
        writer.add_sliding_window(window)
    elif window and window < config.max_position_embeddings and getattr(config, "use_sliding_window", True):
        return [f"llama.cpp's {kind.name!r} has no sliding window: beyond {window} positions it attends to all"]
    return []


def head_size(config: Any) -> int:
    """Elements of one attention head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def heads_kv(config: Any) -> int:
    """Heads of keys and values."""
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def reorder_rows(rows: int, heads: int) -> np.ndarray:
    """Which row of queries or keys comes next, so that those that rotate together are neighbors.

    >>> reorder_rows(8, 2).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    return np.arange(rows).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)


def rope_factors(config: Any) -> np.ndarray | None:
    """What Llama 3 divides the rotary frequencies by, float32 [head size / 2]; `None` for other kinds."""
    rope = _rope(config)
    if rope.get("rope_type") != "llama3":
        return None
    size = head_size(config)
    wavelength = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, size, 2, dtype=np.float64) / size)
    context, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((context / wavelength - low) / (high - low), 0, 1)
    return np.asarray(1 / (smooth + (1 - smooth) / factor), np.float32)


def _rope(config: Any, kind: str = "full_attention") -> dict[str, Any]:
    """Settings of rotary embeddings, in layers of a kind."""
    settings: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    return settings.get(kind, {}) if "full_attention" in settings else settings


def _describe_rope(writer: Any, config: Any, kind: Architecture) -> None:
    import gguf

    rope = _rope(config)
    if not rope:
        return
    writer.add_rope_dimension_count(int(head_size(config) * rope.get("partial_rotary_factor", 1.0)))
    writer.add_rope_freq_base(rope["rope_theta"])
    if kind.window_every:
        writer.add_rope_freq_base_swa(_rope(config, "sliding_attention")["rope_theta"])
    scaling = {"linear": gguf.RopeScalingType.LINEAR, "yarn": gguf.RopeScalingType.YARN}.get(rope["rope_type"])
    if scaling is not None:
        writer.add_rope_scaling_type(scaling)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        context = rope.get("original_max_position_embeddings") or config.max_position_embeddings
        writer.add_rope_scaling_orig_ctx_len(context)


def _activation_problems(config: Any, kind: Architecture) -> list[str]:
    names = ("hidden_activation", "hidden_act", "activation_function")
    name = next((getattr(config, key) for key in names if getattr(config, key, None)), None)
    return [] if name in kind.activations else [f"its activation is {name!r}, not {kind.activations[0]!r}"]


def _attention_problems(config: Any, kind: Architecture) -> list[str]:
    problems = []
    scalar, size, every = getattr(config, "query_pre_attn_scalar", None), head_size(config), kind.window_every
    if scalar is not None and scalar != size:
        problems.append(f"queries are scaled by {scalar} (query_pre_attn_scalar), not by the head size {size}")
    layers = list(getattr(config, "layer_types", None) or [])
    wanted = ["sliding_attention" if every and (n + 1) % every else "full_attention" for n in range(len(layers))]
    if layers != wanted:
        problems.append(f"its layers do not attend to all positions in one of {every}" if every else "it has a window")
    if getattr(config, "scale_attn_by_inverse_layer_idx", False) or not getattr(config, "scale_attn_weights", True):
        problems.append("attention is scaled layer by layer, or not at all")
    return problems


def _rope_problems(config: Any, kind: Architecture) -> list[str]:
    rope = _rope(config)
    name = rope.get("rope_type", "default")
    known = {"rope_type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings"}
    if name == "llama3" and kind.name == "llama":
        known |= {"low_freq_factor", "high_freq_factor"}
    elif name not in ("default", "linear", "yarn"):
        return [f"rotary embeddings of type {name!r}"]
    problems = [f"{key} of rotary embeddings" for key in sorted(rope.keys() - known) if rope[key] is not None]
    if kind.interleaved and rope.get("partial_rotary_factor", 1.0) != 1.0:
        problems.append("rotary embeddings rotate a part of each head only")
    return problems
