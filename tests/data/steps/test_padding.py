# SPDX-License-Identifier: Apache-2.0
"""Padding: a step says it, the collator does it."""

import pytest

from fewbit.data.collate import get_custom_data_collator
from fewbit.data.config import generate_dataset_config
from fewbit.errors import UsageError

ROWS = [{"prompt": "a ", "answer": "b"}, {"prompt": "cc ", "answer": "dd"}]


def batch(**custom):
    made = generate_dataset_config(ROWS, ["tokenization", "masking", "padding"], {"tokenizer": "bytes", **custom})
    samples = list(made.open(None))
    return get_custom_data_collator(made)(samples)


def test_samples_are_not_filled_up():
    made = generate_dataset_config(ROWS, ["tokenization", "padding"], {"tokenizer": "bytes"})
    assert [len(sample["input_ids"]) for sample in made.open(None)] == [4, 6]


@pytest.mark.parametrize("asked", [None, True, "longest"])
def test_up_to_the_longest(asked):
    made = batch(padding=asked)
    assert made["input_ids"].tolist() == [[*b"a b", 256, 257, 257], [*b"cc dd", 256]]
    assert made["labels"].tolist() == [[-100, -100, 98, 256, -100, -100], [-100, -100, -100, 100, 100, 256]]
    assert made["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0], [1] * 6]


def test_up_to_a_length_or_a_multiple_and_on_the_other_side():
    assert batch(padding="max_length", max_length=9)["input_ids"].shape == (2, 9)
    assert batch(padding={"multiple_of": 8})["input_ids"].shape == (2, 8)
    assert batch(padding_side="left")["attention_mask"].tolist()[0] == [0, 0, 1, 1, 1, 1]


def test_what_cannot_be_asked_for():
    for wrong in (8, "short", {"multiple": 8}):
        with pytest.raises(UsageError, match="padding"):
            batch(padding=wrong)
