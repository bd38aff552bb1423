# SPDX-License-Identifier: Apache-2.0
"""A tiny language model in which some channels of what layers read stand out, as they do in large ones."""

from __future__ import annotations

from typing import Any

import torch

from tiny_models import transformer

CHANNELS, TIMES = [3, 41], 40.0


def planted(name: str = "llama", **changes: Any) -> Any:
    """The model: gains of two channels far above the others, and weights that take it back, so it computes the same."""
    model = transformer(name, **{"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, **changes})
    norms = {"input_layernorm": ("q_proj", "k_proj", "v_proj"), "post_attention_layernorm": ("gate_proj", "up_proj")}
    with torch.no_grad():
        for block in model.model.layers:
            for norm, readers in norms.items():
                getattr(block, norm).weight[CHANNELS] *= TIMES
                for part in (block.self_attn, block.mlp):
                    for reader in readers:
                        if hasattr(part, reader):
                            getattr(part, reader).weight[:, CHANNELS] /= TIMES
    return model
