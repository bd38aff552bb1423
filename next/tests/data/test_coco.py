# SPDX-License-Identifier: Apache-2.0
"""COCO: annotation files, their images, and everything that can be wrong with either."""

import json
import pickle
import random

import numpy as np
import pytest

import fewbit
from detection_sets import check, codes, confidence, fill, places, png, read, scan, tree
from fewbit.data.dataset import Dataset
from fewbit.data.files import Folder
from fewbit.data.formats import coco, image_folder, yolo
from fewbit.data.opening import choose_format
from fewbit.data.report_text import report_text
from fewbit.data.types import SampleError
from fewbit.errors import DataError, UsageError


def annotation(number, image=1, category=1, bbox=(4, 2, 8, 4), **more):
    return {"id": number, "image_id": image, "category_id": category, "bbox": list(bbox), "iscrowd": 0, **more}


def content(annotations, images=None, categories=None):
    default = [{"id": 1, "file_name": "a.png", "width": 20, "height": 10}]
    names = [{"id": 7, "name": "dog"}, {"id": 1, "name": "cat"}]
    return {
        "images": images or default,
        "annotations": annotations,
        "categories": names if categories is None else categories,
    }


def dataset(folder, *args, **kwargs):
    return fill(folder, {"images/a.png": None, "instances.json": json.dumps(content(*args, **kwargs))})


def issues(data, **options):
    return dict(check(data, "coco", **options).counts)


def test_a_sample_has_relative_boxes_and_contiguous_classes_in_the_order_of_ids(tmp_path):
    source = read(dataset(tmp_path, [annotation(1), annotation(2, category=7, bbox=(0, 0, 20, 10))]), "coco")
    sample = source[0]
    assert sample["image"].shape == (10, 20, 3) and "masks" not in sample
    assert sample["boxes"].tolist() == pytest.approx(np.array([[0.4, 0.4, 0.4, 0.4], [0.5, 0.5, 1, 1]]))
    assert sample["boxes"].dtype == np.float32 and sample["classes"].tolist() == [0, 1]
    assert source.facts["classes"] == ["cat", "dog"] and source.facts["task"] == "object-detection"
    assert pickle.loads(pickle.dumps(source))[0]["classes"].tolist() == [0, 1]


def test_polygons_and_runs_become_masks(tmp_path):
    polygons = [[0, 0, 4, 0, 4, 10, 0, 10], [10, 0, 12, 0, 12, 10, 10, 10]]
    runs = {"size": [10, 20], "counts": [50, 10, 140]}
    compressed = {"size": [10, 20], "counts": "b1:\\4"}
    entries = [
        annotation(1, bbox=(0, 0, 12, 10), segmentation=polygons),
        annotation(2, bbox=(5, 0, 1, 10), segmentation=runs),
        annotation(3, category=7, bbox=(5, 0, 1, 10), segmentation=compressed),
        annotation(4),
    ]
    masks = read(dataset(tmp_path, entries), "coco", task="segmentation")[0]["masks"]
    assert masks.shape == (4, 10, 20) and masks.dtype == bool
    assert np.flatnonzero(masks[0].all(axis=0)).tolist() == [0, 1, 2, 3, 10, 11] and masks[0].sum() == 60
    assert np.flatnonzero(masks[1].all(axis=0)).tolist() == [5] and masks[1].sum() == 10
    assert np.array_equal(masks[1], masks[2])
    assert masks[3].sum() == 32, "an annotation without a segmentation is its box"


def test_the_example_has_splits_and_no_issues(tmp_path):
    source, report = scan(coco.example(tmp_path), "coco", depth="full", task="segmentation")
    assert report.ok and not report.issues and report.facts["splits"] == {"train": 3, "val": 2}
    assert source.strata() == ["train"] * 3 + ["val"] * 2
    assert report.facts["class_counts"] == {"cat": 5, "dog": 5}
    assert [source.location(index).file for index in range(5)][::4] == ["train2017/t0.png", "val2017/v1.png"]
    assert len(read(tmp_path, "coco", split="validation")) == 2
    with pytest.raises(UsageError, match="no split 'test'"):
        read(tmp_path, "coco", split="test")


