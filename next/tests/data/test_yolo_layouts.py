# SPDX-License-Identifier: Apache-2.0
"""Where images and label files are, with and without a data.yaml."""

import os
import pickle

import pytest

from detection_sets import BOX, check, codes, confidence, fill, flat, places, png, read, scan, split_set
from fewbit.data.files import FILE_UNREADABLE, Folder
from fewbit.data.formats import _yolo_layout, yolo
from fewbit.data.types import DataReport, Issue, Location, SampleError
from fewbit.errors import DataError, UsageError

# Folders


def test_images_and_labels_by_split(tmp_path):
    split_set(tmp_path, None)
    fill(tmp_path, {"classes.txt": "cat\n", "images/stray.png": None, "images/other/b.png": None})
    report = check(tmp_path)
    assert report.facts["splits"] == {"train": 2, "val": 2} and report.facts["layout"] == "images/{split}"
    assert "2 images" in next(issue for issue in report.issues if issue.code == "image-unassigned").message
    assert len(read(tmp_path, split="validation")) == 2


def test_images_and_labels_without_splits(tmp_path):
    fill(tmp_path, {"images/image1.png": None, "images/image2.png": None})
    fill(tmp_path, {"labels/image1.txt": "0 0.5 0.6 0.2 0.3\n1 0.7 0.8 0.1 0.2\n", "labels/image2.txt": BOX})
    source, report = scan(tmp_path, depth="full")
    assert report.ok and not report.warnings and source.facts["splits"] == {} and len(source) == 2
    with pytest.raises(UsageError, match="no split 'train'"):
        read(tmp_path, split="train")


def test_images_and_labels_in_each_split(tmp_path):
    fill(tmp_path, {"train/images/a.png": None, "train/labels/a.txt": BOX})
    fill(tmp_path, {"valid/images/b.png": png(seed=2), "valid/labels/b.txt": BOX})
    report = check(tmp_path)
    assert report.ok and report.facts["splits"] == {"train": 1, "val": 1}


def test_label_files_beside_images(tmp_path):
    fill(tmp_path, {"a.png": None, "a.txt": BOX, "sub/b.png": None, "sub/b.txt": BOX, "readme.txt": "hello"})
    report = check(tmp_path)
    assert report.ok and report.facts["layout"] == "same folder" and "label-orphan" not in report.counts
    assert len(read(tmp_path)[1]["boxes"]) == 1


def test_a_single_folder_at_the_top_is_passed_through(tmp_path):
    split_set(tmp_path / "coco128", "train: images/train\nval: images/val\nnames: [cat]\n")
    report = check(tmp_path)
    assert report.ok and report.facts["splits"] == {"train": 2, "val": 2} and report.facts["layout"] == "data.yaml"
    (tmp_path / "coco128" / "data.yaml").unlink()
    assert check(tmp_path).facts["layout"] == "images/{split}"


def test_the_last_folder_called_images_counts_and_file_names_do_not(tmp_path):
    """yolov5#256: paths and file names that contain "images"."""
    root = tmp_path / "images" / "my_images"
    fill(root, {"images/images/images_01.png": None, "images/labels/images_01.txt": BOX})
    assert len(read(root)[0]["boxes"]) == 1


def test_two_images_of_one_stem_are_an_error(tmp_path):
    flat(tmp_path, a=BOX)
    fill(tmp_path, {"images/a.jpg": png()})
    assert places(check(tmp_path), "label-shared") == ["images/a.png"]
    with pytest.raises(DataError):
        read(tmp_path)
    source = read(tmp_path, on_error={"label-shared": "drop"})
    assert source.location(0).file == "images/a.jpg" and len(source) == 1


def test_accents_may_be_encoded_either_way(tmp_path):
    fill(tmp_path, {"images/cafe\u0301.png": None, "labels/caf\u00e9.txt": BOX})
    assert len(read(tmp_path)[0]["boxes"]) == 1 and "label-orphan" not in check(tmp_path).counts


def test_links_and_pipes_do_no_harm(tmp_path):
    flat(tmp_path / "set", a=BOX)
    os.symlink(tmp_path / "set" / "images", tmp_path / "set" / "images" / "loop")
    os.symlink("nowhere", tmp_path / "set" / "images" / "gone.png")
    os.mkfifo(tmp_path / "set" / "images" / "pipe.png")
    os.mkfifo(tmp_path / "set" / "labels" / "b.txt")
    report = check(tmp_path / "set")
    assert {"link-cycle", "link-broken", "special-file"} <= set(report.counts) and len(read(tmp_path / "set")) == 1


