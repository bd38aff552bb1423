# SPDX-License-Identifier: Apache-2.0
"""Hugging Face datasets: objects and saved folders."""

from __future__ import annotations

import pickle
import shutil
import sys

import numpy as np
import pytest

from fewbit.data.opening import open_source, scan_source
from fewbit.errors import DataError, UsageError

datasets = pytest.importorskip("datasets")
Image = pytest.importorskip("PIL.Image")
datasets.disable_progress_bars()
NAMES = ["neg", "pos"]


def table(count=4, names=None, **columns):
    rows = {"text": [f"t{i}" for i in range(count)], "label": [i % 2 for i in range(count)], **columns}
    dataset = datasets.Dataset.from_dict(rows)
    return dataset.cast_column("label", datasets.ClassLabel(names=names)) if names else dataset


def rows(source):
    return [source[index] for index in range(len(source))]


def test_a_dataset_has_the_rows_of_its_own_selection():
    source, report = open_source(table(8).select([5, 2, 7]))
    assert [row["text"] for row in rows(source)] == ["t5", "t2", "t7"] and report.data_format == "huggingface"
    assert pickle.loads(pickle.dumps(source))[1] == source[1]


def test_class_names_explain_numbers_and_nothing_else_does():
    source, _ = open_source(table(3, NAMES))
    assert source.facts["classes"] == NAMES and [row["label"] for row in rows(source)] == [0, 1, 0]
    assert source.strata() == ["neg", "pos", "neg"]
    assert open_source(table(3))[0].facts["classes"] == ["0", "1"]


def test_a_class_that_no_row_has_keeps_its_number():
    source, _ = open_source(table(2, ["a", "b", "c"]).select([1]))
    assert source[0]["label"] == 1 and source.facts["classes"] == ["a", "b", "c"]


def test_token_tags_take_the_names_of_their_feature():
    tags = datasets.List(datasets.ClassLabel(names=["O", "B-PER"]))
    features = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "ner_tags": tags})
    source, _ = open_source(
        datasets.Dataset.from_dict({"tokens": [["Ann", "sees"]], "ner_tags": [[1, 0]]}, features=features)
    )
    assert source[0]["tags"] == [1, 0] and source.facts["classes"] == ["O", "B-PER"]


def test_splits_in_the_usual_order_and_by_name():
    splits = datasets.DatasetDict({"test": table(2), "validation": table(1), "train": table(3), "extra": table(1)})
    source, _ = open_source(splits)
    assert source.facts["splits"] == {"train": 3, "val": 1, "test": 2, "extra": 1}
    assert str(source.location(4)) == "test row 0"
    assert len(open_source(splits, split="validation")[0]) == 1
    with pytest.raises(UsageError, match="no split 'tset'"):
        len(open_source(splits, split="tset")[0])


def test_splits_that_number_classes_differently_are_refused():
    splits = datasets.DatasetDict({"train": table(2, NAMES), "test": table(2, NAMES[::-1])})
    with pytest.raises(DataError) as caught:
        open_source(splits)
    assert caught.value.code == "classes-differ" and "'label'" in str(caught.value)


def test_splits_with_different_columns_are_told():
    splits = datasets.DatasetDict({"train": table(3), "test": table(2, extra=[1, 2])})
    assert scan_source(splits)[1].counts == {"columns-differ": 1}


def test_a_stream_can_be_read_again_and_at_any_position():
    read = []

    def generate():
        for number in range(300):
            read.append(number)
            yield {"text": f"t{number}"}

    source, report = open_source(datasets.IterableDataset.from_generator(generate))
    assert source[2]["text"] == "t2" and len(read) < 300 and report.counts["spooled"] == 1
    assert (
        [row["text"] for row in rows(source)]
        == [f"t{number}" for number in range(300)]
        == [r["text"] for r in rows(source)]
    )
    labeled, _ = open_source(table(3, NAMES).to_iterable_dataset())
    assert [row["label"] for row in rows(labeled)] == [0, 1, 0] and labeled.facts["classes"] == NAMES


def test_a_dataset_with_its_own_format_is_left_as_it_is():
    torch = pytest.importorskip("torch")
    source, _ = open_source(datasets.Dataset.from_dict({"input_ids": [[1, 2], [3, 4]]}).with_format("torch"))
    assert torch.equal(source[1]["input_ids"], torch.tensor([3, 4])) and source.facts["batched"] is False
    loader = torch.utils.data.DataLoader(table(4).with_format("torch"), batch_size=2)
    batch = open_source(loader)[0][1]
    assert batch["label"].tolist() == [0, 1] and batch["text"] == ["t2", "t3"]