def test_an_annotation_file_alone_finds_its_images(tmp_path):
    coco.example(tmp_path)
    file = tmp_path / "annotations" / "instances_val2017.json"
    assert confidence(file, coco.detect) > 0.9
    source = read(file, "coco")
    assert len(source) == 2 and source[1]["image"].shape == (24, 32, 3)


def test_annotations_next_to_the_images_of_each_split(tmp_path):
    """Roboflow's export; both splits have an image of the same name."""
    for split in ("train", "valid"):
        text = json.dumps(content([annotation(1)]))
        fill(tmp_path, {f"{split}/a.png": png(seed=ord(split[0])), f"{split}/_annotations.coco.json": text})
    source, report = scan(tmp_path, "coco", depth="full")
    assert report.ok and report.facts["splits"] == {"train": 1, "val": 1}
    assert [source.location(index).file for index in range(2)] == ["train/a.png", "valid/a.png"]


def test_file_names_may_be_paths_of_another_machine(tmp_path):
    for name in ("C:\\data\\images\\a.png", "/home/me/a.png", "./images/a.png"):
        dataset(tmp_path, [annotation(1)], images=[{"id": 1, "file_name": name, "width": 20, "height": 10}])
        assert len(read(tmp_path, "coco")) == 1


def test_boxes_of_instances_and_keypoints_are_read_and_captions_are_not(tmp_path):
    coco.example(tmp_path)
    captions = json.dumps(content([{"id": 1, "image_id": 1, "caption": "a cat"}]))
    fill(tmp_path, {"annotations/captions_train2017.json": captions})
    assert check(tmp_path, "coco").ok
    only = fill(tmp_path / "captions", {"a.png": None, "captions.json": captions})
    assert not check(only, "coco").ok
    keypoints = json.dumps(content([annotation(1, keypoints=[1, 2, 2], num_keypoints=1)]))
    people = fill(tmp_path / "people", {"a.png": None, "person_keypoints.json": keypoints})
    assert check(people, "coco").facts["class_counts"]["cat"] == 1


def test_crowd_regions_are_left_out_with_a_note_unless_asked_for(tmp_path):
    dataset(tmp_path, [annotation(1), {**annotation(2, bbox=(0, 0, 9, 9)), "iscrowd": 1}])
    assert issues(tmp_path) == {"crowd-skipped": 1} and len(read(tmp_path, "coco")[0]["boxes"]) == 1
    assert len(read(tmp_path, "coco", crowd=True)[0]["boxes"]) == 2


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([annotation(1), annotation(2, image=9)], "annotation-orphan"),
        ([annotation(1), {"id": 2}], "annotation-orphan"),
        ([annotation(1), 5], "annotation-orphan"),
        ([annotation(1), annotation(2, category=3)], "class-beyond"),
        ([annotation(1), annotation(2, category=[[]])], "class-beyond"),
        ([annotation(1), annotation(2, bbox=(15, 0, 10, 10))], "out-of-range"),
        ([annotation(1), annotation(2, bbox=(30, 0, 10, 10))], "outside-image"),
        ([annotation(1), annotation(2, bbox=(3, 3, 0, 4))], "box-empty"),
        ([annotation(1), annotation(2, bbox=(3, 3, 4))], "box-invalid"),
        ([annotation(1), annotation(2, bbox=("3", 3, 4, 4))], "box-invalid"),
        ([annotation(1), annotation(2, bbox=(3, 3, 1e300, 4))], "box-invalid"),
        ([annotation(1), annotation(2)], "row-duplicate"),
        ([annotation(2, bbox=(30, 0, 10, 10))], "objects-lost"),
    ],
)
def test_wrong_annotations_are_located_and_cost_only_themselves(tmp_path, entries, code):
    report = check(dataset(tmp_path, entries), "coco")
    assert code in report.counts
    if code != "objects-lost":
        assert places(report, code) == ["instances.json row 1 (annotations)"]
        source, _ = scan(tmp_path, "coco", on_error="drop")
        assert len(source[0]["boxes"]) in (1, 2)


