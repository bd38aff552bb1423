# SPDX-License-Identifier: Apache-2.0
"""Tiny language models with channels that stand out, as large ones have them."""

import torch
from tests.tiny_models import transformer

_WIDE = {
    "llama": {"hidden_size": 32, "intermediate_size": 48, "head_dim": 8},
    "qwen3": {"hidden_size": 32, "intermediate_size": 48, "head_dim": 8},
    "gemma": {"hidden_size": 32, "intermediate_size": 48, "head_dim": 8},
    "opt": {"hidden_size": 32, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "gpt2": {"n_embd": 32},
}
_NORMS = ("input_layernorm", "post_attention_layernorm", "self_attn_layer_norm", "final_layer_norm", "ln_1", "ln_2")
_READERS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "fc1")
_TRANSPOSED = ("c_attn", "c_fc")  # GPT-2 keeps weights as [in, out]
_CHANNELS = [3, 11]


def planted(name, size=16.0):
    """A model that answers as before, though norms give two channels so many times larger; weights make up for it."""
    layers = {"n_layer" if name == "gpt2" else "num_hidden_layers": 1}
    model = transformer(name, **_WIDE[name], **layers)
    with torch.no_grad():
        for path, module in model.named_modules():
            kind = path.rpartition(".")[2]
            if kind in _NORMS and any(map(str.isdigit, path.split("."))):
                least = 1.0 if name == "gemma" else 0.0  # Gemma's norms multiply by 1 + weight
                module.weight[_CHANNELS] = (module.weight[_CHANNELS] + least) * size - least
                if getattr(module, "bias", None) is not None:
                    module.bias[_CHANNELS] *= size
            elif kind in _READERS:
                module.weight[:, _CHANNELS] /= size
            elif kind in _TRANSPOSED:
                module.weight[_CHANNELS] /= size
    return model


def texts(count, seed=0, length=24):
    """Random token ids, as items."""
    draw = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(4, 40, (2, length), generator=draw)} for _ in range(count)]


def off(model, made, items):
    """What the answers are off, over what they are."""
    with torch.no_grad():
        pairs = [(model(**item).logits.double(), made(**item).logits.double()) for item in items]
    return float(sum((a - b).square().sum() for a, b in pairs) / sum(a.square().sum() for a, _ in pairs))
