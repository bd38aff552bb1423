# SPDX-License-Identifier: Apache-2.0
"""Rows with pictures from memory and from Hugging Face datasets: classes, masks and objects where they are."""

import re

import datasets
import numpy as np
import pytest
from datasets import ClassLabel, Features, Image, List, Value
from PIL import Image as Pillow

from drawn_shapes import draw
from fewbit.data.collate import Collator
from fewbit.data.config import generate_dataset_config
from fewbit.data.dataset import Dataset
from fewbit.errors import DataError, UsageError

NAMES = ["disc", "square"]
OBJECTS = {"bbox": List(List(Value("float32"))), "category": List(ClassLabel(names=NAMES))}


def drawn(count=6, size=32):
    rows = []
    for seed in range(count):
        picture, shapes = draw(seed, size, count=2, kinds=2)
        boxes = [[s.x - s.reach, s.y - s.reach, 2 * s.reach, 2 * s.reach] for s in shapes]
        rows.append({"image": picture, "objects": {"bbox": boxes, "category": [s.kind for s in shapes]}})
    return rows


def opened(data, **options):
    return generate_dataset_config(data, [], {"validation_ratio": 0, **options}).open()


def test_objects_as_the_hub_has_them_are_boxes_and_classes_with_names():
    rows = drawn()
    table = datasets.Dataset.from_list(rows, features=Features({"image": Image(), "objects": OBJECTS}))
    found = opened(table, task="object_detection")
    assert found.classes == NAMES and any("as COCO has them" in line["reason"] for line in found.record.lines)
    for seed, (sample, row) in enumerate(zip(found, rows)):
        _, shapes = draw(seed, 32, count=2, kinds=2)
        wanted = [[s.x / 32, s.y / 32, 2 * s.reach / 32, 2 * s.reach / 32] for s in shapes]
        np.testing.assert_allclose(sample["boxes"], np.array(wanted).reshape(-1, 4), rtol=1e-5)
        assert sample["classes"].tolist() == row["objects"]["category"] and "objects" not in sample
    turned = opened(table, classes=NAMES[::-1])
    assert turned.classes == NAMES[::-1] and (turned[0]["classes"] == 1 - found[0]["classes"]).all()
    apart = [
        {**row, "objects": [dict(zip(row["objects"], pair)) for pair in zip(*row["objects"].values())]} for row in rows
    ]
    assert (opened(apart)[0]["boxes"] == found[0]["boxes"]).all()


def test_a_label_beside_objects_is_what_pictures_are_classified_by():
    kinds = {"bbox": List(List(Value("float32"))), "category": List(ClassLabel(names=["ear", "tail", "paw"]))}
    features = Features({"image": Image(), "label": ClassLabel(names=["cat", "dog"]), "objects": kinds})
    rows = [{**row, "label": n % 2} for n, row in enumerate(drawn())]
    table = datasets.Dataset.from_list(rows, features=features)
    found = opened(table, task="image_classification")
    assert found.classes == ["cat", "dog"] and [sample["label"] for sample in found] == [0, 1] * 3
    assert opened(table).classes == ["cat", "dog"]
    assert opened(table, task="object_detection").classes == ["ear", "tail", "paw"]


def test_objects_may_be_arrays_and_a_picture_may_have_none():
    rows = drawn()
    arrays = [{**row, "objects": {name: np.array(each) for name, each in row["objects"].items()}} for row in rows]
    for one, other in zip(opened(arrays), opened(rows)):
        assert (one["boxes"] == other["boxes"]).all() and (one["classes"] == other["classes"]).all()
    none = {"image": rows[0]["image"], "objects": {"bbox": None, "category": None}}
    assert opened([*rows, none])[len(rows)]["boxes"].shape == (0, 4)