def test_a_box_beyond_the_border_is_clipped(tmp_path):
    sample = read(dataset(tmp_path, [annotation(1, bbox=(15, 0, 10, 10))]), "coco")[0]
    assert sample["boxes"].tolist() == pytest.approx(np.array([[0.875, 0.5, 0.25, 1]]))


def test_nan_is_read_as_python_writes_it_and_is_an_issue(tmp_path):
    dataset(tmp_path, [annotation(1), annotation(2, bbox=(float("nan"), 0, 1, 1))])
    assert issues(tmp_path) == {"box-invalid": 1}


@pytest.mark.parametrize(
    "segmentation",
    [
        {"size": [10, 20], "counts": [1, 2]}, {"size": [20, 10], "counts": [200]}, {"size": [10, 20]},
        {"size": [10, 20], "counts": "zz\x01"}, {"size": [10, 20], "counts": "0" * 5000}, [[0, 0, 1, 1]], [["x"] * 6],
        [[1] * 7], "text", [[0, 0, 1e300, 1, 1, 1]],
    ],
)  # fmt: skip
def test_wrong_segmentations_are_issues(tmp_path, segmentation):
    dataset(tmp_path, [annotation(1), annotation(2, segmentation=segmentation)])
    report = check(tmp_path, "coco", task="segmentation")
    assert places(report, "segmentation-invalid") == ["instances.json row 1 (annotations)"]
    assert "segmentation-invalid" not in issues(tmp_path), "boxes alone do not need it"


def test_images_that_are_missing_twice_or_nameless_are_located(tmp_path):
    images = [
        {"id": 1, "file_name": "a.png", "width": 20, "height": 10},
        {"id": 1, "file_name": "b.png"},
        {"id": 2, "file_name": "gone.png"},
        {"id": 3},
        "text",
    ]
    report = check(dataset(tmp_path, [annotation(1), annotation(2, image=2)], images=images), "coco")
    assert places(report, "image-missing") == ["instances.json row 2 (images)"]
    assert places(report, "image-entry-invalid") == [f"instances.json row {row} (images)" for row in (1, 3, 4)]
    with pytest.raises(DataError):
        read(tmp_path, "coco")
    assert len(read(tmp_path, "coco", on_error="drop")) == 1


def test_another_size_than_the_file_says_is_an_error(tmp_path):
    images = [{"id": 1, "file_name": "a.png", "width": 40, "height": 20}]
    report = check(dataset(tmp_path, [annotation(1, bbox=(8, 4, 16, 8))], images=images), "coco")
    assert codes(report.errors) == ["image-size-mismatch"] and "20 x 10" in report.errors[0].message
    with pytest.raises(SampleError):
        read(tmp_path, "coco")[0]
    kept = read(tmp_path, "coco", on_error={"image-size-mismatch": "keep"})[0]
    assert kept["boxes"].tolist() == pytest.approx(np.array([[0.4, 0.4, 0.4, 0.4]]))
    assert len(scan(tmp_path, "coco", depth="full", on_error="drop")[0]) == 0


def test_sizes_that_are_not_given_are_taken_from_the_image(tmp_path):
    dataset(tmp_path, [annotation(1)], images=[{"id": 1, "file_name": "a.png"}])
    assert check(tmp_path, "coco").ok and read(tmp_path, "coco")[0]["boxes"][0].tolist() == pytest.approx([0.4] * 4)


def test_damaged_images_are_found_by_a_full_scan(tmp_path):
    fill(coco.example(tmp_path), {"train2017/t1.png": b"", "val2017/v0.png": png(64, 64)[:200]})
    assert sorted(codes(check(tmp_path, "coco").errors)) == ["image-empty", "image-truncated"]
    dataset = Dataset.of(*scan(tmp_path, "coco", on_error="drop"))
    assert len(list(dataset)) == 3


@pytest.mark.parametrize(
    "text",
    ["{", '{"images": 5, "annotations": [], "file_name": 1}', '{"images": [], "annotations": {}}', "[" * 5000, "[1]"],
)
def test_an_annotation_file_that_cannot_be_read_is_an_error(tmp_path, text):
    head = '{"images": [{"file_name": "a.png"}], "x": '
    for broken in (text, head + text):
        fill(tmp_path, {"a.png": None, "instances.json": broken})
        report = check(tmp_path, "coco")
        assert set(codes(report.errors)) & {"label-unreadable", "no-images"}