def test_images_masks_and_labels():
    features = datasets.Features(
        {"image": datasets.Image(), "annotation": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    image, mask = Image.new("L", (3, 2), 7), Image.new("L", (3, 2), 5)
    data = datasets.Dataset.from_list([{"image": image, "annotation": mask, "label": 1}], features=features)
    for form in (data, data.to_iterable_dataset()):
        sample = open_source(form)[0][0]
        assert sample["image"].shape == (2, 3, 3) and sample["image"].dtype == np.uint8 and (sample["image"] == 7).all()
        assert (sample["mask"] == 5).all() and sample["label"] == 1


@pytest.mark.parametrize("as_list", [True, False])
@pytest.mark.parametrize("category", ["category", "category_id", "label", "labels"])
def test_objects_become_boxes_and_classes(as_list, category):
    class_label = datasets.ClassLabel(names=["cat", "dog"])
    box = datasets.List(datasets.Value("float32"))
    if as_list:
        kind, value = datasets.List({"bbox": box, category: class_label}), [{"bbox": [0, 0, 4, 2], category: 1}]
    else:
        kind = {"bbox": datasets.List(box), category: datasets.List(class_label)}
        value = {"bbox": [[0, 0, 4, 2]], category: [1]}
    features = datasets.Features({"image": datasets.Image(), "objects": kind})
    image = Image.new("RGB", (8, 4))
    none = [] if as_list else {"bbox": [], category: []}
    data = [{"image": image, "objects": value}, {"image": image, "objects": none}]
    source, report = open_source(datasets.Dataset.from_list(data, features=features), depth="full")
    assert source[0]["boxes"].tolist() == [[0.25, 0.25, 0.5, 0.5]] and source[0]["classes"].tolist() == [1]
    assert source[1]["boxes"].shape == (0, 4) and source.facts["classes"] == ["cat", "dog"] and not report.errors


def test_boxes_outside_the_image_are_told():
    features = datasets.Features(
        {"image": datasets.Image(), "objects": {"bbox": datasets.List(datasets.List(datasets.Value("float32"))),
                                                "category": datasets.List(datasets.Value("int64"))}}
    )  # fmt: skip
    objects = [{"bbox": [[0, 0, 80, 2]], "category": [1]}, {"bbox": [[0, 0, 4, 2]], "category": []}]
    data = [{"image": Image.new("RGB", (8, 4)), "objects": value} for value in objects]
    report = scan_source(datasets.Dataset.from_list(data, features=features), depth="full")[1]
    assert report.counts["bad-objects"] == 2 and "8 x 4 pixels" in report.errors[0].message


def test_images_by_their_paths(tmp_path):
    Image.new("RGB", (3, 2), (9, 8, 7)).save(tmp_path / "a.png")
    data = datasets.Dataset.from_dict({"image": [str(tmp_path / "a.png"), str(tmp_path / "gone.png")]})
    source, _ = open_source(data.cast_column("image", datasets.Image()))
    assert source[0]["image"][0, 0].tolist() == [9, 8, 7]
    report = scan_source(data.cast_column("image", datasets.Image()), depth="full")[1]
    assert report.counts == {"media-missing": 1}


@pytest.fixture
def saved(tmp_path):
    table(3, NAMES).save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": table(2, NAMES), "validation": table(1, NAMES)}).save_to_disk(str(tmp_path / "dict"))
    return tmp_path


def test_saved_folders_are_recognized_and_read_without_the_library(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    for name, count in (("one", 3), ("dict", 3)):
        source, report = open_source(saved / name, depth="full")
        assert report.data_format == "huggingface" and len(source) == count and source.facts["classes"] == NAMES
    assert source.facts["splits"] == {"train": 2, "val": 1} and source[1] == {"text": "t1", "label": 1}
    assert not report.errors and report.complete


def test_a_saved_folder_inside_a_zip(saved):
    shutil.make_archive(str(saved / "packed"), "zip", saved / "dict")
    source, _ = open_source(saved / "packed.zip")
    assert [row["text"] for row in rows(source)] == ["t0", "t1", "t0"]


def test_saved_images(tmp_path):
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    data = datasets.Dataset.from_list([{"img": Image.new("RGB", (3, 2), (1, 2, 3)), "label": 1}], features=features)
    data.save_to_disk(str(tmp_path / "images"))
    sample = open_source(tmp_path / "images")[0][0]
    assert sample["image"][1, 2].tolist() == [1, 2, 3] and sample["label"] == 1


@pytest.mark.parametrize("damage", ["garbage", "missing", "state", "dict"])
def test_a_broken_saved_folder_is_an_issue(saved, damage):
    folder = saved / "dict"
    (arrow,) = (folder / "train").glob("*.arrow")
    if damage == "garbage":
        arrow.write_bytes(b"garbage")
    elif damage == "missing":
        arrow.unlink()
    else:
        target = folder / ("train/state.json" if damage == "state" else "dataset_dict.json")
        target.write_text("{")
    report = scan_source(folder)[1]
    assert ("bad-arrow" if damage == "garbage" else "folder-broken") in report.counts
    with pytest.raises(DataError):
        open_source(folder)


def test_an_empty_dataset_is_an_error():
    assert "no-rows" in scan_source(table(0))[1].counts


def test_a_row_that_cannot_be_decoded_is_told():
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    data = datasets.Dataset.from_list(
        [{"image": {"bytes": b"\x89PNG\r\n\x1a\n", "path": None}, "label": 0}] * 2, features=features
    )
    report = scan_source(data, depth="full")[1]
    assert {issue.location.row for issue in report.errors} == {0, 1} and report.errors[0].code.startswith("image-")
