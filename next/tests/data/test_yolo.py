# SPDX-License-Identifier: Apache-2.0
"""YOLO samples, what is judged over the whole dataset, detection, and what is never done."""

import io
import pickle

import numpy as np
import pytest
from PIL import Image

from detection_sets import BOX, OUTLINE, check, codes, confidence, fill, flat, places, png, read, scan, split_set, tree
from fewbit.data.dataset import Dataset
from fewbit.data.files import Folder
from fewbit.data.formats import yolo
from fewbit.data.images import shapes
from fewbit.data.opening import choose_format
from fewbit.data.types import SampleError
from fewbit.errors import DataError, UsageError


def test_a_sample_has_image_boxes_classes_polygons_and_masks(tmp_path):
    source = read(flat(tmp_path, a=BOX + OUTLINE))
    sample = source[0]
    assert sample["image"].shape == (10, 20, 3) and sample["image"].dtype == np.uint8
    assert sample["boxes"].dtype == np.float32
    assert sample["boxes"].tolist() == pytest.approx(np.array([[0.5, 0.5, 0.2, 0.2], [0.3, 0.4, 0.4, 0.6]]))
    assert sample["classes"].dtype == np.int64 and sample["classes"].tolist() == [0, 1]
    assert sample["polygons"][0] is None and sample["polygons"][1].shape == (5, 2)
    assert sample["polygons"][1].dtype == np.float32
    assert sample["masks"].shape == (2, 10, 20) and sample["masks"].dtype == bool
    assert np.argwhere(sample["masks"][0]).tolist() == [[row, column] for row in (4, 5) for column in range(8, 12)]
    assert str(source.location(0)) == "images/a.png" and source.facts["classes"] == ["cat", "dog"]


def test_the_task_follows_from_the_rows(tmp_path):
    boxes = read(flat(tmp_path / "boxes", a=BOX))
    assert boxes.facts["task"] == "object-detection" and "masks" not in boxes[0]
    both = flat(tmp_path / "both", a=BOX, b=OUTLINE)
    assert read(both).facts["task"] == "segmentation" and check(both).facts["task"] == "segmentation"
    assert "masks" not in read(both, task="detection")[1]
    assert read(tmp_path / "boxes", task="segmentation")[0]["masks"].sum() == 8
    with pytest.raises(UsageError, match="image-classification"):
        read(both, task="image-classification")


def test_an_image_without_labels_has_empty_arrays(tmp_path):
    sample = read(flat(tmp_path, a=BOX, b=None), task="segmentation")[1]
    assert sample["boxes"].shape == (0, 4) and sample["classes"].shape == (0,)
    assert sample["polygons"] == [] and sample["masks"].shape == (0, 10, 20)


def test_boxes_belong_to_the_upright_image(tmp_path):
    """yolov5#405: labels of a photo with EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = 6
    stream = io.BytesIO()
    Image.new("RGB", (20, 10)).save(stream, "JPEG", exif=exif)
    folder = fill(tmp_path, {"images/a.jpg": stream.getvalue(), "labels/a.txt": "0 5 10 2 4\n"})
    sample = read(folder, on_error={"pixel-coordinates": "repair"}, pixels="centre")[0]
    assert sample["image"].shape == (20, 10, 3)
    assert sample["boxes"].tolist() == pytest.approx(np.array([[0.5, 0.5, 0.2, 0.2]]))
    assert "10 x 20" in check(folder).errors[0].message


def test_masks_that_would_fill_the_memory_are_refused(tmp_path, monkeypatch):
    source = read(flat(tmp_path, a=BOX + OUTLINE))
    for limit in ("MOST_MASK_BYTES", "MOST_CROSSINGS"):
        monkeypatch.setattr(shapes, limit, 3)
        with pytest.raises(SampleError) as caught:
            source[0]
        assert caught.value.code == "masks-too-large"
        assert codes(check(tmp_path).errors) == ["masks-too-large"]
        monkeypatch.undo()


def test_a_source_can_be_pickled_and_keeps_its_order(tmp_path):
    source = read(flat(tmp_path, b=BOX, a=BOX, c10=BOX, c2=BOX))
    names = [source.location(index).file for index in range(len(source))]
    assert names == sorted(names)
    copy = pickle.loads(pickle.dumps(source))
    assert [copy.location(index).file for index in range(len(copy))] == names
    assert np.array_equal(copy[1]["image"], source[1]["image"])


def test_a_class_beyond_the_names_is_located(tmp_path):
    """yolov5#4370, #7692: users are not told which file."""
    flat(tmp_path, a=BOX, b=f"{BOX}5 0.5 0.5 0.1 0.1\n")
    assert places(check(tmp_path), "class-beyond") == ["labels/b.txt:2"]
    with pytest.raises(SampleError) as caught:
        read(tmp_path)[1]
    assert "labels/b.txt:2" in str(caught.value) and "2 classes" in str(caught.value)
    assert len(read(tmp_path, on_error={"class-beyond": "drop"})[1]["boxes"]) == 1
    assert read(tmp_path, on_error={"class-beyond": "keep"})[1]["classes"].tolist() == [0, 5]


