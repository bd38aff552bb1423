# SPDX-License-Identifier: Apache-2.0
"""Detection and segmentation in the layout of YOLO, end to end, on shapes whose places are known as they were drawn."""

import pytest
import torch
from torch import nn

from drawn_shapes import write_yolo
from fewbit.record import Record
from fewbit.sparsity.verb import sparsify

pytest.importorskip("accelerate")

TRAINED = {"lr": 1e-3, "batch_size": 16, "teacher": "off", "device": "cpu", "tensorboard": False}


def measured(folder):
    facts = Record.from_json((folder / "record.json").read_bytes()).facts
    return facts, facts["before"]["metric"]["value"], facts["after"]["metric"]["value"]


@pytest.mark.slow
def test_a_segmenter_learns_and_becomes_sparse(tmp_path):
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    torch.manual_seed(0)
    config = SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[16, 32], patch_sizes=[3, 3],
        strides=[2, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=32, num_labels=3,
        drop_path_rate=0.0, classifier_dropout_prob=0.0,
    )  # fmt: skip
    data = write_yolo(tmp_path / "shapes", train=64, val=16, outlines=True, count=2, kinds=2)
    settings = {**TRAINED, "lr": 5e-3, "max_steps": 60}
    model = SegformerForSemanticSegmentation(config)
    out = sparsify(model, data, mode="training-aware", optim_level=0.3, output=tmp_path / "out", **settings)
    facts, before, after = measured(out)
    assert facts["use_case"] == "segmentation" and facts["after"]["metric"]["name"] == "mean_iou"
    assert before < 0.3 and after > 0.5
    assert facts["after"]["sparsity"]["share"] > 0.5 and (out / "deployment" / "labels.txt").is_file()


@pytest.mark.slow
def test_a_detector_learns_and_becomes_sparse(tmp_path):
    data = write_yolo(tmp_path / "shapes", train=256, val=32, kinds=2)
    settings = {**TRAINED, "max_steps": 170}
    out = sparsify(detector(), data, mode="training-aware", optim_level=0.3, output=tmp_path / "out", **settings)
    facts, before, after = measured(out)
    assert facts["use_case"] == "object_detection" and facts["after"]["metric"]["name"] == "map"
    assert before < 0.002 and after > 0.02  # it starts from nothing, and zeros come from the first step on
    assert facts["after"]["sparsity"]["share"] > 0.4


def detector():
    """A small detector, with the initial weights of the paper: those of transformers' configuration learn slowly."""
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
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and "class_" not in name:
            nn.init.xavier_uniform_(parameter)
        elif parameter.ndim == 4:
            nn.init.kaiming_normal_(parameter)
    return model