@pytest.mark.parametrize(
    ("objects", "column", "what"),
    [
        (None, "objects", "'objects' is none"),
        ("a disc", "objects", "'objects' is str"),
        ([{"bbox": [1, 1, 2, 2], "category": 0}, {"bbox": [1, 1, 2, 2]}], "objects", "an object has no 'category'"),
        ({"bbox": [[1, 1, 2]], "category": [0]}, "objects.bbox", "no boxes of four numbers"),
        ({"bbox": [["a", 1, 2, 3]], "category": [0]}, "objects.bbox", "no boxes of four numbers"),
        ({"bbox": [[1, 1, 2, 2]], "category": ["cat"]}, "objects.category", "no numbers of classes: 'cat'"),
        ({"bbox": [[1, 1, 2, 2]], "category": [0.5]}, "objects.category", "no numbers of classes: 0.5"),
        ({"bbox": [[4, 4, -1, -1]], "category": [0]}, "objects.bbox", "1 boxes from -1 to 4"),
        ({"bbox": [[4, 4, 0, 2]], "category": [0]}, "objects.bbox", "1 boxes from 0 to 4"),
        ({"bbox": [[1, 1, 2, 2]], "category": []}, "objects.bbox", "1 boxes from 1 to 2, 0 classes"),
    ],
)
def test_objects_that_are_none_are_told_with_row_and_column(objects, column, what):
    picture = np.zeros((8, 8, 3), np.uint8)
    rows = [{"image": picture, "objects": {"bbox": [], "category": []}}] * 9 + [{"image": picture, "objects": objects}]
    with pytest.raises(DataError, match=re.escape(what)) as told:
        opened(rows, task="object_detection")[9]
    assert "sample 9" in told.value.where and f"field {column!r}" in told.value.where
    assert "as COCO has them" in told.value.expected and told.value.code == "bad-row"
    with pytest.raises(DataError, match="sample 0, field"):
        opened(rows[::-1], task="object_detection")


def test_boxes_of_another_kind_are_refused():
    rows = [{"image": np.zeros((8, 8, 3), np.uint8), "objects": {"bbox": [[3, 3, 7, 7]], "category": [0]}}] * 2
    with pytest.raises(DataError, match="objects of a picture of 8 x 8 pixels: 1 boxes from 3 to 7, 1 classes") as told:
        opened(rows)
    assert "as COCO has them" in told.value.expected


def test_splits_that_number_objects_otherwise_are_refused():
    other = {**OBJECTS, "category": List(ClassLabel(names=NAMES[::-1]))}
    both = {
        name: datasets.Dataset.from_list(drawn(2), features=Features({"image": Image(), "objects": kinds}))
        for name, kinds in (("train", OBJECTS), ("validation", other))
    }
    with pytest.raises(UsageError, match=r"the classes of 'objects\.category' have other names or numbers"):
        generate_dataset_config(datasets.DatasetDict(both), []).open()


@pytest.mark.parametrize("column", ["mask", "label", "annotation"])
@pytest.mark.parametrize("mode", ["L", "P", "I"])
def test_a_picture_of_numbers_beside_a_picture_is_a_mask(column, mode):
    numbers = np.arange(16, dtype=np.uint8).reshape(4, 4)
    mask = Pillow.fromarray(numbers)
    if mode == "P":
        mask.putpalette([255 - n for n in range(256) for _ in range(3)])  # colours that are not the numbers
    elif mode == "I":
        mask = mask.convert("I")
    picture = Pillow.fromarray(np.full((4, 4), 9, np.uint8))  # of one channel too, and a picture
    rows = [{"image": picture, column: mask}] * 3
    table = datasets.Dataset.from_list(rows, features=Features({"image": Image(), column: Image()}))
    sample = opened(table, task="segmentation")[0]
    assert sample["image"].shape == (4, 4, 3) and set(sample) == {"image", "mask"}
    np.testing.assert_array_equal(sample["mask"], numbers)
    assert Collator()([sample, sample])["masks"].shape == (2, 4, 4)


def test_without_a_picture_beside_them_such_pictures_are_pictures():
    table = datasets.Dataset.from_list(
        [{"scan": Pillow.fromarray(np.zeros((4, 4), np.uint8))}], features=Features({"scan": Image()})
    )
    assert Dataset(table)[0]["scan"].shape == (4, 4, 3)


def test_rows_in_a_list_are_samples_and_not_batches():
    rows = [{"image": np.zeros((4, 4, 3), np.uint8), "label": n % 2} for n in range(6)]
    found = opened(rows)
    assert not found.batched and len(found) == 6 and found[1]["label"] == 1
    assert Dataset(rows).batched  # as lists are, where nobody says that they are rows


def test_what_can_be_read_once_is_not_read_to_find_out_what_it_is():
    left = iter([{"text": f"t{n}"} for n in range(4)])
    config = generate_dataset_config(left, None, {"tokenizer": "bytes"})
    assert config.steps[0] == "tokenization" and len(list(left)) == 4
