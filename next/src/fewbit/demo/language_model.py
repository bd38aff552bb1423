# SPDX-License-Identifier: Apache-2.0
"""A language model of the demo: a random Llama of a few kilobytes as a Hugging Face folder, by numpy alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson

_WIDTH, _INNER, _VOCABULARY, _LAYERS = 64, 128, 128, 2
_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": _WIDTH, "intermediate_size": _INNER,
    "num_hidden_layers": _LAYERS, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": _VOCABULARY,
    "max_position_embeddings": 128, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "dtype": "float16", "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


def write_language_model(folder: Path) -> None:
    """Write the folder; its weights are random, so it says nothing."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (_VOCABULARY, _WIDTH), "model.norm": (_WIDTH,)}
    for layer in range(_LAYERS):
        block = f"model.layers.{layer}"
        shapes |= {f"{block}.self_attn.{name}_proj": (_WIDTH, _WIDTH) for name in "qkvo"}
        shapes |= {f"{block}.mlp.gate_proj": (_INNER, _WIDTH), f"{block}.mlp.up_proj": (_INNER, _WIDTH)}
        shapes |= {f"{block}.mlp.down_proj": (_WIDTH, _INNER)}
        shapes |= {f"{block}.input_layernorm": (_WIDTH,), f"{block}.post_attention_layernorm": (_WIDTH,)}
    header, content = {}, b""
    for name, shape in shapes.items():
        values = draw.standard_normal(shape) * 0.05 if len(shape) == 2 else np.ones(shape)
        data = values.astype(np.float16).tobytes()
        header[f"{name}.weight"] = {
            "dtype": "F16", "shape": shape, "data_offsets": [len(content), len(content) + len(data)]
        }  # fmt: skip
        content += data
    text = orjson.dumps({"__metadata__": {"format": "pt"}, **header})
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + content)
    (folder / "config.json").write_bytes(orjson.dumps(_CONFIG, option=orjson.OPT_INDENT_2))