def test_splits_and_suffixes_may_be_in_any_case(tmp_path):
    fill(tmp_path, {"Train/images/a.png": None, "Train/labels/a.TXT": BOX, "VALID/images/b.PNG": png()})
    report = check(tmp_path)
    assert report.facts["splits"] == {"train": 1, "val": 1} and len(read(tmp_path, split="Train")[0]["boxes"]) == 1
    assert places(report, "label-missing") == ["VALID/images/b.PNG"]


@pytest.mark.parametrize("name", ["{images}/a.png", "{images}/Train/a.png", "Train/{images}/a.png"])
@pytest.mark.parametrize(("images", "labels"), [("Images", "Labels"), ("IMAGES", "LABELS"), ("images", "Labels")])
def test_folders_of_images_and_labels_may_be_in_any_case(tmp_path, name, images, labels):
    image, label = name.format(images=images), name.format(images=labels).replace(".png", ".txt")
    fill(tmp_path, {image: None, label: BOX, label.replace("a.txt", "lost.txt"): BOX, f"{labels}/classes.txt": "cat\n"})
    assert confidence(tmp_path, yolo.detect) > 0.9
    report = check(tmp_path)
    assert not report.errors and report.facts["class_counts"] == {"cat": 1} and report.counts["label-orphan"] == 1
    assert len(read(tmp_path)[0]["boxes"]) == 1


@pytest.mark.parametrize(
    ("given", "image", "label"),
    [
        ("train/images", "train/images/a.png", "train/labels/a.txt"),
        ("images", "images/a.png", "labels/a.txt"),
        ("images", "images/train/a.png", "labels/train/a.txt"),
        ("images/train", "images/train/a.png", "labels/train/a.txt"),
    ],
)
def test_the_folder_of_the_images_is_enough_and_the_labels_above_are_named(tmp_path, given, image, label):
    root = fill(tmp_path / "set", {image: None, label: BOX})
    assert yolo.detect(Folder(root / given)).confidence == 1
    (issue,) = [issue for issue in check(root / given).warnings if issue.code == "root-above"]
    assert issue.message.endswith(str((root / label).parent))
    assert len(read(root / given)[0]["boxes"]) == 1 and "root-above" not in check(root).counts


def test_label_files_beside_images_in_a_folder_called_images(tmp_path):
    fill(tmp_path / "images", {"a.png": None, "a.txt": BOX})
    report = check(tmp_path / "images")
    assert report.ok and "root-above" not in report.counts
    assert confidence(tmp_path / "images", yolo.detect) == 1 and len(read(tmp_path / "images")[0]["boxes"]) == 1


def test_missing_and_empty_label_files_are_listed_apart(tmp_path):
    """yolov5#5373: people want the list."""
    report = check(flat(tmp_path, a=BOX, b=BOX, c=None, d="", e=" \n"))
    assert report.ok and places(report, "label-missing") == ["images/c.png"]
    assert places(report, "label-empty") == ["images/d.png", "images/e.png"]


def test_label_files_without_images_are_orphans(tmp_path):
    flat(tmp_path, a=BOX)
    fill(tmp_path, {"labels/b.txt": BOX, "labels/deep/c.txt": BOX})
    report = check(tmp_path)
    assert not report.errors and places(report, "label-orphan") == ["labels/b.txt", "labels/deep/c.txt"]


def test_images_left_out_of_a_list_leave_no_orphans(tmp_path):
    split_set(tmp_path, "train: list.txt\nnames: [cat]\n")
    (tmp_path / "list.txt").write_text("images/train/train0.png\n")
    assert "label-orphan" not in check(tmp_path).counts


def test_most_labels_missing_is_a_warning(tmp_path):
    report = check(flat(tmp_path, a=BOX, b=None, c=None))
    assert codes(report.warnings) == ["labels-mostly-missing"] and not report.errors
    assert "2 of 3 images (66 %)" in report.warnings[0].message and "labels/b.txt" in report.warnings[0].message
    assert not report.ok, "it concerns more than a tenth of the samples"


