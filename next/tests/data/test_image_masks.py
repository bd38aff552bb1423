# SPDX-License-Identifier: Apache-2.0
"""Images with masks: pairing by name, values as stored, damage, repair."""

import numpy as np
import pytest
from PIL import Image

from fewbit.data.files import Folder
from fewbit.data.formats import image_folder
from fewbit.data.formats.image_masks import FORMAT, detect, example, scan
from fewbit.data.opening import open_source
from fewbit.data.report_text import report_text
from fewbit.data.types import DataReport, SampleError
from fewbit.errors import DataError, UsageError


def image(path, size=(16, 12)):
    path.parent.mkdir(parents=True, exist_ok=True)
    number = len(str(path))
    Image.fromarray(np.full((size[1], size[0], 3), number % 256, np.uint8)).save(path)


def mask(path, values=(0, 1, 2), size=(16, 12), mode="L"):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.resize(np.array(values, np.uint8), (size[1], size[0]))
    picture = Image.fromarray(pixels)
    if mode == "P":
        picture.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0])  # the values become palette indices
    elif mode != "L":
        picture = picture.convert(mode)
    picture.save(path)
    return pixels


def check(root, on_error=None, depth="full", **options):
    report = DataReport(on_error=on_error)
    source = scan(Folder(root, report=report), report, depth=depth, options=options)
    report.facts.setdefault("samples", len(source))
    report.complete = True
    return source, report


def opened(root, on_error=None, **options):
    task, split = options.pop("task", None), options.pop("split", None)
    return open_source(
        str(root), data_format="image_masks", data_option=options, task=task, split=split, on_error=on_error
    )[0]