def test_classes_that_may_count_from_one_are_a_warning_and_never_shifted(tmp_path):
    report = check(flat(tmp_path, a="1 .5 .5 .2 .2\n2 .5 .5 .1 .1\n"))
    assert {"classes-from-one", "class-beyond"} <= set(report.counts)
    assert "one_based" in report.types["classes-from-one"].hint
    report = check(tmp_path, one_based=True)
    assert report.ok and "classes-from-one" not in report.counts
    assert read(tmp_path, one_based=True)[0]["classes"].tolist() == [0, 1]


def test_rows_of_nine_values_may_be_oriented_boxes(tmp_path):
    flat(tmp_path, a=BOX + "0 0.5 0.1 0.9 0.5 0.5 0.9 0.1 0.5\n")
    assert codes(check(tmp_path).warnings) == ["maybe-oriented"]
    assert not check(tmp_path, oriented=False).warnings and not check(tmp_path, oriented=True).warnings
    assert read(tmp_path, oriented=True).facts["task"] == "object-detection"
    assert check(tmp_path, oriented=True).facts["task"] == "object-detection"
    assert read(tmp_path).facts["task"] == "segmentation"
    flat(tmp_path, b=OUTLINE)
    assert not check(tmp_path).warnings


def test_upright_rectangles_of_nine_values_are_not_suspicious(tmp_path):
    assert not check(flat(tmp_path, a="0 .1 .1 .5 .1 .5 .5 .1 .5\n")).warnings


BAD_ROWS = f"{BOX}0 0.9 0.5 0.4 0.2\n0 nan 0.5 0.1 0.1\n0 .1 .1 -1 .1\n{BOX}"


def test_a_bad_row_never_costs_the_image(tmp_path):
    """YOLOv5 drops the whole image as corrupt: #3656, #4798, #10058, #2785."""
    source = read(flat(tmp_path, a=BAD_ROWS))
    assert source[0]["boxes"].tolist() == pytest.approx(np.array([[0.5, 0.5, 0.2, 0.2], [0.85, 0.5, 0.3, 0.2]]))
    report = check(tmp_path)
    assert {issue.code: issue.location.line for issue in report.issues} == {
        "row-not-finite": 3, "out-of-range": 2, "box-empty": 4, "row-duplicate": 5,
    }  # fmt: skip
    assert report.facts["class_counts"] == {"cat": 2, "dog": 0}


@pytest.mark.parametrize("code", ["out-of-range", "row-not-finite", "row-duplicate", "box-empty"])
def test_every_repair_can_be_made_an_error(tmp_path, code):
    flat(tmp_path, a=BAD_ROWS)
    with pytest.raises(SampleError) as caught:
        read(tmp_path, on_error={code: "raise"})[0]
    assert caught.value.code == code and "labels/a.txt:" in caught.value.where


def test_pixels_are_repaired_if_asked_for(tmp_path):
    flat(tmp_path, a="0 10 5 4 2\n")
    with pytest.raises(SampleError, match="several ways"):
        read(tmp_path, on_error={"pixel-coordinates": "repair"})[0]
    with pytest.raises(SampleError, match="looks like pixels"):
        read(tmp_path)[0]
    sample = read(tmp_path, on_error={"pixel-coordinates": "repair"}, pixels="centre")[0]
    assert sample["boxes"].tolist() == pytest.approx(np.array([[0.5, 0.5, 0.2, 0.2]]))
    with pytest.raises(UsageError, match="middle"):
        read(tmp_path, pixels="middle")