def test_no_labels_at_all_is_an_error_that_says_where_it_looked_and_guesses(tmp_path):
    """The largest pain of all: yolov3#1024, yolov5#145, #8090, #8447."""
    fill(tmp_path, {f"images/{i}.png": None for i in range(5)} | {f"annotations/{i}.txt": BOX for i in range(5)})
    (issue,) = check(tmp_path).errors
    assert issue.code == "labels-none" and str(tmp_path / "labels" / "0.txt") in issue.message
    assert issue.message.count(" needs ") == 3
    assert "are in annotations: move them to labels" in issue.message
    with pytest.raises(DataError, match="none of 5 images"):
        read(tmp_path)
    assert len(read(tmp_path, on_error={"labels-none": "keep"})) == 5


@pytest.mark.parametrize(
    ("files", "word"),
    [
        ({"voc/0.xml": "<a/>"}, "Pascal VOC"),
        ({"coco/x.json": "{}"}, "COCO"),
        ({"labels/zero.txt": BOX}, "rename"),
        ({}, "no .txt"),
    ],
)
def test_the_guess_about_lost_labels(tmp_path, files, word):
    fill(tmp_path, {"images/0.png": None, **files})
    assert word in next(issue for issue in check(tmp_path).errors if issue.code == "labels-none").message


def test_no_images_at_all(tmp_path):
    fill(tmp_path, {"images/note.md": "", "labels/a.txt": BOX})
    assert codes(check(tmp_path).errors) == ["no-annotated-images"]
    with pytest.raises(DataError):
        read(tmp_path)


def test_class_names_of_several_files(tmp_path):
    fill(tmp_path, {"images/a.png": None, "labels/a.txt": BOX, "labels/classes.txt": "\ncat\n\ndog\n\n"})
    report = check(tmp_path)
    assert places(report, "names-invalid") == ["labels/classes.txt:1", "labels/classes.txt:3"]
    assert report.facts["classes"] == ["class_0", "cat", "class_2", "dog"] and "label-orphan" not in report.counts
    fill(tmp_path, {"classes.txt": "dog\ncat\n", "labels/classes.txt": "cat\ndog\n"})
    report = check(tmp_path)
    assert places(report, "names-conflict") == ["labels/classes.txt"] and report.facts["classes"] == ["dog", "cat"]


def test_labels_cache_is_never_read(tmp_path):
    """YOLOv5 loads labels.cache with allow_pickle=True."""

    class Trap:
        def __reduce__(self):
            return open, (str(tmp_path / "ran"), "w")

    flat(tmp_path / "set", a=BOX)
    (tmp_path / "set" / "labels.cache").write_bytes(pickle.dumps(Trap()))
    assert check(tmp_path / "set").ok and read(tmp_path / "set")[0] and not (tmp_path / "ran").exists()


def test_a_label_file_that_is_too_large_is_an_error(tmp_path):
    flat(tmp_path, a=BOX, b="x\n" * 40_000, c=b" " * (5 << 20))
    report = check(tmp_path)
    assert places(report, "label-unreadable") == ["labels/b.txt", "labels/c.txt"] and report.facts["samples"] == 3
    assert len(scan(tmp_path, depth="full", on_error="drop")[0]) == 1


# data.yaml


@pytest.mark.parametrize("as_file", [True, False])
def test_path_is_relative_to_the_data_yaml(tmp_path, monkeypatch, as_file):
    """YOLOv5 joins a relative path to its own repository instead."""
    split_set(tmp_path / "set", "path: .\ntrain: images/train\nval: images/val\nnames: [cat]\n")
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "set" / "data.yaml" if as_file else tmp_path / "set"
    source = read(data)
    assert source.facts["splits"] == {"train": 2, "val": 2} and source.facts["classes"] == ["cat"]
    assert source.location(0).file == "images/train/train0.png" and len(source[3]["boxes"]) == 1
    assert confidence(data, yolo.detect) > 0.9


def test_a_data_yaml_in_a_folder_of_its_own(tmp_path):
    split_set(tmp_path, None)
    fill(tmp_path, {"config/my.yaml": "path: ..\ntrain: images/train\nnames: [cat]\n"})
    for data in (tmp_path / "config" / "my.yaml", tmp_path / "config"):
        report = check(data)
        assert report.ok and "path-outside" in report.counts
        source = read(data)
        assert len(source) == 2 and len(source[0]["boxes"]) == 1
        assert pickle.loads(pickle.dumps(source))[1]["image"].shape == (10, 20, 3)


