# SPDX-License-Identifier: Apache-2.0

import pytest

from fewbit.data.detect import find_format
from fewbit.errors import DataError, UsageError
from yolo_sets import BOX, check, fill, flat, places, png, read, split_set


def test_without_yaml_images_split_and_labels_split(tmp_path):
    split_set(tmp_path, None)
    fill(tmp_path, {"classes.txt": "cat\n", "images/stray.png": None, "images/other/b.png": None})
    report = check(tmp_path)
    assert report.understood["splits"] == {"train": 2, "val": 2} and report.understood["layout"] == "images/{split}"
    assert places(report, "image-unassigned") == ["images/other", "images/stray.png"]
    assert len(read(tmp_path, split="validation")) == 2


def test_flat_layout_of_the_guide_is_one_unsplit_set(tmp_path):
    fill(tmp_path, {"images/image1.png": None, "images/image2.png": None})
    fill(tmp_path, {"labels/image1.txt": "0 0.5 0.6 0.2 0.3\n1 0.7 0.8 0.1 0.2\n", "labels/image2.txt": BOX})
    report = check(tmp_path)
    assert report.ok and not report.warnings and report.understood["splits"] == {"all": 2}
    with pytest.raises(UsageError, match="'train'"):
        read(tmp_path, split="train")


def test_roboflow_layout_without_yaml(tmp_path):
    fill(tmp_path, {"train/images/a.png": None, "train/labels/a.txt": BOX})
    fill(tmp_path, {"valid/images/b.png": None, "valid/labels/b.txt": BOX})
    report = check(tmp_path)
    assert report.ok and report.understood["splits"] == {"train": 1, "val": 1}


def test_labels_beside_their_images(tmp_path):
    fill(tmp_path, {"a.png": None, "a.txt": BOX, "sub/b.png": None, "sub/b.txt": BOX, "readme.txt": "hello"})
    report = check(tmp_path)
    assert report.ok and report.understood["layout"] == "beside" and "label-orphan" not in report.counts
    assert len(read(tmp_path).get(1)["boxes"]) == 1


def test_the_last_images_folder_is_replaced_and_file_names_do_not_count(tmp_path):
    """yolov5#256: a path or file name that contains "images"."""
    root = tmp_path / "images" / "my_images"
    fill(root, {"images/images/images_01.png": None, "images/labels/images_01.txt": BOX})
    assert len(read(root).get(0)["boxes"]) == 1


def test_same_stem_with_two_extensions_is_an_error(tmp_path):
    flat(tmp_path, a=BOX)
    fill(tmp_path, {"images/a.jpg": png()})
    assert places(check(tmp_path), "stem-twice") == ["images/a.png"]
    with pytest.raises(DataError):
        read(tmp_path)
    source = read(tmp_path, {"stem-twice": "drop"})
    assert [source.place(0).path, len(source)] == ["images/a.jpg", 1]


def test_names_in_decomposed_unicode_find_their_labels(tmp_path):
    fill(tmp_path, {"images/cafe\u0301.png": None, "labels/caf\u00e9.txt": BOX})
    assert len(read(tmp_path).get(0)["boxes"]) == 1
    assert "label-orphan" not in check(tmp_path).counts


def test_links_and_pipes_do_no_harm(tmp_path):
    import os

    flat(tmp_path / "set", a=BOX)
    os.symlink(tmp_path / "set" / "images", tmp_path / "set" / "images" / "loop")
    os.symlink("nowhere", tmp_path / "set" / "images" / "gone.png")
    os.mkfifo(tmp_path / "set" / "images" / "pipe.png")
    os.mkfifo(tmp_path / "set" / "labels" / "b.txt")
    report = check(tmp_path / "set")
    assert {"link-cycle", "link-broken", "not-a-file"} <= set(report.counts) and len(read(tmp_path / "set")) == 1


def test_links_between_folders_of_the_dataset_stay_inside(tmp_path):
    import os

    flat(tmp_path, a=BOX)
    fill(tmp_path, {"pool/b.png": None})
    os.symlink(tmp_path / "pool" / "b.png", tmp_path / "images" / "b.png")
    assert "link-outside" not in check(tmp_path).counts