LAYOUTS = {
    "folders": [("images/1.jpg", "masks/1.png"), ("images/2.jpg", "masks/2.png")],
    "labels": [("images/1.jpg", "labels/1.png"), ("images/2.jpg", "labels/2.png")],
    "annotations": [("images/training/1.jpg", "annotations/training/1.png")],
    "splits inside": [("images/train/1.jpg", "masks/train/1.png"), ("images/val/1.jpg", "masks/val/1.png")],
    "splits outside": [("train/images/1.jpg", "train/masks/1.png"), ("val/Images/1.jpg", "val/Masks/1.png")],
    "suffixed folders": [("train/1.jpg", "train_masks/1_mask.png"), ("val/1.jpg", "val_masks/1_mask.png")],
    "pairs": [("1.jpg", "1_mask.png"), ("2.jpg", "2_mask.png")],
    "pairs in folders": [("a/1.jpg", "a/1-mask.png"), ("b/1.jpg", "b/1-mask.png")],
    "a dataset called masks": [
        ("masks/images/1.jpg", "masks/masks/1.png"),
        ("masks/images/2.jpg", "masks/masks/2.png"),
    ],
    "suffix in a folder": [("images/1.jpg", "masks/1_mask.png"), ("images/2.jpg", "masks/2_mask.png")],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_is_paired_and_detected(tmp_path, name):
    for number, (image_name, mask_name) in enumerate(LAYOUTS[name]):
        image(tmp_path / image_name)
        mask(tmp_path / mask_name, values=(number, 7))
    source, report = check(tmp_path)
    assert not report.issues and report.ok
    assert sorted(source.location(index).file for index in range(len(source))) == sorted(
        pair[0] for pair in LAYOUTS[name]
    )
    for index in range(len(source)):
        position = [pair[0] for pair in LAYOUTS[name]].index(source.location(index).file)
        assert set(np.unique(source[index]["mask"])) == {position, 7}
    assert detect(Folder(tmp_path)).confidence >= 0.85
    other = image_folder.detect(Folder(tmp_path))
    assert other is None or other.confidence <= 0.4  # so the masks win


def test_splits_are_read_in_order_and_one_at_a_time(tmp_path):
    for split in ("val", "train"):
        image(tmp_path / split / "images/1.jpg")
        mask(tmp_path / split / "masks/1.png")
    source = opened(tmp_path)
    assert source.facts["splits"] == {"train": 1, "val": 1} and source.strata() == ["train", "val"]
    assert opened(tmp_path, split="val").location(0).file == "val/images/1.jpg"
    with pytest.raises(UsageError):
        opened(tmp_path, split="test")


@pytest.mark.parametrize("mode", ["L", "P", "LA", "RGB", "I;16"])
def test_values_are_read_as_stored(tmp_path, mode):
    image(tmp_path / "images/1.jpg")
    pixels = mask(tmp_path / "masks/1.png", mode=mode)
    sample = opened(tmp_path)[0]
    assert sample["mask"].dtype == np.int32 and sample["image"].shape == (12, 16, 3)
    np.testing.assert_array_equal(sample["mask"], pixels)


def test_masks_of_colors_need_to_be_told_the_classes(tmp_path):
    image(tmp_path / "images/1.jpg", size=(2, 1))
    (tmp_path / "masks").mkdir()
    Image.fromarray(np.array([[[0, 0, 0], [255, 0, 0]]], np.uint8)).save(tmp_path / "masks/1.png")
    _, report = check(tmp_path)
    assert [(issue.code, issue.message) for issue in report.errors] == [("mask-colors", "2 colors: #000000, #ff0000")]
    assert opened(tmp_path, colors="#ff0000,#000000")[0]["mask"].tolist() == [[1, 0]]
    assert "#ff0000" in check(tmp_path, colors=["#000000"])[1].errors[0].message
    with pytest.raises(UsageError):
        opened(tmp_path, colors="red")


def test_missing_masks_orphans_and_shared_masks(tmp_path):
    for name in ("1.jpg", "2.jpg", "2.png", "3.jpg"):
        image(tmp_path / "images" / name)
    for name in ("1.png", "2.png", "9.png"):
        mask(tmp_path / "masks" / name)
    source, report = check(tmp_path)
    assert {(issue.code, issue.location.file) for issue in report.issues} == {
        ("mask-missing", "images/3.jpg"), ("stem-twice", "images/2.png"), ("mask-orphan", "masks/9.png")
    }  # fmt: skip
    assert len(source) == 2
    with pytest.raises(DataError):
        opened(tmp_path)
    assert len(opened(tmp_path, on_error="drop")) == 2


def test_sizes_values_and_damage_are_found_and_raised_alike(tmp_path):
    for number in range(5):
        image(tmp_path / f"images/{number}.jpg")
        mask(tmp_path / f"masks/{number}.png", values=(0, 1))
    mask(tmp_path / "masks/1.png", values=(0, 1), size=(12, 16))
    mask(tmp_path / "masks/2.png", values=(0, 7, 255))
    (tmp_path / "masks/3.png").write_bytes(b"")
    (tmp_path / "images/4.jpg").write_bytes(b"")
    source, report = check(tmp_path, classes="background,cat")
    expected = {
        "masks/1.png": "mask-size",
        "masks/2.png": "mask-value",
        "masks/3.png": "image-empty",
        "images/4.jpg": "image-empty",
    }
    assert {issue.location.file: issue.code for issue in report.errors} == expected
    assert "7; there are 2 classes" in {issue.message for issue in report.errors}
    for index in range(1, 5):
        with pytest.raises(SampleError) as caught:
            source[index]
        assert caught.value.code == expected[caught.value.issue.location.file]
    assert len(check(tmp_path, on_error="drop", classes="background,cat")[0]) == 1
    source, _ = check(tmp_path, on_error="repair", classes="background,cat")
    (tmp_path / "out").mkdir()
    changes = FORMAT.write(source, tmp_path / "out")
    assert len(changes) == 4 and sorted(path.name for path in (tmp_path / "out").rglob("*.*")) == ["0.jpg", "0.png"]


def test_masks_of_0_and_255_are_pointed_out(tmp_path):
    image(tmp_path / "images/1.jpg")
    mask(tmp_path / "masks/1.png", values=(0, 255))
    source, report = check(tmp_path)
    assert report.counts == {"mask-binary": 1} and set(np.unique(source[0]["mask"])) == {0, 255}
    source, report = check(tmp_path, binary="true", classes="no,yes")
    assert not report.issues and set(np.unique(source[0]["mask"])) == {0, 1}


def test_masks_in_jpeg_are_lossy(tmp_path):
    image(tmp_path / "images/1.png")
    mask(tmp_path / "masks/1.jpg", values=(0, 0))
    for depth in ("index", "full"):
        report = check(tmp_path, depth=depth)[1]
        assert [(issue.code, issue.location.file) for issue in report.issues] == [("mask-lossy", "masks/1.jpg")]


def test_a_quick_check_finds_empty_and_foreign_files(tmp_path):
    for number in range(3):
        image(tmp_path / f"images/{number}.jpg")
        mask(tmp_path / f"masks/{number}.png")
    (tmp_path / "images/0.jpg").write_bytes(b"")
    (tmp_path / "masks/1.png").write_text("<html>")
    report = check(tmp_path, depth="index")[1]
    assert [(issue.code, issue.location.file) for issue in report.errors] == [
        ("image-empty", "images/0.jpg"), ("image-unreadable", "masks/1.png")
    ]  # fmt: skip
    assert len(check(tmp_path, on_error="drop", depth="index")[0]) == 1


def test_another_task_is_an_error(tmp_path):
    with pytest.raises(DataError):
        opened(example(tmp_path), task="image-classification")
    assert len(opened(tmp_path, task="semantic-segmentation")) == 6


def test_label_texts_are_no_masks(tmp_path):
    image(tmp_path / "images/1.jpg")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/1.txt").write_text("0 0.5 0.5 1 1")
    assert detect(Folder(tmp_path)) is None
    assert check(tmp_path)[1].counts == {"mask-missing": 1, "no-images": 1}


def test_masks_unlike_the_others_are_reported(tmp_path):
    for number in range(5):
        image(tmp_path / f"images/{number}.jpg")
        mask(tmp_path / f"masks/{number}.png", values=(0, 1, 2, 255))
    mask(tmp_path / "masks/2.png", values=(0, 1, 77))
    mask(tmp_path / "masks/3.png", values=(0, 100, 200), mode="RGB")
    report = check(tmp_path)[1]
    assert [(issue.code, issue.location.file, issue.message) for issue in report.issues] == [
        ("mask-modes", "masks/3.png", "grey values 0, 100, 200"),
        ("mask-value-rare", "masks/2.png", "77"),
        ("mask-value-rare", "masks/3.png", "100, 200"),
    ]
    report.data_format = "image_masks"
    assert "values    7: 0, 1, 2, 77, 100, 200, 255" in report_text(report)
    assert {issue.code for issue in check(tmp_path, classes="a,b,c")[1].issues} == {"mask-value"}


def test_masks_that_are_all_in_rgb_are_no_exception(tmp_path):
    for number in range(4):
        image(tmp_path / f"images/{number}.jpg")
        mask(tmp_path / f"masks/{number}.png", mode="RGB")
    assert not check(tmp_path)[1].issues
