# SPDX-License-Identifier: Apache-2.0
"""The names of classes: in the record and the model's configuration, refused where model and data number otherwise."""

import json

import pytest
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from fewbit.data.config import generate_dataset_config
from fewbit.errors import UsageError
from fewbit.tuning.finetune import finetune
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