def test_splits_are_folders_list_files_or_lists_of_those(tmp_path):
    split_set(tmp_path, "train: [images/train, more.txt]\nval: val.txt\nnames: {0: cat}\n")
    fill(tmp_path, {"images/pool/x.png": None, "labels/pool/x.txt": BOX})
    (tmp_path / "more.txt").write_bytes(b"\xef\xbb\xbf# more\r\n\r\n./images/pool/x.png\r\n")
    (tmp_path / "val.txt").write_text("images\\val\\val1.png\n  ./images/val/val0.png\n")
    source = read(tmp_path, split="val")
    assert [source.location(index).file for index in range(2)] == ["images/val/val1.png", "images/val/val0.png"]
    report = check(tmp_path)
    assert report.facts["splits"] == {"train": 3, "val": 2} and len(source[0]["boxes"]) == 1
    assert report.ok and not report.warnings


def test_a_list_file_is_relative_to_itself_or_to_path(tmp_path):
    split_set(tmp_path, "path: .\ntrain: lists/train.txt\nnames: [cat]\n")
    fill(tmp_path, {"lists/train.txt": "../images/train/train0.png\nimages/train/train1.png\n./cafe\u0301.png\n"})
    fill(tmp_path, {"lists/caf\u00e9.png": None, "lists/caf\u00e9.txt": BOX})
    report = check(tmp_path)
    assert report.ok and report.facts["splits"] == {"train": 3}


def test_lines_of_list_files_are_located(tmp_path):
    split_set(tmp_path, "train: list.txt\nnames: [cat]\n")
    good = "images/train/train0.png"
    (tmp_path / "list.txt").write_bytes(
        f"{good}\nimages/gone.png\nlabels/train/train0.txt\n".encode() + b"\xff.png\n" + f"{good}\na\0.png\n".encode()
    )
    report = check(tmp_path)
    assert places(report, "image-missing") == ["list.txt:2", "list.txt:6"]
    assert places(report, "list-invalid") == ["list.txt:3", "list.txt:4"]
    assert places(report, "image-twice") == ["list.txt:5"]
    with pytest.raises(DataError) as caught:
        read(tmp_path)
    assert "list.txt:2" in str(caught.value)
    assert len(read(tmp_path, on_error="drop")) == 1


def test_an_image_instead_of_a_list_file_is_one_issue(tmp_path):
    split_set(tmp_path, "train: images/train/train0.png\nnames: [cat]\n")
    assert places(check(tmp_path), "list-invalid") == ["images/train/train0.png"]


def test_images_outside_of_the_folder_are_read_with_a_note(tmp_path):
    fill(tmp_path / "pool", {"images/a.png": None, "labels/a.txt": BOX})
    fill(tmp_path / "set", {"list.txt": f"{tmp_path}/pool/images/a.png\n", "data.yaml": "train: list.txt\nnames: [x]"})
    report = check(tmp_path / "set")
    assert report.ok and places(report, "path-outside") == ["list.txt"]
    assert len(read(tmp_path / "set")[0]["boxes"]) == 1


def test_only_the_named_folders_outside_are_listed(tmp_path, monkeypatch):
    walked = []
    original = _yolo_layout._walk
    monkeypatch.setattr(
        _yolo_layout, "_walk", lambda folder, report: walked.append(str(folder)) or original(folder, report)
    )
    split_set(tmp_path / "pool", None)
    fill(tmp_path, {"pool/secret/x.png": None, "set/data.yaml": "path: ../pool\ntrain: images/train\nnames: [cat]\n"})
    assert len(read(tmp_path / "set" / "data.yaml")) == 2
    assert walked == [str(tmp_path / "pool" / "images" / "train")]


def test_a_folder_outside_is_read_up_to_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(_yolo_layout, "_MOST_OUTSIDE", 1)
    split_set(tmp_path / "pool", None)
    fill(tmp_path, {"set/data.yaml": "path: ../pool\ntrain: images/train\nnames: [cat]\n"})
    report = check(tmp_path / "set")
    assert "split-too-wide" in report.counts and report.facts["samples"] == 1


