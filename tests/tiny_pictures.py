# SPDX-License-Identifier: Apache-2.0
"""Small models that see, for the tests of training."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def detr() -> Any:
    """A small detector."""
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    torch.manual_seed(0)
    eyes = {"embedding_size": 32, "hidden_sizes": [32], "depths": [1], "layer_type": "basic"}
    model = DetrForObjectDetection(
        DetrConfig(
            use_timm_backbone=False, backbone_config=ResNetConfig(**eyes, out_features=["stage1"]), num_labels=2,
            d_model=32, num_queries=3, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=64, decoder_ffn_dim=64,
            encoder_attention_heads=4, decoder_attention_heads=4, dropout=0.0,
        )
    )  # fmt: skip
    return begun_as_in_the_paper(model)


def conditional_detr() -> Any:
    """Its losses are all sums over objects, divided by their number."""
    from transformers import ConditionalDetrConfig, ConditionalDetrForObjectDetection, ResNetConfig

    torch.manual_seed(0)
    eyes = ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic", out_features=["stage1"])
    sizes = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "encoder_layers": 1, "decoder_layers": 2}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = ConditionalDetrConfig(
        use_timm_backbone=False, backbone_config=eyes, num_labels=2, num_queries=4, dropout=0.0, **sizes, **heads
    )
    return ConditionalDetrForObjectDetection(config).eval()


def begun_as_in_the_paper(model: Any) -> Any:
    """A detector with other initial weights: those of transformers' configuration learn slowly."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and "class_" not in name:
            nn.init.xavier_uniform_(parameter)
        elif parameter.ndim == 4:
            nn.init.kaiming_normal_(parameter)
    return model
