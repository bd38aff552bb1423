# SPDX-License-Identifier: Apache-2.0
"""The names of classes: in the record and the model's configuration, refused where model and data number otherwise."""

import json

import datasets
import pytest
from datasets import ClassLabel, Features, Value
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from drawn_shapes import write_yolo
from fewbit.data.config import generate_dataset_config
from fewbit.errors import UsageError
from fewbit.tuning.finetune import finetune
from tiny_pictures import detr
from word_tokenizer import make_tokenizer

CPU = {"device": "cpu", "tensorboard": False, "workers": 0, "max_steps": 2}
NAMES = ["one", "three", "two"]
SIZES = {"vocab_size": 96, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}


def classifier(names=None, count=3):
    config = LlamaConfig(**SIZES, num_attention_heads=2, pad_token_id=0, num_labels=count)
    if names:
        config.id2label = dict(enumerate(names))
    return LlamaForSequenceClassification(config)


def rows(**more):
    given = [{"text": f"w{10 + n} w{11 + n}", "label": NAMES[n % 3]} for n in range(24)]
    return generate_dataset_config(given, ["tokenization", "padding"], {"tokenizer": make_tokenizer(), **more})


@pytest.mark.parametrize("method", ["full", "lora"])
def test_they_are_written_down(tmp_path, method):
    model = classifier()
    tuned = finetune(model, rows(), method=method, output=tmp_path / "out", **CPU)
    assert tuned.config.id2label == dict(enumerate(NAMES)) and tuned.config.label2id["two"] == 2
    assert tuned.fewbit_record.facts["classes"] == NAMES and model.config.id2label[0] == "LABEL_0"
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["id2label"] == {"0": "one", "1": "three", "2": "two"}


def test_a_model_with_an_order_of_its_own_is_told_what_to_write():
    with pytest.raises(UsageError, match="the data numbers its classes one, three, two") as told:
        finetune(classifier(["one", "two", "three"]), rows(), **CPU)
    assert told.value.try_ == "custom_config={'classes': ['one', 'two', 'three']}"
    tuned = finetune(classifier(["one", "two", "three"]), rows(classes=["one", "two", "three"]), **CPU)
    assert tuned.config.id2label[1] == "two"


def test_more_classes_than_the_model_has_and_fewer():
    with pytest.raises(UsageError, match="the data has 3 classes") as told:
        finetune(classifier(count=2), rows(), **CPU)
    assert "num_labels=3" in told.value.try_
    tuned = finetune(classifier(count=5), rows(), **CPU)
    assert tuned.config.id2label[0] == "LABEL_0"
    assert any(line["what"] == "classes-unnamed" for line in tuned.fewbit_record.lines)


def test_data_to_judge_by_has_the_numbers_of_the_data_to_learn_from(tmp_path):
    model = classifier()
    few = generate_dataset_config(
        [{"text": f"w{40 + n}", "label": "two"} for n in range(4)],
        ["tokenization", "padding"],
        {"tokenizer": make_tokenizer()},
    )
    learned = finetune(model, rows(), validation=few, lr=0.05, device="cpu", tensorboard=False, max_steps=1)
    same = finetune(
        model, rows(), validation=few.replace(classes=NAMES), lr=0.05, device="cpu", tensorboard=False, max_steps=1
    )
    assert learned.fewbit_record.facts["before"] == same.fewbit_record.facts["before"]


def test_a_model_for_another_task_is_told_which_class_to_open():
    config = LlamaConfig(**SIZES, num_attention_heads=2, pad_token_id=0)
    with pytest.raises(UsageError, match="is for causal_lm, and not for sequence_classification") as told:
        finetune(LlamaForCausalLM(config), rows(), task="sequence_classification", **CPU)
    assert "AutoModelForSequenceClassification" in told.value.try_


@pytest.mark.parametrize("kept", ["memory", "disk", "splits", "splits on disk"])
def test_those_of_a_hugging_face_dataset(tmp_path, kept):
    """Given as they are: nobody says what they are for but the model."""
    values = {"text": [f"w{10 + n} w{11 + n}" for n in range(24)], "label": [n % 3 for n in range(24)]}
    features = Features({"text": Value("string"), "label": ClassLabel(names=["zebra", "ant", "mole"])})
    data = datasets.Dataset.from_dict(values, features=features)
    data = datasets.DatasetDict({"train": data, "validation": data.select(range(6))}) if "splits" in kept else data
    if "disk" in kept:
        data.save_to_disk(str(tmp_path / "rows"))
        data = str(tmp_path / "rows")
    classifier().save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    tuned = finetune(str(tmp_path / "model"), data, output=tmp_path / "out", **CPU)
    assert list(tuned.config.id2label.values()) == tuned.fewbit_record.facts["classes"] == ["zebra", "ant", "mole"]
    record = json.loads((tmp_path / "out" / "record.json").read_text())
    assert record["facts"]["classes"] == ["zebra", "ant", "mole"]


def test_those_of_objects_and_of_regions(tmp_path):
    boxes = str(write_yolo(tmp_path / "boxes", train=8, val=4, kinds=2))
    assert finetune(detr(), boxes, **CPU).config.id2label == {0: "disc", 1: "square"}
    outlines = str(write_yolo(tmp_path / "outlines", train=8, val=4, kinds=2, outlines=True))
    assert finetune(segformer(3), outlines, **CPU).config.id2label == {0: "background", 1: "disc", 2: "square"}
    with pytest.raises(UsageError, match=r"3 classes \(background, disc, square\), the model tells 2 apart"):
        finetune(segformer(2), outlines, **CPU)


def segformer(classes):
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    sizes = {"num_encoder_blocks": 1, "depths": [1], "sr_ratios": [2], "hidden_sizes": [16], "patch_sizes": [3]}
    more = {"strides": [2], "num_attention_heads": [1], "mlp_ratios": [2], "decoder_hidden_size": 16}
    return SegformerForSemanticSegmentation(SegformerConfig(**sizes, **more, num_labels=classes))


def test_a_model_that_numbers_a_datasets_classes_otherwise_is_told_what_to_write_and_it_helps():
    values = {"text": [f"w{10 + n}" for n in range(24)], "label": [n % 3 for n in range(24)]}
    features = Features({"text": Value("string"), "label": ClassLabel(names=["two", "one", "three"])})
    config = generate_dataset_config(
        datasets.Dataset.from_dict(values, features=features),
        ["tokenization", "padding"],
        {"tokenizer": make_tokenizer(), "validation_ratio": 0},
    )
    with pytest.raises(UsageError, match="the data numbers its classes two, one, three") as told:
        finetune(classifier(NAMES), config, **CPU)
    assert told.value.try_ == f"custom_config={{'classes': {NAMES}}}"
    tuned = finetune(classifier(NAMES), config.replace(classes=NAMES), **CPU)
    assert tuned.fewbit_record.facts["classes"] == NAMES
    assert [config.replace(classes=NAMES).open()[n]["labels"] for n in range(3)] == [2, 0, 1]
