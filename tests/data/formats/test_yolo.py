# SPDX-License-Identifier: Apache-2.0
import pickle

import numpy as np
import pytest

from fewbit.data.boxes import objects
from fewbit.data.check import check_dataset
from fewbit.data.detect import find_format
from fewbit.data.formats import yolo
from fewbit.errors import DataError, UsageError
from yolo_sets import BOX, OUTLINE, check, fill, flat, places, png, read, split_set, tree


def test_a_sample_has_image_boxes_classes_polygons_and_masks(tmp_path):
    source = read(flat(tmp_path, a=BOX + OUTLINE))
    sample = source.get(0)
    assert sample["image"].shape == (10, 20, 3) and sample["image"].dtype == np.uint8
    assert sample["boxes"].dtype == np.float32 and sample["boxes"][0].tolist() == pytest.approx([0.5, 0.5, 0.2, 0.2])
    assert sample["boxes"][1].tolist() == pytest.approx([0.3, 0.4, 0.4, 0.6])
    assert sample["classes"].dtype == np.int64 and sample["classes"].tolist() == [0, 1]
    assert sample["polygons"][0] is None and sample["polygons"][1].shape == (5, 2)
    assert sample["polygons"][1].dtype == np.float32
    assert sample["masks"].shape == (2, 10, 20) and sample["masks"].dtype == bool
    assert np.argwhere(sample["masks"][0]).tolist() == [[r, c] for r in (4, 5) for c in range(8, 12)]
    assert source.targets == {"boxes", "classes", "polygons", "masks"}
    assert str(sample.place) == "images/a.png, sample 0"


def test_task_is_inferred_from_the_rows(tmp_path):
    boxes = read(flat(tmp_path / "boxes", a=BOX))
    assert boxes.facts["task"] == "object-detection" and "masks" not in boxes.get(0)
    both = flat(tmp_path / "both", a=BOX, b=OUTLINE)
    assert read(both).facts["task"] == "segmentation"
    assert "masks" not in read(both, task="object_detection").get(1)
    assert read(tmp_path / "boxes", task="segmentation").get(0)["masks"].sum() == 8
    with pytest.raises(UsageError, match="classification"):
        read(both, task="classification")


def test_background_sample_has_empty_arrays(tmp_path):
    sample = read(flat(tmp_path, a=BOX, b=None), task="segmentation").get(1)
    assert sample["boxes"].shape == (0, 4) and sample["classes"].shape == (0,)
    assert sample["polygons"] == [] and sample["masks"].shape == (0, 10, 20)


def test_exif_rotation_is_applied_before_the_boxes_count(tmp_path):
    """The labels of a rotated photo belong to it upright (yolov5#405)."""
    import io

    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    stream = io.BytesIO()
    Image.new("RGB", (20, 10)).save(stream, "JPEG", exif=exif)
    folder = fill(tmp_path, {"images/a.jpg": stream.getvalue(), "labels/a.txt": "0 5 10 2 4\n"})
    assert read(folder, {"pixel-coordinates": "repair"}).get(0)["image"].shape == (20, 10, 3)
    assert read(folder, {"pixel-coordinates": "repair"}).get(0)["boxes"].tolist() == pytest.approx(
        np.array([[0.5, 0.5, 0.2, 0.2]])
    )
    assert "10 wide and 20 high" in check(folder).errors[0].message


def test_masks_that_would_fill_the_memory_are_refused(tmp_path, monkeypatch):
    source = read(flat(tmp_path, a=BOX + OUTLINE))
    monkeypatch.setattr("fewbit.data.limits.ARRAY_BYTES", 399)
    with pytest.raises(DataError) as caught:
        source.get(0)
    assert caught.value.code == "masks-too-large"
    monkeypatch.undo()
    monkeypatch.setattr(objects, "_CROSSINGS", 3)
    with pytest.raises(DataError):
        source.get(0)


