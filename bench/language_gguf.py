# SPDX-License-Identifier: Apache-2.0
"""A Llama out of a GGUF file: its configuration and its weights as transformers names and lays them out."""

from __future__ import annotations

from typing import Any

import gguf
import torch
from torch import Tensor

LAYERS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
ENDS = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
NUMBERS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
}


def config_of(reader: gguf.GGUFReader) -> dict[str, Any]:
    """The arguments of `LlamaConfig`."""
    found = {name: _number(reader, key) for name, key in NUMBERS.items()}
    theta = float(_number(reader, "rope.freq_base"))
    words = next(tensor.shape[-1] for tensor in reader.tensors if tensor.name == "token_embd.weight")
    rope = {"rope_type": "default", "rope_theta": theta}
    return {**found, "vocab_size": int(words), "tie_word_embeddings": True, "rope_parameters": rope}


def state_of(reader: gguf.GGUFReader) -> dict[str, Tensor]:
    """The weights in float32, the head tied to the embedding."""
    heads = {"attn_q": _number(reader, "attention.head_count"), "attn_k": _number(reader, "attention.head_count_kv")}
    state = {}
    for tensor in reader.tensors:
        weight = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type)).float()
        if tensor.name in ENDS:
            state[ENDS[tensor.name]] = weight
            continue
        _, block, kind, _ = tensor.name.split(".")
        if kind in heads:  # llama.cpp has the two halves of a rotation side by side
            weight = weight.reshape(heads[kind], -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
        state[f"model.layers.{block}.{LAYERS[kind]}.weight"] = weight
    return state | {"lm_head.weight": state["model.embed_tokens.weight"]}


def _number(reader: gguf.GGUFReader, key: str) -> Any:
    return reader.fields[f"llama.{key}"].contents()