def test_folders_of_splits_and_suffixes_in_any_case(tmp_path):
    fill(tmp_path, {"Train/images/a.png": None, "Train/labels/a.TXT": BOX, "VALID/images/b.PNG": png()})
    report = check(tmp_path)
    assert (
        report.understood["splits"] == {"train": 1, "val": 1}
        and len(read(tmp_path, split="Train").get(0)["boxes"]) == 1
    )
    assert places(report, "label-missing") == ["VALID/images/b.PNG"]


def test_the_description_that_names_splits_is_used_whatever_it_is_called(tmp_path):
    split_set(tmp_path, "nc: 1\n")
    fill(tmp_path, {"coco.yaml": "train: images/train\nnames: [cat]\n"})
    assert read(tmp_path).facts["splits"] == {"train": 2} and read(tmp_path).facts["classes"] == ["cat"]


def test_several_descriptions_are_not_chosen_among(tmp_path):
    split_set(tmp_path, None)
    fill(tmp_path, dict.fromkeys(("one.yaml", "two.yaml"), "train: images/train\nnames: [cat]\n"))
    assert "yaml-ambiguous" in check(tmp_path).counts
    assert read(tmp_path / "one.yaml").facts["splits"] == {"train": 2}


def test_classes_txt_beside_the_labels_and_conflicting_names(tmp_path):
    fill(tmp_path, {"images/a.png": None, "labels/a.txt": BOX, "labels/classes.txt": "cat\n\ndog\n"})
    report = check(tmp_path)
    assert places(report, "names-invalid") == ["labels/classes.txt:2"] and "label-orphan" not in report.counts
    fill(tmp_path, {"classes.txt": "dog\ncat\n", "labels/classes.txt": "cat\ndog\n"})
    assert places(check(tmp_path), "names-conflict") == ["labels/classes.txt"]


def test_missing_and_empty_labels_are_background_counted_apart_and_listed(tmp_path):
    """yolov5#5373: people want the list."""
    report = check(flat(tmp_path, a=BOX, b=BOX, c=None, d="", e=" \n"))
    assert report.ok and places(report, "label-missing") == ["images/c.png"]
    assert places(report, "label-empty") == ["images/d.png", "images/e.png"]
    assert report.understood["background"] == {"label_missing": 1, "label_empty": 2}


def test_label_without_an_image_is_an_orphan(tmp_path):
    flat(tmp_path, a=BOX)
    fill(tmp_path, {"labels/b.txt": BOX, "labels/deep/c.txt": BOX})
    report = check(tmp_path)
    assert report.ok and places(report, "label-orphan") == ["labels/b.txt", "labels/deep/c.txt"]


def test_images_left_out_of_the_lists_leave_no_orphans(tmp_path):
    split_set(tmp_path, "train: list.txt\nnames: [cat]\n")
    (tmp_path / "list.txt").write_text("images/train/train0.png\n")
    assert "label-orphan" not in check(tmp_path).counts


def test_mostly_missing_labels_are_a_loud_warning(tmp_path):
    report = check(flat(tmp_path, a=BOX, b=None, c=None))
    assert report.ok and report.warnings[0].code == "labels-mostly-missing"
    assert "2 of the 3 images (66 %)" in report.warnings[0].message and "labels/b.txt" in report.warnings[0].message


def test_zero_labels_is_an_error_with_the_path_tried_three_mismatches_and_a_guess(tmp_path):
    """The largest pain of all: yolov3#1024, yolov5#145, #8090, #8447."""
    fill(tmp_path, {f"images/{i}.png": None for i in range(5)} | {f"annotations/{i}.txt": BOX for i in range(5)})
    finding = check(tmp_path).errors[0]
    assert finding.code == "labels-none" and str(tmp_path / "labels" / "0.txt") in finding.message
    assert finding.message.count("tried") == 3
    assert "annotations" in finding.fix and "labels" in finding.fix
    with pytest.raises(DataError, match="none of the 5 images"):
        read(tmp_path)
    assert len(read(tmp_path, {"labels-none": "keep"})) == 5