@pytest.mark.parametrize(("alias", "row"), [("class-by-name", "dog .5 .5 .2 .2\n"), ("row-encoding", "0 x .5 .2 .2\n")])
def test_codes_of_the_old_version_are_accepted(tmp_path, alias, row):
    flat(tmp_path, a=BOX + row)
    assert len(read(tmp_path, on_error={alias: "drop"})[0]["boxes"]) == 1
    with pytest.raises(SampleError):
        read(tmp_path)[0]
    aliases = {alias for kind in yolo.FORMAT.issues for alias in kind.aliases}
    assert {"folder-too-large", "polygon-repeats", "polygon-tangled", "image-not-read"} <= aliases


def test_segmentation_without_polygons_is_a_warning(tmp_path):
    assert "no-polygons" in check(flat(tmp_path, a=BOX), task="segmentation").counts


def test_an_image_that_lost_all_its_rows_is_an_issue_and_no_background(tmp_path):
    flat(tmp_path, bad="0 0.5 0.5 0.2\n", good=BOX, none="")
    report = check(tmp_path, on_error="drop")
    assert places(report, "objects-lost") == ["images/bad.png"] and report.facts["samples"] == 2
    dataset = Dataset.of(*scan(tmp_path, on_error="drop"))
    assert [len(sample["boxes"]) for sample in dataset] == [1, 0]
    assert dataset.record["dropped"] == ["images/bad.png"]
    kept = read(tmp_path, on_error={"row-count": "drop", "objects-lost": "keep"})
    assert [len(kept[index]["boxes"]) for index in range(3)] == [0, 1, 0]


def test_label_files_without_usable_rows_are_a_warning(tmp_path):
    report = check(flat(tmp_path, a="", b=" \n"))
    assert places(report, "labels-all-empty") == ["."] and report.counts["label-empty"] == 2


