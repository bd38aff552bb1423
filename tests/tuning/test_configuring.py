# SPDX-License-Identifier: Apache-2.0
"""What a user may give as data: which rows are prepared, which are taken as they are, and which to judge by."""

import datasets
import numpy as np
import pytest

from fewbit.data.config import DatasetConfig
from fewbit.errors import DataError
from fewbit.tuning.configuring import AsSaid, as_config
from fewbit.tuning.finetune import finetune
from tuning_runs import language_model
from word_tokenizer import make_tokenizer

RUN = {"device": "cpu", "tensorboard": False, "workers": 0, "max_steps": 2, "batch_size": 4}
CHAT = {"messages": [{"role": "user", "content": "w10 w11"}, {"role": "assistant", "content": "w12"}]}


@pytest.fixture
def model(tmp_path):
    language_model(vocab_size=96).save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def rows(first, count=12):
    return [{"text": f"w{first + n} w{1 + first + n} w{2 + first + n}"} for n in range(count)]


@pytest.mark.parametrize(
    ("row", "prepared"),
    [
        ({"text": "w10"}, True),
        (CHAT, True),
        ({"words": ["w10", "w11"], "tags": [0, 1]}, True),
        ({"image": np.zeros((4, 4, 3), np.uint8), "label": 1}, True),
        ({"input_ids": [1, 2], "note": "w10"}, False),
        ({"pixels": np.zeros(4, np.float32), "label": 1}, False),
    ],
)
def test_rows_with_something_said_or_seen_are_prepared(model, row, prepared):
    assert isinstance(as_config([row] * 4, model), DatasetConfig) == prepared
    if "image" not in row and "pixels" not in row:
        assert isinstance(as_config(datasets.Dataset.from_list([row] * 4), model), DatasetConfig) == prepared


@pytest.mark.parametrize("kind", [list, datasets.Dataset.from_list])
def test_rows_to_judge_by_are_those_that_are_given(model, kind):
    """And not some of those to learn from, though both are called a list."""
    learned, judged = rows(10), rows(50, 8)
    tuned = finetune(model, kind(learned), validation=kind(judged), **RUN)
    alone = finetune(model, kind(judged), validation=kind(judged + rows(50, 1)), **RUN)
    assert not any(line["what"] == "split-cut" for line in tuned.fewbit_record.lines)
    assert tuned.fewbit_record.facts["before"]["loss"] == pytest.approx(
        alone.fewbit_record.facts["before"]["loss"], rel=0.05
    )
    kept = finetune(model, kind(learned), **RUN)  # some of them
    assert tuned.fewbit_record.facts["before"] != kept.fewbit_record.facts["before"]


def test_a_chat_in_a_list_is_learned_from(model):
    chats = [
        {"messages": [dict(turn, content=f"{turn['content']} w{20 + n}") for turn in CHAT["messages"]]}
        for n in range(12)
    ]
    facts = finetune(model, chats, **RUN).fewbit_record.facts
    assert facts["steps"] == 2 and facts["before"]["loss"] > 0


def test_a_stream_and_splits_in_memory_are_prepared_too(model):
    table = datasets.Dataset.from_list(rows(10))
    for data in (table.to_iterable_dataset(), datasets.DatasetDict({"train": table, "test": table})):
        assert finetune(model, data, **RUN).fewbit_record.facts["steps"] == 2


def test_what_is_said_apart_is_put_together(model):
    config = as_config(AsSaid(rows(10), ["tokenization"], {"max_length": 2}), model)
    assert config.steps == ("tokenization",) and config.options["max_length"] == 2


def test_texts_without_a_class_are_told_what_is_missing(tmp_path):
    from transformers import LlamaConfig, LlamaForSequenceClassification

    sizes = {"vocab_size": 96, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    classifier = LlamaForSequenceClassification(LlamaConfig(**sizes, num_attention_heads=2, pad_token_id=0))
    classifier.save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    with pytest.raises(DataError, match="expected one class a text, from a column 'label'") as told:
        finetune(str(tmp_path / "model"), rows(10), **RUN)
    assert "'label': 'another'" in told.value.try_
