# SPDX-License-Identifier: Apache-2.0
"""What a model's configuration says, in GGUF's words: sizes, norms, windows, rotary positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fewbit.exporters._gguf_architecture import Architecture, head_size, rope_of


def describe(writer: Any, config: Any, known: Architecture) -> list[str]:
    """Write the hyperparameters; returns what a user should know of them."""
    heads = config.num_attention_heads
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    inner = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None)
    writer.add_feed_forward_length(inner or 4 * config.hidden_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(getattr(config, "num_key_value_heads", None) or heads)
    writer.add_key_length(head_size(config))
    writer.add_value_length(head_size(config))
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if getattr(config, name, None):
            getattr(writer, f"add_{name}")(getattr(config, name))
    _describe_rope(writer, config, known)
    window = getattr(config, "sliding_window", None) or 0
    if known.window_every and window:
        writer.add_sliding_window(window)
    elif window and window < config.max_position_embeddings and getattr(config, "use_sliding_window", True):
        return [
            f"llama.cpp's {known.name!r} knows no window: beyond {window} positions it attends to more than the model"
        ]
    return []


def rope_factors(config: Any) -> Tensor | None:
    """By what the frequencies of rotary positions are divided, where Llama 3's rule says so; `[half a head]`."""
    rope = rope_of(config)
    if rope.get("rope_type") != "llama3":
        return None
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    powers = torch.arange(0, head_size(config), 2, dtype=torch.int64).float() / head_size(config)
    plain: Tensor = 1.0 / rope["rope_theta"] ** powers
    return plain / frequencies.float()


def _describe_rope(writer: Any, config: Any, known: Architecture) -> None:
    import gguf

    rope = rope_of(config)
    if not rope:
        return
    writer.add_rope_dimension_count(int(head_size(config) * rope.get("partial_rotary_factor", 1.0)))
    writer.add_rope_freq_base(rope["rope_theta"])
    if known.window_every:
        writer.add_rope_freq_base_swa(rope_of(config, "sliding_attention")["rope_theta"])
    kinds = {"linear": gguf.RopeScalingType.LINEAR, "yarn": gguf.RopeScalingType.YARN}
    if rope["rope_type"] in kinds:
        writer.add_rope_scaling_type(kinds[rope["rope_type"]])
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        before = rope.get("original_max_position_embeddings") or config.max_position_embeddings
        writer.add_rope_scaling_orig_ctx_len(before)