def test_damaged_images_are_found_by_a_full_scan(tmp_path):
    flat(tmp_path, a=BOX, b=BOX, c=BOX, d=BOX)
    noise = png(64, 64)
    fill(tmp_path, {"images/a.png": b"", "images/b.png": noise[: len(noise) // 2], "images/c.png": "no image"})
    report = check(tmp_path)
    assert [(issue.code, issue.location.file) for issue in report.errors] == [
        ("image-empty", "images/a.png"),
        ("image-truncated", "images/b.png"),
        ("image-unreadable", "images/c.png"),
    ]
    assert "image-truncated" not in scan(tmp_path)[1].counts
    with pytest.raises(SampleError) as caught:
        read(tmp_path, on_error={"image-empty": "drop", "image-unreadable": "drop"})[0]
    assert caught.value.code == "image-truncated" and "images/b.png" in caught.value.where
    source, _ = scan(tmp_path, depth="full", on_error="drop")
    assert [source.location(index).file for index in range(len(source))] == ["images/d.png"]


def test_images_of_other_kinds_are_named(tmp_path):
    flat(tmp_path, a=BOX)
    fill(tmp_path, {"images/b.heic": "x"})
    assert places(check(tmp_path), "image-skipped") == ["images/b.heic"]


def test_the_same_image_in_two_splits_is_a_warning(tmp_path):
    split_set(tmp_path, None)
    same = png(seed=99)
    fill(tmp_path, {"images/train/train0.png": same, "images/val/val1.png": same, "classes.txt": "cat\n"})
    assert places(check(tmp_path), "duplicate-across-splits") == ["images/val/val1.png"]
    source, _ = scan(tmp_path, depth="full", on_error={"duplicate-across-splits": "drop"})
    assert len(source) == 3


def test_two_splits_of_one_folder_are_read_and_reported_once(tmp_path):
    flat(tmp_path, a=f"{BOX}0 1 2\n", b="", c=None)
    fill(tmp_path, {"data.yaml": "train: images\nval: images\nnames: [cat, dog]\n", "images/d.heic": "x"})
    report = check(tmp_path)
    once = ("splits-alike", "row-count", "label-empty", "label-missing", "image-skipped")
    assert {code: report.counts[code] for code in once} == dict.fromkeys(once, 1)
    assert "duplicate-across-splits" not in report.counts
    assert len(read(tmp_path)) == 3 and len(read(tmp_path, split="val")) == 3
    assert report.facts["splits"] == {"train": 3, "val": 3} and report.facts["class_counts"] == {"cat": 1, "dog": 0}


def test_a_dataset_is_never_written_to(tmp_path):
    """YOLOv5 rewrites "corrupt" JPEGs in place and leaves labels.cache next to the labels."""
    flat(tmp_path, a=f"{BOX}{BOX}", b=OUTLINE)
    fill(tmp_path, {"images/b.png": png(64, 64)[:-20]})
    before = tree(tmp_path)
    check(tmp_path)
    read(tmp_path)[0]
    assert tree(tmp_path) == before


def test_strata_are_the_splits(tmp_path):
    assert read(split_set(tmp_path / "splits", None)).strata() == ["train", "train", "val", "val"]
    assert read(flat(tmp_path / "flat", a=BOX)).strata() is None


def test_the_example_is_clean(tmp_path):
    report = check(yolo.example(tmp_path))
    assert report.ok and not report.warnings and set(report.counts) == {"label-empty"}


@pytest.mark.parametrize(
    ("files", "least", "most"),
    [
        ({"images/a.png": b"", "labels/a.txt": ""}, 0.9, 1),
        ({"train/images/a.png": b"", "train/labels/a.txt": BOX}, 0.9, 1),
        ({"images/train/a.png": b"", "labels/train/a.txt": BOX}, 0.9, 1),
        ({"set/images/train/a.png": b"", "set/labels/train/a.txt": BOX}, 0.9, 1),
        ({"data.yaml": "train: x\nnames: [a]\n"}, 0.9, 1),
        ({"a.png": b"", "a.txt": BOX}, 0.9, 1),
        ({"cat/a.png": b"", "cat/a.txt": BOX, "dog/b.png": b"", "dog/c.png": b""}, 0.8, 0.9),
        ({"images/a.png": b""}, 0.3, 0.4),
        ({"images/a.png": b"", "annotations/instances.json": "{}"}, 0.0, 0.3),
        ({"images/a.png": b"", "labels/a.png": b""}, 0.0, 0.4),
        ({"images/a.png": b"", "labels/a.txt": "a cat on a very red mat"}, 0.0, 0.3),
        ({"JPEGImages/a.jpg": b"", "Annotations/a.xml": "<annotation/>"}, 0.0, 0.0),
        ({"train2017/a.jpg": b"", "annotations/instances_train2017.json": "{}"}, 0.0, 0.0),
        ({"cat/a.png": b"", "dog/b.png": b"", "settings.yaml": "lr: 1\n", "train.jsonl": "{}"}, 0.0, 0.0),
        ({"a.png": b"", "a.txt": "a cat on a very red mat"}, 0.0, 0.0),
        ({"a.png": b"", "a.txt": "2 cats on 1 mat"}, 0.0, 0.0),
    ],
)
def test_detection_knows_its_layouts_and_leaves_others_alone(tmp_path, files, least, most):
    assert least <= confidence(fill(tmp_path, files), yolo.detect) <= most


@pytest.mark.parametrize(
    "files",
    [
        {"train/a.png": None, "train/a.txt": BOX, "val/b.png": None, "val/b.txt": BOX},
        {"obj_train_data/a.jpg": None, "obj_train_data/a.txt": BOX, "obj.names": "cat\n", "train.txt": "data/a.jpg\n"},
        {"day1/a.png": None, "day1/a.txt": BOX, "day2/b.png": None, "day2/b.txt": ""},
        {"train/day1/a.png": None, "train/day1/a.txt": "\ufeff\n0,0.5,0.5,0.2,0.2\n"},
        {f"train/{n}.png": None for n in range(20)} | {f"train/{n}.txt": BOX if n == 19 else "" for n in range(20)},
    ],
)
def test_label_files_beside_images_decide_for_yolo(tmp_path, files):
    """They are in folders that could be classes or splits, so the image folder has a claim, too."""
    assert confidence(fill(tmp_path, files), yolo.detect) == 1
    assert len(read(tmp_path, on_error={"row-commas": "repair"})) == sum(name.endswith("g") for name in files)


def test_the_example_is_opened_without_naming_the_format(tmp_path):
    assert choose_format(Folder(yolo.example(tmp_path)))[0].name == "yolo"


def test_a_folder_of_something_else_has_no_images(tmp_path):
    with pytest.raises(DataError):
        read(fill(tmp_path, {"note.md": "hello"}))
