# SPDX-License-Identifier: Apache-2.0
"""`deployment/labels.txt` names the outputs of the model, in the model's order."""

import json

import onnx
import pytest
import torch

import fewbit
from drawn_shapes import KINDS, write_folder, write_yolo
from fewbit.record import Record
from sparse_examples import classifier, encoder, graph, rated

pytest.importorskip("accelerate")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("fewbit.sparsity.latency._LEAST", 3)
    monkeypatch.setattr("fewbit.sparsity.latency._MOST", 3)


def _labels(out):
    return (out / "deployment" / "labels.txt").read_text().split()


def _record(out):
    return Record.from_json((out / "record.json").read_bytes())


def test_a_text_classifiers_labels_are_in_the_order_of_its_config(tmp_path):
    names = {0: "positive", 1: "negative", 2: "neutral"}
    model = encoder(tmp_path / "model", id2label=names, label2id={name: n for n, name in names.items()})
    data = rated(tmp_path / "rated.jsonl")
    out = fewbit.sparsify(model, data, mode="one-shot", optim_level=0.5, samples=8, output=tmp_path / "out")
    assert _labels(out) == ["positive", "negative", "neutral"]
    record = _record(out)
    assert record.facts["labels"]["names"] == _labels(out) and "model's own" in record.facts["labels"]["source"]
    assert not any(line["what"] == "labels-from-data" for line in record.lines)


def test_an_image_classifiers_labels_are_in_the_order_of_its_config(tmp_path):
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic",
        id2label={0: "triangle", 1: "disc", 2: "square"}, label2id={"triangle": 0, "disc": 1, "square": 2},
    )  # fmt: skip
    data = write_folder(tmp_path / "shapes", train=12, val=6)
    model = ResNetForImageClassification(config).eval()
    out = fewbit.sparsify(model, data, optim_level=0.5, samples=8, image_size=32, output=tmp_path / "out")
    assert _labels(out) == ["triangle", "disc", "square"]


def test_labels_from_the_data_are_said_to_be_so(tmp_path):
    data = write_folder(tmp_path / "shapes", train=12, val=6)
    out = fewbit.sparsify(classifier(3), data, optim_level=0.5, samples=8, image_size=32, output=tmp_path / "out")
    assert _labels(out) == ["disc", "square", "triangle"]
    assert [line["what"] for line in _record(out).lines].count("labels-from-data") == 1
    assert "taken from the data, in the data's order: the model has no label names" in (
        (out / "deployment" / "README.md").read_text()
    )


def test_no_labels_are_guessed_if_the_model_has_more_outputs(tmp_path):
    data = write_folder(tmp_path / "shapes", train=12, val=6)
    out = fewbit.sparsify(classifier(5), data, optim_level=0.5, samples=8, image_size=32, output=tmp_path / "out")
    assert not (out / "deployment" / "labels.txt").exists()
    reasons = [line["reason"] for line in _record(out).lines if line["what"] == "labels-unknown"]
    assert len(reasons) == 1 and "5 outputs" in reasons[0] and "3 labels" in reasons[0]


def test_labels_of_a_model_that_was_trained_here_are_those_of_its_data(tmp_path):
    data = write_folder(tmp_path / "shapes", train=12, val=6)
    settings = {"max_steps": 2, "batch_size": 6, "teacher": "off", "device": "cpu", "tensorboard": False}
    out = fewbit.sparsify(
        classifier(3), data, mode="training-aware", optim_level=0.3, image_size=32, output=tmp_path / "out", **settings
    )
    assert _labels(out) == ["disc", "square", "triangle"]
    record = _record(out)
    assert "training data" in record.facts["labels"]["source"]
    assert not any(line["what"] == "labels-from-data" for line in record.lines)


@pytest.mark.parametrize("place", ["config.json", "metadata"])
def test_an_onnx_models_labels_are_read_from_its_files(tmp_path, place):
    path = graph(tmp_path / "model.onnx", side=32)
    names = {0: "square", 1: "triangle", 2: "disc"}
    if place == "metadata":
        proto = onnx.load(path)
        onnx.helper.set_model_props(proto, {"names": str(names)})
        onnx.save(proto, path)
    else:
        (tmp_path / "config.json").write_text(json.dumps({"id2label": names}))
    data = write_folder(tmp_path / "shapes", train=12, val=6)
    out = fewbit.sparsify(path, data, optim_level=0.5, samples=8, use_case="ic", output=tmp_path / "out")
    assert _labels(out) == ["square", "triangle", "disc"]


def test_a_segmenters_labels_from_outlines_begin_with_the_background(tmp_path):
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    torch.manual_seed(0)
    config = SegformerConfig(
        num_encoder_blocks=1, depths=[1], sr_ratios=[2], hidden_sizes=[16], patch_sizes=[3], strides=[2],
        num_attention_heads=[1], mlp_ratios=[2], decoder_hidden_size=16, num_labels=3,
    )  # fmt: skip
    data = write_yolo(tmp_path / "shapes", train=8, val=4, outlines=True, count=2, kinds=2)
    model = SegformerForSemanticSegmentation(config).eval()
    out = fewbit.sparsify(model, data, use_case="segmentation", optim_level=0.5, samples=8, output=tmp_path / "out")
    assert _labels(out) == ["background", *KINDS[:2]]
    assert [line["what"] for line in _record(out).lines].count("labels-from-data") == 1