@pytest.mark.parametrize(
    ("files", "word"),
    [({"voc/0.xml": "<a/>"}, "Pascal VOC"), ({"labels/zero.txt": BOX}, "rename"), ({}, "no .txt")],
)
def test_the_guess_about_lost_labels(tmp_path, files, word):
    fill(tmp_path, {"images/0.png": None, **files})
    assert word in next(f for f in check(tmp_path).errors if f.code == "labels-none").fix


def test_no_images_at_all(tmp_path):
    fill(tmp_path, {"images/note.md": "", "labels/a.txt": BOX})
    assert [finding.code for finding in check(tmp_path).errors] == ["no-images"]
    with pytest.raises(DataError):
        read(tmp_path)


def test_a_path_that_is_not_there_is_wrong_use(tmp_path):
    with pytest.raises(UsageError, match="gone"):
        read(tmp_path / "gone")


def test_a_stray_file_does_not_make_a_dataset_of_its_folder(tmp_path):
    fill(tmp_path, {"a.png": None, "a.txt": BOX, "broken.yaml": "["})
    assert {finding.code for finding in check(tmp_path / "broken.yaml").errors} == {"yaml-invalid", "no-images"}


@pytest.mark.parametrize(
    "name",
    ["{images}/a.png", "{images}/Train/a.png", "Train/{images}/a.png"],
)
@pytest.mark.parametrize(("images", "labels"), [("Images", "Labels"), ("IMAGES", "LABELS"), ("images", "Labels")])
def test_folders_of_images_and_labels_in_any_case(tmp_path, name, images, labels):
    image, label = name.format(images=images), name.format(images=labels).replace(".png", ".txt")
    fill(tmp_path, {image: None, label: BOX, label.replace("a.txt", "lost.txt"): BOX, f"{labels}/classes.txt": "cat\n"})
    assert find_format(tmp_path)[0] == "yolo"
    report = check(tmp_path)
    assert report.ok and report.understood["objects"] and report.counts["label-orphan"] == 1
    assert len(read(tmp_path).get(0)["boxes"]) == 1


def test_a_folder_spelled_as_usual_comes_before_one_in_another_case(tmp_path):
    fill(tmp_path, {"images/Images/a.png": None, "labels/Images/a.txt": BOX})
    assert check(tmp_path).ok and len(read(tmp_path).get(0)["boxes"]) == 1


@pytest.mark.parametrize(
    ("given", "image", "label", "found"),
    [
        ("train/images", "train/images/a.png", "train/labels/a.txt", "../labels"),
        ("images", "images/a.png", "labels/a.txt", "../labels"),
        ("images", "images/train/a.png", "labels/train/a.txt", "../labels/train"),
        ("images/train", "images/train/a.png", "labels/train/a.txt", "../../labels/train"),
        ("Images", "Images/a.png", "Labels/a.txt", "../Labels"),
    ],
)
def test_the_images_folder_itself_is_detected_and_the_root_above_is_hinted_at(tmp_path, given, image, label, found):
    root = fill(tmp_path / "set", {image: None, label: BOX})
    name, _, why = find_format(root / given)
    assert name == "yolo" and found in why and str(root) in why
    report = check(root / given)
    (hint,) = [finding for finding in report.warnings if finding.code == "root-above"]
    assert found in hint.message and str(root) in hint.fix
    assert len(read(root / given).get(0)["boxes"]) == 1
    assert "root-above" not in check(root).counts


def test_labels_beside_their_images_in_a_folder_that_is_called_images(tmp_path):
    fill(tmp_path / "images", {"a.png": None, "a.txt": BOX})
    report = check(tmp_path / "images")
    assert report.ok and "root-above" not in report.counts
    assert find_format(tmp_path / "images")[0] == "yolo" and len(read(tmp_path / "images").get(0)["boxes"]) == 1
