# SPDX-License-Identifier: Apache-2.0
"""What a process of parts `detection` and `segmentation` of bench/sparsity.py does."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparsity_worker import by_place

_data = by_place("sparsity_data")
SIZE = {"detection": 32, "segmentation": 32}
LR = {"detection": 1e-3, "segmentation": 5e-3}


def learn(part: str, work: str, pictures: int, device: str, steps: int, out: str) -> dict[str, Any]:
    """The model, trained in float; nothing is done if it lies there."""
    if (Path(out) / "config.json").exists():
        return {}
    from fewbit.tuning.finetune import finetune

    began = time.perf_counter()
    made: Any = finetune(
        _model(part), _shapes(part, work, pictures), max_steps=steps, lr=LR[part], batch_size=16, device=device,
        tensorboard=False,
    )  # fmt: skip
    record = made.fewbit_record.facts
    made.save_pretrained(out)
    return {"seconds": time.perf_counter() - began, "numbers": record["after"]}


def sparsify(
    part: str, work: str, pictures: int, device: str, model: str, recipe: dict[str, Any], steps: int, out: str
) -> dict[str, Any]:
    """Seconds of the whole call, and what its record says: numbers and bytes before and after, zeros."""
    from fewbit.sparsity.recipe import Recipe
    from fewbit.sparsity.verb import sparsify as call

    training = recipe["mode"] == "training-aware"
    options: dict[str, Any] = {"max_steps": steps, "lr": LR[part] / 3, "tensorboard": False} if training else {}
    began = time.perf_counter()
    call(
        model, _shapes(part, work, pictures), mode=recipe["mode"], recipe=Recipe.from_dict(recipe), output=out,
        batch_size=16, device=device, **options,
    )  # fmt: skip
    seconds = time.perf_counter() - began
    facts = json.loads((Path(out) / "record.json").read_text())["facts"]
    told = {name: {key: facts[name][key] for key in ("numbers", "metric", "bytes")} for name in ("before", "after")}
    return {"seconds": seconds, "zeros": facts["after"]["sparsity"]["share"], "speed": facts.get("speed"), **told}


def _shapes(part: str, work: str, pictures: int) -> str:
    outlines, count = part == "segmentation", 2 if part == "segmentation" else 1
    judged = max(16, pictures // 4)
    given = {"train": pictures, "val": judged, "outlines": outlines, "count": count, "size": SIZE[part]}
    return str(_data.shapes(Path(work) / "shapes", **given))


def _model(part: str) -> nn.Module:
    return _detr() if part == "detection" else _segformer()


def _segformer() -> nn.Module:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    torch.manual_seed(0)
    config = SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[32, 64], patch_sizes=[3, 3],
        strides=[2, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=64, num_labels=3,
        drop_path_rate=0.0, classifier_dropout_prob=0.0,
    )  # fmt: skip
    return SegformerForSemanticSegmentation(config)


def _detr() -> nn.Module:
    """With the initial weights of the paper: those of transformers' configuration learn slowly."""
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    torch.manual_seed(0)
    eyes = ResNetConfig(
        embedding_size=32, hidden_sizes=[32], depths=[1], layer_type="basic", out_features=["stage1"]
    )  # fmt: skip
    model = DetrForObjectDetection(
        DetrConfig(
            use_timm_backbone=False, backbone_config=eyes, num_labels=2, d_model=64, num_queries=5, encoder_layers=1,
            decoder_layers=2, encoder_ffn_dim=128, decoder_ffn_dim=128, encoder_attention_heads=4,
            decoder_attention_heads=4, dropout=0.0,
        )
    )  # fmt: skip
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and "class_" not in name:
            nn.init.xavier_uniform_(parameter)
        elif parameter.ndim == 4:
            nn.init.kaiming_normal_(parameter)
    return model