def test_a_source_can_be_pickled_for_workers_and_keeps_its_order(tmp_path):
    source = read(flat(tmp_path, b=BOX, a=BOX, c10=BOX, c2=BOX))
    names = [source.place(i).path for i in range(len(source))]
    assert names == sorted(names)
    assert [sample.place for sample in pickle.loads(pickle.dumps(source))] == [s.place for s in source]


def test_class_beyond_nc_names_file_and_line(tmp_path):
    """yolov5#4370, #7692: users are never told which file."""
    flat(tmp_path, a=BOX, b=f"{BOX}5 0.5 0.5 0.1 0.1\n")
    assert places(check(tmp_path), "class-beyond") == ["labels/b.txt:2"]
    with pytest.raises(DataError) as caught:
        read(tmp_path).get(1)
    assert "labels/b.txt:2" in str(caught.value) and "2 classes" in str(caught.value)
    assert len(read(tmp_path, {"class-beyond": "drop"}).get(1)["boxes"]) == 1
    assert read(tmp_path, {"class-beyond": "keep"}).get(1)["classes"].tolist() == [0, 5]


def test_class_ids_all_from_one_on_are_suspected(tmp_path):
    report = check(flat(tmp_path, a="1 .5 .5 .2 .2\n2 .5 .5 .1 .1\n"))
    assert "classes-from-one" in report.counts and "class-beyond" in report.counts
    advice = next(finding.fix for finding in report.warnings if finding.code == "classes-from-one")
    assert "one_based=True in Python" in advice and "--option one_based=true on the command line" in advice
    report = check(tmp_path, one_based=True)
    assert report.ok and "classes-from-one" not in report.counts
    assert read(tmp_path, one_based=True).get(0)["classes"].tolist() == [0, 1]


def test_nine_values_may_be_an_oriented_box_and_the_warning_names_the_option(tmp_path):
    slanted = "0 0.5 0.1 0.9 0.5 0.5 0.9 0.1 0.5\n"
    flat(tmp_path, a=BOX + slanted)
    (finding,) = check(tmp_path).warnings
    assert finding.code == "maybe-oriented" and "oriented=True" in finding.fix
    assert not check(tmp_path, oriented=False).warnings and not check(tmp_path, oriented=True).warnings
    assert read(tmp_path, oriented=True).facts["task"] == "object-detection"
    assert read(tmp_path).facts["task"] == "segmentation"
    flat(tmp_path, b=OUTLINE)
    assert not check(tmp_path).warnings


def test_one_bad_box_never_throws_away_the_image(tmp_path):
    """YOLOv5 drops the whole image as corrupt: #3656, #4798, #10058, #2785."""
    source = read(flat(tmp_path, a=f"{BOX}0 0.9 0.5 0.4 0.2\n0 nan 0.5 0.1 0.1\n0 .1 .1 -1 .1\n{BOX}"))
    assert source.get(0)["boxes"].tolist() == pytest.approx(np.array([[0.5, 0.5, 0.2, 0.2], [0.85, 0.5, 0.3, 0.2]]))
    source.get(0)
    told = [(line["what"], line["where"]) for line in source.record.lines]
    assert told == [
        ("row-not-finite", "labels/a.txt:3"),
        ("out-of-range", "labels/a.txt:2"),
        ("box-empty", "labels/a.txt:4"),
        ("row-duplicate", "labels/a.txt:5"),
    ]


@pytest.mark.parametrize("code", ["out-of-range", "row-not-finite", "row-duplicate", "box-empty"])
def test_every_repair_can_be_made_an_error(tmp_path, code):
    flat(tmp_path, a=f"{BOX}0 0.9 0.5 0.4 0.2\n0 nan 0.5 0.1 0.1\n0 .1 .1 -1 .1\n{BOX}")
    with pytest.raises(DataError) as caught:
        read(tmp_path, {code: "raise"}).get(0)
    assert caught.value.code == code and "labels/a.txt:" in caught.value.where