@pytest.mark.parametrize(
    "yaml",
    [
        "train: /\nnames: [x]", "path: /\ntrain: proc\nnames: [x]", "train: /proc/self/root\nnames: [x]",
        "train: /sys\nnames: [x]", "train: /dev\nnames: [x]", "train: /etc/passwd\nnames: [x]",
        "train: /home\nnames: [x]", "path: ..\ntrain: .\nnames: [x]",
    ],
)  # fmt: skip
def test_system_folders_and_folders_above_are_refused(tmp_path, yaml):
    fill(tmp_path / "set", {"images/a.png": None, "labels/a.txt": BOX, "data.yaml": yaml})
    for data in (tmp_path / "set", tmp_path / "set" / "data.yaml"):
        assert codes(check(data).errors) == ["split-too-wide", "no-annotated-images"]


def test_a_list_file_cannot_name_system_files(tmp_path):
    fill(tmp_path, {"data.yaml": "train: list.txt\nnames: [x]", "list.txt": "a.png\n"})
    os.symlink("/etc", tmp_path / "link")
    (tmp_path / "list.txt").write_text(f"/proc/self/cwd/a.png\n{tmp_path}/link/x.png\n")
    assert set(codes(check(tmp_path).errors)) <= {"image-missing", "list-invalid", "no-annotated-images"}


def test_roboflow_paths_that_lead_one_folder_too_high_are_guessed(tmp_path):
    fill(tmp_path, {"train/images/a.png": None, "train/labels/a.txt": BOX})
    fill(tmp_path, {"data.yaml": "train: ../train/images\nval: ../valid/images\nnames: [cat]\n"})
    report = check(tmp_path)
    assert places(report, "path-guessed") == ["data.yaml (train)"]
    assert places(report, "split-missing") == ["data.yaml (val)"] and "valid/images" in report.errors[0].message
    assert len(read(tmp_path, split="train")) == 1
    with pytest.raises(DataError, match="that is not there"):
        read(tmp_path)


def test_a_data_yaml_of_any_name_is_used_if_it_names_splits(tmp_path):
    split_set(tmp_path, "nc: 1\n")
    fill(tmp_path, {"coco.yaml": "train: images/train\nnames: [cat]\n"})
    source = read(tmp_path)
    assert source.facts["splits"] == {"train": 2} and source.facts["classes"] == ["cat"]


def test_several_descriptions_are_not_chosen_among(tmp_path):
    split_set(tmp_path, None)
    fill(tmp_path, dict.fromkeys(("one.yaml", "two.yaml"), "train: images/train\nnames: [cat]\n"))
    assert "yaml-ambiguous" in check(tmp_path).counts
    assert read(tmp_path / "one.yaml").facts["splits"] == {"train": 2}


def test_names_are_a_list_or_numbered_without_gaps(tmp_path):
    split_set(tmp_path, "train: images/train\nnames:\n  0: cat\n  2: dog\n")
    (issue,) = check(tmp_path).errors
    assert issue.code == "names-invalid" and "no name for class 1" in issue.message and issue.location.line == 3
    for names in ("{a: cat}", "cat", "{0: cat, 999999999: dog}"):
        split_set(tmp_path, f"train: images/train\nnames: {names}\n")
        assert "names-invalid" in check(tmp_path).counts


def test_names_stay_as_they_are_written(tmp_path):
    split_set(tmp_path, "train: images/train\nnames: [no, 007, 1.0, 1e3, Überfall, null]\n")
    report = check(tmp_path)
    assert report.facts["classes"] == ["no", "007", "1.0", "1e3", "Überfall", "class_5"]
    assert "names-invalid" in report.counts


def test_nc_must_be_the_number_of_names(tmp_path):
    """YOLOv5 overwrites nc in silence."""
    split_set(tmp_path, "train: images/train\nnc: 3\nnames: [cat, dog]\n")
    assert places(check(tmp_path), "yaml-nc") == ["data.yaml:2"]
    with pytest.raises(DataError) as caught:
        read(tmp_path)
    assert caught.value.code == "yaml-nc"
    split_set(tmp_path, "train: images/train\nnc: 2\nnames: [cat, dog]\n")
    assert check(tmp_path).ok


def test_download_is_reported_and_never_run(tmp_path):
    """YOLOv5 runs it with exec() or bash."""
    marker = tmp_path / "ran"
    split_set(tmp_path / "set", f"train: images/train\nnames: [cat]\ndownload: |\n  open({str(marker)!r}, 'w')\n")
    report = check(tmp_path / "set")
    read(tmp_path / "set")[0]
    assert report.ok and places(report, "yaml-download") == ["data.yaml:3"] and not marker.exists()