def test_entries_nested_without_end_do_no_harm(tmp_path):
    deep = "[" * 900 + "]" * 900
    entry = f'{{"id": {deep}, "image_id": 1, "category_id": {deep}, "bbox": {deep}, "segmentation": {deep}}}'
    text = f'{{"images": [{{"id": 1, "file_name": "a.png"}}, {deep}], "annotations": [{deep}, {entry}]'
    text += f', "categories": [{{"id": 1, "name": {deep}}}]}}'
    fill(tmp_path, {"a.png": None, "instances.json": text})
    report = check(tmp_path, "coco", task="segmentation")
    assert {"image-entry-invalid", "annotation-orphan", "class-beyond"} <= set(report.counts)


def test_without_categories_there_is_one_error(tmp_path):
    report = check(dataset(tmp_path, [annotation(n) for n in range(5)], categories=[]), "coco")
    assert codes(report.errors) == ["categories-missing"]


def test_files_that_number_categories_differently_are_a_warning(tmp_path):
    coco.example(tmp_path)
    other = tmp_path / "annotations" / "instances_val2017.json"
    other.write_text(other.read_text().replace('"dog"', '"wolf"'))
    assert "names-conflict" in issues(tmp_path)


def test_coco_is_not_taken_for_another_format(tmp_path):
    coco.example(tmp_path)
    assert choose_format(Folder(tmp_path))[0].name == "coco"
    assert confidence(tmp_path, yolo.detect) == 0 and confidence(tmp_path, image_folder.detect) < 0.5
    dataset(tmp_path / "other", [annotation(1)])
    assert choose_format(Folder(tmp_path / "other"))[0].name == "coco"
    fill(tmp_path / "rows", {"train.json": '{"data": [{"text": "x"}]}', "a.json": '{"images": "none"}'})
    assert confidence(tmp_path / "rows", coco.detect) == 0


def test_mutated_files_end_in_samples_or_issues(tmp_path):
    generator = random.Random(3)
    data = coco.example(tmp_path)
    victim = data / "annotations" / "instances_train2017.json"
    original, known = victim.read_bytes(), {kind.code for kind in coco.FORMAT.issues}
    for _ in range(150):
        damaged = bytearray(original)
        for _ in range(generator.randint(1, 4)):
            start = generator.randrange(len(damaged))
            end = min(len(damaged), start + generator.randint(0, 6))
            damaged[start:end] = generator.choice(
                [b"", b"9", b"null", b"-1e9", b"[]", b'"', b"NaN", b"{}", damaged[start:end] * 2]
            )
        victim.write_bytes(damaged)
        before = tree(data)
        source, report = scan(data, "coco", depth="full", task="segmentation", on_error="drop")
        assert set(report.counts) <= known
        for index in range(len(source)):
            try:
                sample = source[index]
                assert len(sample["boxes"]) == len(sample["masks"]) == len(sample["classes"])
            except SampleError as error:
                assert error.code in known
        assert tree(data) == before


def test_a_repaired_copy_has_what_can_be_used(tmp_path):
    images = [
        {"id": n, "file_name": f"{name}.png", "width": 20, "height": 10} for n, name in enumerate("abgc", start=1)
    ]
    entries = [
        annotation(1, bbox=(15, 0, 10, 10), segmentation=[[15, 0, 25, 0, 25, 10, 15, 10]]),  # clipped
        annotation(2, image=9),  # an orphan
        annotation(3, bbox=(30, 0, 10, 10)),  # outside
        annotation(4, image=2),
        annotation(5, image=2),  # a duplicate
        annotation(6, image=3),  # the image is gone
        annotation(7, image=4),  # the image is damaged
        {**annotation(8, image=2, bbox=(0, 0, 5, 5)), "iscrowd": 1},
    ]
    data = dataset(tmp_path / "data", entries, images=[*images, {"id": 9}])
    fill(data, {"images/b.png": png(seed=5), "images/c.png": b"", "README.md": "hello"})
    before, report = tree(data), fewbit.fix_dataset(data, tmp_path / "out")
    assert tree(data) == before and report.facts["copy"].ok, str(report.facts["copy"])
    names = [name for name in tree(tmp_path / "out") if not name.startswith(".")]
    assert names == ["README.md", "images/a.png", "images/b.png", "instances.json"]
    written = json.loads((tmp_path / "out" / "instances.json").read_text())
    assert [entry["id"] for entry in written["images"]] == [1, 2]
    assert [entry["id"] for entry in written["annotations"]] == [1, 4, 8]
    assert written["annotations"][0]["bbox"] == [15, 0, 5, 10] and written["annotations"][2] == entries[7]
    changes = "\n".join(report.facts["changes"])
    for part in (
        "row 1 (annotations): there is no image 9",
        "clips it",
        "images/c.png: 0 bytes",
        "g.png: leaves the entry out",
    ):
        assert part in changes, part