def test_pixels_are_an_error_that_a_policy_repairs(tmp_path):
    flat(tmp_path, a="0 10 5 4 2\n")
    with pytest.raises(DataError, match="looks like pixels"):
        read(tmp_path).get(0)
    assert read(tmp_path, {"pixel-coordinates": "repair"}).get(0)["boxes"].tolist() == pytest.approx(
        np.array([[0.5, 0.5, 0.2, 0.2]])
    )
    with pytest.raises(UsageError, match="middle"):
        read(tmp_path, pixels="middle")


def test_segmentation_without_a_polygon_is_told(tmp_path):
    assert "no-polygons" in check(flat(tmp_path, a=BOX), task="segmentation").counts


def test_broken_images_are_found_by_a_full_check(tmp_path):
    flat(tmp_path, a=BOX, b=BOX, c=BOX, d=BOX)
    noise = png(64, 64)
    fill(tmp_path, {"images/a.png": b"", "images/b.png": noise[: len(noise) // 2], "images/c.png": "no image"})
    report = check(tmp_path)
    assert [(f.code, f.place.path) for f in report.errors] == [
        ("image-empty", "images/a.png"),
        ("image-unreadable", "images/c.png"),
        ("image-truncated", "images/b.png"),
    ]
    assert "image-truncated" not in check(tmp_path, quick=True).counts
    source = read(tmp_path)
    with pytest.raises(DataError) as caught:
        source.get(1)
    assert caught.value.code == "image-truncated" and "images/b.png" in caught.value.where
    dropped = {"image-empty": "drop", "image-truncated": "drop", "image-unreadable": "drop"}
    assert [sample.place.path for sample in read(tmp_path, dropped)] == ["images/d.png"]


def test_images_of_kinds_that_are_not_read_are_told(tmp_path):
    flat(tmp_path, a=BOX)
    fill(tmp_path, {"images/b.heic": "x"})
    assert places(check(tmp_path), "image-not-read") == ["images/b.heic"]


def test_the_same_image_in_two_splits_is_told(tmp_path):
    split_set(tmp_path, None)
    same = png(seed=99)
    fill(tmp_path, {"images/train/train0.png": same, "images/val/val1.png": same, "classes.txt": "cat\n"})
    assert places(check(tmp_path), "duplicate-across-splits") == ["images/val/val1.png"]
    assert not check(tmp_path, quick=True).warnings


def test_two_splits_that_are_the_same_folder_are_told_once_and_read_once(tmp_path):
    flat(tmp_path, a=BOX, b=BOX)
    fill(tmp_path, {"data.yaml": "train: images\nval: images\nnames: [cat, dog]\n"})
    report = check(tmp_path)
    assert report.counts["splits-alike"] == 1 and not report.warnings
    assert len(read(tmp_path)) == 2 and len(read(tmp_path, split="val")) == 2
    assert next(f.message for f in report.findings if f.code == "splits-alike").startswith("train and val are")


def test_a_label_file_that_two_splits_use_is_reported_once(tmp_path):
    flat(tmp_path, a=f"{BOX}0 1 2\n", b="", c=None)
    fill(tmp_path, {"data.yaml": "train: images\nval: images\nnames: [cat, dog]\n", "images/d.heic": "x"})
    report = check(tmp_path)
    assert {code: report.counts[code] for code in ("row-count", "label-empty", "label-missing", "image-not-read")} == {
        "row-count": 1,
        "label-empty": 1,
        "label-missing": 1,
        "image-not-read": 1,
    }
    assert report.understood["objects"] == {"cat": 1}
    assert report.understood["background"] == {"label_missing": 1, "label_empty": 1}


def test_the_dataset_is_never_written_to(tmp_path):
    """YOLOv5 rewrites "corrupt" JPEGs in place and puts labels.cache beside the labels."""
    noise = png(64, 64)
    flat(tmp_path, a=f"{BOX}{BOX}", b=OUTLINE)
    fill(tmp_path, {"images/b.png": noise[:-20]})
    before = tree(tmp_path)
    check(tmp_path)
    read(tmp_path).get(0)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("files", "least"),
    [
        ({"images/a.png": b"", "labels/a.txt": ""}, 0.9),
        ({"train/images/a.png": b"", "train/labels/a.txt": ""}, 0.9),
        ({"images/train/a.png": b"", "labels/train/a.txt": ""}, 0.9),
        ({"data.yaml": "train: x\nnames: [a]\n"}, 0.9),
        ({"a.png": b"", "a.txt": BOX}, 0.9),
        ({"images/a.png": b""}, 0.3),
    ],
)
def test_detect_knows_its_layouts(tmp_path, files, least):
    match = yolo.detect(fill(tmp_path, files))
    assert match.confidence >= least and match.reason


def test_detect_leaves_other_things_alone(tmp_path):
    assert yolo.detect([1, 2]) is None and yolo.detect(tmp_path) is None and yolo.detect(tmp_path / "gone") is None
    fill(tmp_path, {"cat/a.png": b"", "dog/b.png": b"", "settings.yaml": "lr: 1\n", "train.jsonl": "{}"})
    assert yolo.detect(tmp_path) is None and yolo.detect(tmp_path / "settings.yaml") is None


def test_detect_leaves_images_with_captions_alone(tmp_path):
    assert yolo.detect(fill(tmp_path, {"a.png": b"", "a.txt": "a cat on a very red mat"})) is None


@pytest.mark.parametrize(
    "files",
    [
        {"train/a.png": None, "train/a.txt": BOX},
        {"train/a.png": None, "train/a.txt": BOX, "val/b.png": None, "val/b.txt": BOX},
        {"obj_train_data/a.jpg": None, "obj_train_data/a.txt": BOX, "obj.names": "cat\n", "train.txt": "data/a.jpg\n"},
        {"day1/a.png": None, "day1/a.txt": BOX, "day2/b.png": None, "day2/b.txt": ""},
        {"train/day1/a.png": None, "train/day1/a.txt": "\ufeff\n0,0.5,0.5,0.2,0.2\n"},
        {f"train/{n}.png": None for n in range(20)} | {f"train/{n}.txt": BOX if n == 19 else "" for n in range(20)},
    ],
)
def test_label_files_beside_their_images_decide_for_yolo(tmp_path, files):
    """They lie in folders that could be classes or splits, so another format has a claim, too."""
    assert find_format(fill(tmp_path, files))[0] == "yolo"
    assert len(read(tmp_path, {"row-commas": "repair"})) == sum(name.endswith("g") for name in files)


def test_captions_or_one_label_file_among_classes_do_not_decide_for_yolo(tmp_path):
    fill(tmp_path, {"train/a.png": None, "train/a.txt": "2 cats on 1 mat", "train/b.png": None, "train/b.txt": "a dog"})
    assert find_format(tmp_path)[0] == "image_folder"
    fill(tmp_path / "more", {"cat/a.png": None, "cat/a.txt": BOX, "dog/b.png": None})
    with pytest.raises(UsageError, match="more than one format"):
        find_format(tmp_path / "more")


def test_the_check_shows_each_sample_once(tmp_path):
    assert len(check_dataset(flat(tmp_path, a=BOX, b=BOX)).samples) == 2


def test_an_image_whose_rows_were_all_dropped_is_noted_as_looking_like_background(tmp_path):
    from PIL import Image

    import fewbit

    for part in ("images", "labels"):
        (tmp_path / part).mkdir()
    for name, row in (("good", "0 0.5 0.5 0.2 0.2"), ("bad", "0 0.5 0.5 0.2")):
        Image.new("RGB", (16, 16), 9 if name == "good" else 70).save(tmp_path / "images" / f"{name}.png")
        (tmp_path / "labels" / f"{name}.txt").write_text(f"{row}\n")
    dataset = fewbit.open_dataset(tmp_path, policy="drop")
    for _ in range(2):
        assert [len(sample["boxes"]) for sample in dataset] == [0, 1]
    assert [line["what"] for line in dataset.record.lines].count("objects-lost") == 1