def test_a_data_yaml_is_strict_utf8(tmp_path):
    """YOLOv5 opens it with errors="ignore": bytes vanish from class names."""
    split_set(tmp_path, b"train: images/train\nnames: [caf\xe9]\n")
    issue = check(tmp_path).errors[0]
    assert issue.code == "yaml-invalid" and issue.location.byte == 31 and "0xe9" in issue.message


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x]\nb: &b [*a, *a]\nnames: *b\n",
        "[" * 100_000,
        "names: !!python/object/apply:os.system ['true']\ntrain: [",
        "just text",
        " ",
        "x: " + "y" * (2 << 20),
        "train: images/train\ntrain: images/val\n",
        "? [1, 2]\n: x\ntrain: {a: b}\n",
        "a\0b",
    ],
    ids=["aliases", "nesting", "tags", "text", "nothing", "huge", "twice", "mapping", "nul"],
)
def test_a_hostile_data_yaml_is_refused(tmp_path, text):
    split_set(tmp_path, text)
    assert "yaml-invalid" in check(tmp_path).counts


@pytest.mark.parametrize(
    "tagged",
    ["!!python/object/apply:os.system 'touch {mark}'", "!!python/name:os.system", "!mine cat", "!!binary Y2F0"],
)
def test_tags_are_reported_and_never_followed(tmp_path, tagged):
    mark = tmp_path / "ran"
    split_set(tmp_path / "set", f"train: images/train\nnames: [{tagged.format(mark=mark)}, dog]\n")
    assert places(check(tmp_path / "set"), "yaml-tag") == ["data.yaml:2"] and not mark.exists()
    with pytest.raises(DataError):
        read(tmp_path / "set", on_error={"yaml-tag": "raise"})


def test_plain_tags_are_no_issue(tmp_path):
    split_set(tmp_path, "train: !!str images/train\nnames: !!seq [!!str cat, ! dog]\nnc: !!int 2\n")
    report = check(tmp_path)
    assert report.ok and not report.warnings and report.facts["classes"] == ["cat", "dog"]


def test_keypoints_are_refused(tmp_path):
    split_set(tmp_path, "train: images/train\nkpt_shape: [17, 2]\nnames: [person]\n")
    assert "yaml-keypoints" in check(tmp_path).counts


def test_an_invalid_data_yaml_alone_says_nothing_about_its_folder(tmp_path):
    fill(tmp_path, {"a.png": None, "a.txt": BOX, "broken.yaml": "["})
    assert set(codes(check(tmp_path / "broken.yaml").errors)) == {"yaml-invalid", "no-annotated-images"}


class InMemory:
    """The files of an archive: no path on this machine."""

    root = "set.zip"

    def __init__(self, folder):
        self._folder = Folder(folder)

    def __getattr__(self, name):
        return getattr(self._folder, name)

    def path(self, name):
        return None


class Unreadable(Folder):
    """Label files that the system refuses to read."""

    def read(self, name, limit):
        if name.endswith(".txt"):
            raise SampleError(Issue(FILE_UNREADABLE, "permission denied", Location(name)))
        return super().read(name, limit)


def test_label_files_that_cannot_be_read_are_errors(tmp_path):
    flat(tmp_path, a=BOX, b=BOX)
    report = DataReport()
    assert yolo.detect(Unreadable(tmp_path)).confidence > 0.5
    source = yolo.scan(Unreadable(tmp_path), report, depth="full", options={})
    assert report.counts["label-unreadable"] == 2 and report.counts["names-invalid"] == 1 and len(source) == 2
    with pytest.raises(SampleError):
        source[0]


def test_an_archive_is_read_without_leaving_it(tmp_path):
    yaml = "path: set\ntrain: ../set/images/train\nval: /etc\ntest: ../../../etc\nnames: [cat]\n"
    split_set(tmp_path / "set", yaml)
    report = DataReport()
    source = yolo.scan(InMemory(tmp_path), report, depth="full", options={})
    assert len(source) == 2 and len(source[0]["boxes"]) == 1
    assert report.counts["split-missing"] == 2 and yolo.detect(InMemory(tmp_path)).confidence > 0.9
