# SPDX-License-Identifier: Apache-2.0
"""A model's folder says how its pictures are made, where nobody else does; and it is told."""

import json

import pytest
import torch
from transformers import (
    CLIPImageProcessorPil,
    DetrImageProcessorPil,
    ResNetConfig,
    ResNetForImageClassification,
    SegformerConfig,
    SegformerForSemanticSegmentation,
    SegformerImageProcessorPil,
)

from drawn_shapes import write_folder, write_yolo
from fewbit.data.config import generate_dataset_config
from fewbit.data.dataset import Dataset
from fewbit.data.loading import device_aware_data_loading
from fewbit.tuning.configuring import as_config, for_model
from fewbit.tuning.finetune import finetune
from tiny_pictures import detr

CPU = {"device": "cpu", "tensorboard": False, "workers": 0, "max_steps": 1, "batch_size": 4}
RESNET = {"embedding_size": 8, "hidden_sizes": [8], "depths": [1], "layer_type": "basic", "num_labels": 3}
SEGFORMER = {
    "num_encoder_blocks": 1, "depths": [1], "sr_ratios": [2], "hidden_sizes": [16], "patch_sizes": [3],
    "strides": [2], "num_attention_heads": [1], "mlp_ratios": [2], "decoder_hidden_size": 16, "num_labels": 3,
}  # fmt: skip


def folder(place, model, processor=None):
    model.save_pretrained(place)
    if processor is not None:
        processor.save_pretrained(place)
    return str(place)


@pytest.fixture
def classifier(tmp_path):
    cut = CLIPImageProcessorPil(size={"shortest_edge": 20}, crop_size={"height": 16, "width": 16})
    return folder(tmp_path / "model", ResNetForImageClassification(ResNetConfig(**RESNET)), cut)


def pictures(tmp_path):
    return str(write_folder(tmp_path / "shapes", train=8, val=4))


def seen(model, data):
    """The shapes a model is called with."""
    from fewbit.modules.opening import open_model

    opened = open_model(model)
    return for_model(as_config(data, model), None, opened).open()[0]["pixel_values"].shape


def told(tuned):
    return [line["reason"] for line in tuned.fewbit_record.lines if line["what"] == "picture-step"]


def test_classification(tmp_path, classifier):
    data = pictures(tmp_path)
    tuned = finetune(classifier, data, output=tmp_path / "out", **CPU)
    assert seen(classifier, data) == (3, 16, 16)
    (line,) = told(tuned)
    assert "CLIPImageProcessor" in line and "shortest edge 20" in line and "16 x 16" in line
    assert json.loads((tmp_path / "out" / "preprocessor_config.json").read_text())["size"] == {"shortest_edge": 20}


def test_detection(tmp_path):
    model = folder(tmp_path / "model", detr(), DetrImageProcessorPil(size={"shortest_edge": 24, "longest_edge": 40}))
    data = str(write_yolo(tmp_path / "shapes", train=8, val=4, kinds=2))
    (line,) = told(finetune(model, data, **CPU))
    assert "DetrImageProcessor" in line and seen(model, data) == (3, 24, 24)


def test_segmentation(tmp_path):
    processor = SegformerImageProcessorPil(size={"height": 24, "width": 20})
    model = folder(tmp_path / "model", SegformerForSemanticSegmentation(SegformerConfig(**SEGFORMER)), processor)
    data = str(write_yolo(tmp_path / "shapes", train=8, val=4, outlines=True, kinds=2))
    (line,) = told(finetune(model, data, **CPU))
    assert "20 x 24" in line and seen(model, data) == (3, 24, 20)


def test_what_the_user_says_holds(tmp_path, classifier):
    data = pictures(tmp_path)
    (tmp_path / "mine.py").write_text("def same(sample):\n    return sample\n")
    for steps, options in ((["rescaling"], {"image_size": 12}), ([f"{tmp_path / 'mine.py'}:same"], {})):
        config = generate_dataset_config(data, steps, options)
        assert told(finetune(classifier, config, **CPU)) == []
    config = generate_dataset_config(data, ["augmentation"], {})
    assert len(told(finetune(classifier, config, **CPU))) == 1  # which changes pictures and makes no inputs of them


def test_a_model_without_a_processor_is_told_what_it_gets(tmp_path):
    model = folder(tmp_path / "model", ResNetForImageClassification(ResNetConfig(**RESNET)))
    (line,) = told(finetune(model, pictures(tmp_path), **CPU))
    assert "numbers from 0 to 1" in line and "has no image processor" in line
    plain = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 3))
    assert told(finetune(plain, pictures(tmp_path), task="image_classification", **CPU)) == []


def test_samples_that_are_taken_as_they_are_are_told(tmp_path, classifier):
    data = Dataset(pictures(tmp_path))
    (line,) = told(finetune(classifier, data, task="image_classification", **CPU))
    assert "a Dataset is taken as it is" in line
    config = generate_dataset_config(pictures(tmp_path), ["rescaling"], {"image_size": 12})
    assert told(finetune(classifier, device_aware_data_loading(config, None, "cpu"), **CPU)) == []
