# SPDX-License-Identifier: Apache-2.0
"""Classes that have names: the same numbers in every split, an order of one's own, and what cannot be numbered."""

import json
import pickle

import pytest

from fewbit.data.config import generate_dataset_config
from fewbit.errors import UsageError
from letters_tokenizer import make_tokenizer

NAMES = ("two", "one", "three")


def rows(count=30, names=NAMES):
    return [{"text": f"a b {n}", "label": names[n % len(names)]} for n in range(count)]


def write(path, found):
    path.write_text("".join(json.dumps(row) + "\n" for row in found))


def configured(data, **options):
    return generate_dataset_config(data, ["tokenization", "padding"], {"tokenizer": make_tokenizer(), **options})


def labels(dataset):
    return {sample["labels"] for sample in dataset}


@pytest.mark.parametrize("task", [None, "sequence_classification"])
def test_names_have_the_same_number_in_every_split(tmp_path, task):
    write(tmp_path / "train.jsonl", rows())
    write(tmp_path / "test.jsonl", rows(1, ("two",)))
    config = configured(str(tmp_path), task=task)
    for split in ("train", "validation", "test"):
        assert config.open(split).classes == ["one", "three", "two"]
    assert labels(config.open("train")) == {0, 1, 2} and labels(config.open("test")) == {2}


def test_rows_that_are_open_already_and_workers():
    found = configured(rows(), validation_ratio=0).open()
    assert found.classes == ["one", "three", "two"] and [found[n]["labels"] for n in range(3)] == [2, 0, 1]
    fields = generate_dataset_config(rows(), [], {"validation_ratio": 0}).open()
    assert pickle.loads(pickle.dumps(fields.source)).get(0) == fields[0] == {"text": "a b 0", "label": 2}


@pytest.mark.parametrize(
    "given", [rows(), [{"text": row["text"], "label": NAMES.index(row["label"])} for row in rows()]]
)
def test_an_order_of_ones_own_names_numbers_too(given):
    found = configured(given, validation_ratio=0, classes=list(NAMES)).open()
    assert found.classes == list(NAMES) and [found[n]["labels"] for n in range(3)] == [0, 1, 2]


def test_stars_from_one_up_get_the_numbers_that_are_said():
    stars = [{"text": f"a {n}", "label": 1 + n % 5} for n in range(10)]
    found = configured(stars, validation_ratio=0, classes=[1, 2, 3, 4, 5]).open()
    assert [found[n]["labels"] for n in range(5)] == [0, 1, 2, 3, 4] and found.classes == ["1", "2", "3", "4", "5"]


def test_a_name_that_is_not_said_is_left_out_with_its_place():
    found = configured(rows(), validation_ratio=0, classes=["one", "two"]).open()
    assert labels(found) == {0, 1}
    line = next(line for line in found.record.lines if line["what"] == "left-out")
    assert line["count"] == 10 and "'three', none of the classes one, two" in line["reason"]


def test_tags_with_names_begin_with_outside():
    given = [{"words": ["a", "b"], "tags": ["O", "B-X"]}, {"words": ["c"], "tags": ["A"]}] * 4
    given.append({"words": ["d"], "tags": [None]})
    found = configured(given, task="token_classification", validation_ratio=0).open()
    assert found.classes == ["O", "A", "B-X"] and len(found) == 8
    assert [label for label in found[0]["labels"] if label != -100] == [0, 2]


def test_an_answer_is_not_taken_for_a_class():
    given = [{"text": f"a {n}", "label": f"an answer {n}"} for n in range(100)]
    with pytest.raises(UsageError, match="is it an answer, and no class") as told:
        configured(given).open()
    assert "'answer': 'label'" in told.value.try_


def test_other_data_with_other_classes_is_not_mixed_in():
    steps, more = ["mixing"], {"mixing_with": [rows(12, ("one", "four"))], "validation_ratio": 0}
    with pytest.raises(UsageError, match=r"one, three, two there, and four, one here"):
        len(generate_dataset_config(rows(), steps, more).open())


@pytest.mark.parametrize("columns", [{"prompt": "text"}, {"answer": "label"}])
def test_a_prompt_without_an_answer_is_a_fault(columns):
    with pytest.raises(UsageError, match="expected both, or 'text'"):
        generate_dataset_config(rows(), [], {"columns": columns})


def test_a_column_that_is_not_there_is_told_with_the_one_that_was_meant():
    config = generate_dataset_config(rows(), [], {"columns": {"text": "txt", "label": "lable"}})
    with pytest.raises(UsageError, match="no column 'txt' for 'text'; no column 'lable' for 'label'") as told:
        config.open()
    assert told.value.try_ == "custom_config={'columns': {'text': 'text', 'label': 'label'}}"
