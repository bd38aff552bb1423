# SPDX-License-Identifier: Apache-2.0
"""Classes that a dataset has names for: taken from the column that is learned, in the order that is asked for."""

import datasets
import numpy as np
import pytest
from datasets import ClassLabel, Features, Image, List, Value

from drawn_shapes import write_folder, write_yolo
from fewbit.data.check import check_dataset
from fewbit.data.config import generate_dataset_config
from fewbit.data.preparing.known_classes import Spelled
from fewbit.errors import UsageError

NAMES = ["zebra", "ant", "mole"]
ROWS = 9


def texts(column="label", names=NAMES, **more):
    values = {"text": [f"t{n}" for n in range(ROWS)], column: [n % len(names) for n in range(ROWS)]}
    features = {"text": Value("string"), column: ClassLabel(names=names)}
    for name, (found, feature) in more.items():
        values[name], features[name] = found, feature
    return datasets.Dataset.from_dict(values, features=Features(features))


def opened(data, **options):
    return generate_dataset_config(data, [], {"validation_ratio": 0, **options}).open()


@pytest.mark.parametrize("kept", ["memory", "disk"])
def test_names_of_a_dataset_in_memory_and_on_disk(tmp_path, kept):
    data = texts()
    if kept == "disk":
        data.save_to_disk(str(tmp_path / "rows"))
        data = str(tmp_path / "rows")
    found = opened(data)
    assert found.classes == NAMES and [found[n]["label"] for n in range(4)] == [0, 1, 2, 0]


def test_tags_have_names_too():
    features = Features({"tokens": List(Value("string")), "ner_tags": List(ClassLabel(names=["O", "B-X"]))})
    rows = {"tokens": [["a", "b"]] * 4, "ner_tags": [[0, 1]] * 4}
    found = opened(datasets.Dataset.from_dict(rows, features=features), task="token_classification")
    assert found.classes == ["O", "B-X"] and found[0]["tags"] == [0, 1]


def test_of_two_columns_with_names_the_one_that_is_learned_counts():
    data = texts("coarse", ["x", "y"], fine=([n % 3 for n in range(ROWS)], ClassLabel(names=NAMES)))
    found = opened(data, columns={"text": "text", "label": "fine"})
    assert found.classes == NAMES and found[2]["label"] == 2
    mine = texts("language", ["de", "en"], label=([1, 0, 2] * 3, Value("int64")))
    assert opened(mine).classes is None  # numbers without names do not get those of another column


def test_the_one_column_with_names_is_the_label_whatever_it_is_called():
    found = opened(texts("mood"), task="sequence_classification")
    assert found.classes == NAMES and found[1] == {"text": "t1", "label": 1}


def test_another_order_other_names_and_neither():
    found = opened(texts(), classes=["ant", "bee", "mole", "zebra"])
    assert found.classes == ["ant", "bee", "mole", "zebra"] and [found[n]["label"] for n in range(3)] == [3, 0, 2]
    found = opened(texts(), classes=["Z", "A", "M"])
    assert found.classes == ["Z", "A", "M"] and [found[n]["label"] for n in range(3)] == [0, 1, 2]
    assert any(line["what"] == "classes-renamed" and "zebra is Z" in line["reason"] for line in found.record.lines)
    with pytest.raises(UsageError, match="zebra, ant, mole there, and zebra, bee here"):
        opened(texts(), classes=["zebra", "bee"])


def test_a_row_without_a_class_is_left_out():
    rows = {"text": ["a", "b", "c"], "label": [0, -1, 1]}
    data = datasets.Dataset.from_dict(rows, features=Features({"text": Value("string"), "label": ClassLabel(3)}))
    assert [sample["label"] for sample in opened(data)] == [0, 1]


def test_splits_that_number_their_classes_otherwise_are_refused():
    both = datasets.DatasetDict({"train": texts(), "validation": texts(names=NAMES[::-1])})
    with pytest.raises(UsageError, match="the classes of 'label' have other names or numbers in another split"):
        generate_dataset_config(both, []).open()
    assert check_dataset(both).counts == {"classes-differ": 1}


def test_columns_that_nobody_learns_from_may_differ():
    kinds = (["de", "en"], ["en", "de"])
    parts = [texts(language=([n % 2 for n in range(ROWS)], ClassLabel(names=names))) for names in kinds]
    both = datasets.DatasetDict(dict(zip(("train", "validation"), parts)))
    assert generate_dataset_config(both, []).open("train").classes == NAMES
    report = check_dataset(both)
    assert report.counts == {"classes-differ": 1} and report.ok


def test_a_preset_reads_names_and_not_whatever_numbers_they_have():
    data = texts(names=["pos", "neg"])
    config = generate_dataset_config("imdb", [], {"path": _saved(data), "validation_ratio": 0})
    found = config.open()
    assert found.classes == ["negative", "positive"] and [found[n]["label"] for n in range(2)] == [1, 0]
    assert Spelled(dict, {"label": ["pos", "neg"]})({"label": -1}) == {"label": -1}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _saved(data):
    data.save_to_disk("saved")
    return "saved"


def test_pictures_keep_their_names_and_are_not_decoded_to_be_counted(tmp_path, monkeypatch):
    pictures = [np.full((4, 4, 3), n, np.uint8) for n in range(ROWS)]
    features = Features({"image": Image(), "breed": ClassLabel(names=NAMES)})
    rows = {"image": pictures, "breed": [n % 3 for n in range(ROWS)]}
    found = opened(datasets.Dataset.from_dict(rows, features=features))
    assert found.classes == NAMES and found[4]["label"] == 1 and "breed" not in found[4]
    found = opened(str(write_folder(tmp_path / "shapes", train=9, val=3)), classes=["triangle", "square", "disc"])
    read = found.source.inner
    monkeypatch.setattr(type(read), "get", lambda *_: pytest.fail("a picture was read to count them"))
    assert len(found) == 9 and found.classes == ["triangle", "square", "disc"]


def test_pictures_and_boxes_take_the_order_that_is_asked_for(tmp_path):
    folder = str(write_folder(tmp_path / "shapes", train=9, val=3))
    plain, turned = opened(folder), opened(folder, classes=["triangle", "square", "disc"])
    assert [2 - sample["label"] for sample in plain] == [sample["label"] for sample in turned]
    boxes = str(write_yolo(tmp_path / "boxes", train=9, val=3, kinds=2))
    plain, turned = opened(boxes), opened(boxes, classes=["square", "disc"])
    assert plain.classes == ["disc", "square"] and turned.classes == ["square", "disc"]
    assert all((1 - a["classes"] == b["classes"]).all() for a, b in zip(plain, turned))


def test_pictures_of_a_dataset_are_not_taken_for_texts(tmp_path):
    features = Features({"image": Image(), "label": ClassLabel(names=NAMES)})
    rows = {"image": [np.zeros((4, 4, 3), np.uint8)] * 4, "label": [0, 1, 2, 0]}
    data = datasets.Dataset.from_dict(rows, features=features)
    data.save_to_disk(str(tmp_path / "pictures"))
    for given in (data, str(tmp_path / "pictures"), [{"image": np.zeros((4, 4, 3), np.uint8), "label": 1}] * 4):
        assert generate_dataset_config(given).steps == ()
    assert generate_dataset_config(texts(), None, {"tokenizer": "bytes"}).steps[0] == "tokenization"