def test_clipped_polygons_are_written_too(tmp_path):
    outline = [[15, 0, 25, 0, 25, 10, 15, 10]]
    data = dataset(tmp_path / "data", [annotation(1, bbox=(15, 0, 10, 10), segmentation=outline)])
    report = fewbit.fix_dataset(data, tmp_path / "out", task="segmentation")
    assert report.facts["copy"].ok and not report.facts["copy"].issues
    written = json.loads((tmp_path / "out" / "instances.json").read_text())["annotations"][0]
    assert written["bbox"] == [15, 0, 5, 10] and written["segmentation"] == [[15, 0, 20, 0, 20, 10, 15, 10]]


def test_ids_that_occur_twice_are_replaced_and_segmentations_that_are_none_left_out(tmp_path):
    square = [[4, 2, 12, 2, 12, 6, 4, 6]]
    entries = [
        annotation(5, segmentation=square, area=32),
        annotation(5, bbox=(15, 2, 10, 4), segmentation=[[1, 2, 3]], area=40),
        annotation(6, bbox=(1, 1, 2, 2), segmentation=[], area=4),
    ]
    data = dataset(tmp_path / "set", entries)
    report = check(data, "coco")
    assert [(issue.code, issue.location.row) for issue in report.issues] == [
        ("annotation-id-twice", 1), ("segmentation-unusable", 1), ("out-of-range", 1)
    ]  # fmt: skip
    assert report.issues[2].message == "the box spans x 15 to 25, y 2 to 6 pixels; the image is 20 x 10"
    report = fewbit.fix_dataset(data, tmp_path / "copy")
    copy = json.loads((tmp_path / "copy" / "instances.json").read_text())["annotations"]
    assert [entry["id"] for entry in copy] == [5, 7, 6] and [entry["area"] for entry in copy] == [32, 20, 4]
    assert [entry["segmentation"] for entry in copy] == [square, [], []] and report.facts["copy"].ok
    assert not report.facts["copy"].issues


def test_the_area_of_a_clipped_polygon_is_computed_again(tmp_path):
    outline = [[15, 2, 25, 2, 25, 6, 15, 6]]
    data = dataset(tmp_path / "set", [annotation(1, bbox=(15, 2, 10, 4), segmentation=outline, area=40)])
    fewbit.fix_dataset(data, tmp_path / "copy", task="segmentation")
    copy = json.loads((tmp_path / "copy" / "instances.json").read_text())["annotations"]
    assert copy[0]["bbox"] == [15, 2, 5, 4] and copy[0]["area"] == pytest.approx(20)


def test_the_summary_says_how_many_images_are_usable(tmp_path):
    images = [{"id": number, "file_name": f"{number}.png", "width": 20, "height": 10} for number in range(3)]
    entries = [annotation(1, image=0), annotation(2, image=1, bbox=(4, 2, -1, 4)), annotation(3, image=2)]
    text = json.dumps(content(entries, images))
    fill(tmp_path, {"train/0.png": None, "train/1.png": None, "train/2.png": None, "instances_train.json": text})
    report = check(tmp_path, "coco")
    assert "images    2 of 3 usable; " in report_text(report) and "splits    train 3" in report_text(report)
    assert [issue.message for issue in report.issues if issue.code == "box-empty"] == ["-1 pixels wide, 4 pixels high"]
