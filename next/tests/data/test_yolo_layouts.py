# SPDX-License-Identifier: Apache-2.0
"""Where the images and label files of a YOLO dataset are, with and without a data.yaml."""

import os
import pickle
import shutil

import pytest

from detection_sets import BOX, check, codes, confidence, fill, flat, places, png, read, scan, split_set
from fewbit.data.detection import yolo_tree
from fewbit.data.files import FILE_UNREADABLE, Folder
from fewbit.data.formats import yolo
from fewbit.data.types import DataReport, Issue, Location, SampleError
from fewbit.errors import DataError, UsageError

SPLIT_YAML = "train: images/train\nval: images/val\nnames: [cat]\n"


def message(report, code):
    return next(issue.message for issue in report.issues if issue.code == code)


# Folders


@pytest.mark.parametrize(
    ("labels", "layout", "splits"),
    [
        ({"images/train/a.png": "labels/train/a.txt", "images/val/b.png": "labels/val/b.txt"}, "images/{split}", 2),
        ({"train/images/a.png": "train/labels/a.txt", "valid/images/b.png": "valid/labels/b.txt"}, "{split}/images", 2),
        ({"Train/Images/a.PNG": "Train/LABELS/a.TXT", "VAL/images/b.png": "VAL/Labels/b.txt"}, "{split}/images", 2),
        ({"set/images/train/a.png": "set/labels/train/a.txt"}, "images/{split}", 1),
        ({"IMAGES/a.png": "labels/a.txt", "IMAGES/deep/b.png": "labels/deep/b.txt"}, "images", 0),
        ({"a.png": "a.txt", "sub/b.png": "sub/b.txt"}, "same folder", 0),
        ({"images/cafe\u0301.png": "labels/caf\u00e9.txt"}, "images", 0),
    ],
)
def test_labels_are_found_in_every_layout(tmp_path, labels, layout, splits):
    fill(tmp_path, dict.fromkeys(labels) | dict.fromkeys(labels.values(), BOX))
    assert confidence(tmp_path, yolo.detect) > 0.9
    source, report = scan(tmp_path, depth="full")
    assert report.ok and not report.warnings and report.facts["layout"] == layout
    assert [len(source[index]["boxes"]) for index in range(len(source))] == [1] * len(labels)
    assert len(source.facts.get("splits", ())) == splits


def test_a_split_is_chosen_by_any_of_its_names_and_strays_are_named(tmp_path):
    fill(split_set(tmp_path, None), {"images/stray.png": None, "images/other/b.png": None})
    assert message(check(tmp_path), "image-unassigned").startswith("2 images")
    assert len(read(tmp_path, split="validation")) == 2
    with pytest.raises(UsageError, match="no split 'test'"):
        read(tmp_path, split="test")


def test_the_last_folder_called_images_counts_and_file_names_do_not(tmp_path):
    """yolov5#256: paths and file names that contain "images"."""
    root = fill(tmp_path / "images" / "my_images", {"images/images/images_01.png": None})
    assert len(read(fill(root, {"images/labels/images_01.txt": BOX}))[0]["boxes"]) == 1


def test_two_images_of_one_stem_are_an_error(tmp_path):
    fill(flat(tmp_path, a=BOX), {"images/a.jpg": png()})
    assert places(check(tmp_path), "stem-twice") == ["images/a.png"]
    with pytest.raises(DataError):
        read(tmp_path)
    source = read(tmp_path, on_error={"stem-twice": "drop"})
    assert [source.location(index).file for index in range(len(source))] == ["images/a.jpg"]


def test_links_and_pipes_do_no_harm(tmp_path):
    images = flat(tmp_path, a=BOX) / "images"
    (images / "loop").symlink_to(images)
    (images / "gone.png").symlink_to("nowhere")
    os.mkfifo(images / "pipe.png")
    os.mkfifo(tmp_path / "labels" / "b.txt")
    assert {"link-cycle", "link-broken", "special-file"} <= set(check(tmp_path).counts) and len(read(tmp_path)) == 1


@pytest.mark.parametrize(
    ("folder", "image"),
    [
        ("train/images", "train/images/a.png"),
        ("images", "images/a.png"),
        ("images", "images/train/a.png"),
        ("images/train", "images/train/a.png"),
    ],
)
def test_the_folder_of_the_images_is_enough_and_the_labels_above_are_named(tmp_path, folder, image):
    label = image.replace("images", "labels").replace(".png", ".txt")
    fill(tmp_path, {image: None, label: BOX})
    assert confidence(tmp_path / folder, yolo.detect) == 1
    report = check(tmp_path / folder)
    assert message(report, "root-above").endswith(str((tmp_path / label).parent))
    assert len(read(tmp_path / folder)[0]["boxes"]) == 1 and "root-above" not in check(tmp_path).counts


def test_label_files_beside_images_in_a_folder_called_images(tmp_path):
    report = check(fill(tmp_path / "images", {"a.png": None, "a.txt": BOX}))
    assert report.ok and "root-above" not in report.counts and confidence(tmp_path / "images", yolo.detect) == 1


# Labels that are missing or left over


def test_missing_empty_and_orphaned_label_files_are_listed_apart(tmp_path):
    """yolov5#5373: people want the list."""
    flat(tmp_path, a=BOX, b=BOX, c=None, d="", e=" \n")
    report = check(fill(tmp_path, {"labels/x.txt": BOX, "labels/deep/y.txt": BOX}))
    assert not report.errors and {code: places(report, code) for code in sorted(report.counts)} == {
        "label-empty": ["images/d.png", "images/e.png"], "label-missing": ["images/c.png"],
        "label-orphan": ["labels/x.txt", "labels/deep/y.txt"],
    }  # fmt: skip


def test_images_left_out_of_a_list_leave_no_orphans(tmp_path):
    fill(split_set(tmp_path, "train: list.txt\nnames: [cat]\n"), {"list.txt": "images/train/train0.png\n"})
    assert "label-orphan" not in check(tmp_path).counts


def test_most_labels_missing_is_a_warning(tmp_path):
    report = check(flat(tmp_path, a=BOX, b=None, c=None))
    assert codes(report.warnings) == ["labels-mostly-missing"] and not report.errors
    assert "2 of 3 images (66 %)" in report.warnings[0].message and "labels/b.txt" in report.warnings[0].message
    assert not report.ok, "it concerns more than a tenth of the samples"


@pytest.mark.parametrize(
    ("files", "guess"),
    [
        ({f"annotations/{i}.txt": BOX for i in range(5)}, "are in annotations: move them to labels"),
        ({"voc/0.xml": "<a/>"}, "Pascal VOC"),
        ({"coco/x.json": "{}"}, "COCO"),
        ({"labels/zero.txt": BOX}, "rename"),
        ({}, "no .txt"),
    ],
)
def test_no_labels_at_all_is_an_error_that_says_where_it_looked_and_guesses(tmp_path, files, guess):
    """The largest pain of all: yolov3#1024, yolov5#145, #8090, #8447."""
    fill(tmp_path, {f"images/{i}.png": None for i in range(5)} | files)
    text = message(check(tmp_path), "labels-none")
    assert str(tmp_path / "labels" / "0.txt") in text and text.count(" needs ") == 3 and guess in text
    with pytest.raises(DataError, match="none of 5 images"):
        read(tmp_path)
    assert len(read(tmp_path, on_error={"labels-none": "keep"})) == 5


def test_no_images_at_all(tmp_path):
    fill(tmp_path, {"images/note.md": "", "labels/a.txt": BOX})
    assert codes(check(tmp_path).errors) == ["no-images"]


def test_class_names_of_several_files(tmp_path):
    fill(tmp_path, {"images/a.png": None, "labels/a.txt": BOX, "labels/classes.txt": "\ncat\n\ndog\n\n"})
    report = check(tmp_path)
    assert places(report, "names-invalid") == ["labels/classes.txt:1", "labels/classes.txt:3"]
    assert report.facts["classes"] == ["class_0", "cat", "class_2", "dog"] and "label-orphan" not in report.counts
    report = check(fill(tmp_path, {"classes.txt": "dog\ncat\n", "labels/classes.txt": "cat\ndog\n"}))
    assert places(report, "names-conflict") == ["labels/classes.txt"] and report.facts["classes"] == ["dog", "cat"]


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_labels_cache_is_never_read(tmp_path):
    """YOLOv5 loads labels.cache with allow_pickle=True."""
    fill(flat(tmp_path / "set", a=BOX), {"labels.cache": pickle.dumps(Trap(tmp_path / "ran"))})
    assert check(tmp_path / "set").ok and read(tmp_path / "set")[0] and not (tmp_path / "ran").exists()


def test_a_label_file_that_is_too_large_is_an_error(tmp_path):
    flat(tmp_path, a=BOX, b="x\n" * 40_000, c=b" " * (5 << 20))
    assert places(check(tmp_path), "label-unreadable") == ["labels/b.txt", "labels/c.txt"]
    assert len(scan(tmp_path, depth="full", on_error="drop")[0]) == 1


# data.yaml: paths


@pytest.mark.parametrize("given", ["set/data.yaml", "set"])
def test_path_is_relative_to_the_data_yaml(tmp_path, monkeypatch, given):
    """YOLOv5 joins a relative path to its own repository instead."""
    split_set(tmp_path / "set", f"path: .\n{SPLIT_YAML}")
    monkeypatch.chdir(tmp_path)
    source = read(tmp_path / given)
    assert source.facts["splits"] == {"train": 2, "val": 2} and source.facts["classes"] == ["cat"]
    assert source.location(0).file == "images/train/train0.png" and len(source[3]["boxes"]) == 1
    assert confidence(tmp_path / given, yolo.detect) > 0.9


def test_a_data_yaml_in_a_folder_of_its_own(tmp_path):
    fill(split_set(tmp_path, None), {"config/my.yaml": "path: ..\ntrain: images/train\nnames: [cat]\n"})
    for data in (tmp_path / "config" / "my.yaml", tmp_path / "config"):
        report = check(data)
        assert report.ok and "path-outside" in report.counts
        source = pickle.loads(pickle.dumps(read(data)))
        assert len(source) == 2 and len(source[0]["boxes"]) == 1


def test_splits_are_folders_list_files_or_lists_of_those(tmp_path):
    split_set(tmp_path, "path: .\ntrain: [images/train, lists/more.txt]\nval: val.txt\nnames: {0: cat}\n")
    fill(tmp_path, {"images/pool/x.png": None, "labels/pool/x.txt": BOX, "lists/caf\u00e9.png": png(seed=77)})
    fill(tmp_path, {"lists/more.txt": "\ufeff# more\r\n\r\n../images/pool/x.png\r\n./cafe\u0301.png\r\n"})
    fill(tmp_path, {"val.txt": "images\\val\\val1.png\n  ./images/val/val0.png\n", "lists/caf\u00e9.txt": BOX})
    source, report = scan(tmp_path, depth="full")
    assert report.ok and not report.warnings and report.facts["splits"] == {"train": 4, "val": 2}
    assert [source.location(index).file for index in (4, 5)] == ["images/val/val1.png", "images/val/val0.png"]


def test_lines_of_list_files_are_located(tmp_path):
    split_set(tmp_path, "train: list.txt\nnames: [cat]\n")
    good = b"images/train/train0.png\n"
    lines = [good, b"images/gone.png\n", b"labels/train/train0.txt\n", b"\xff.png\n", good, b"a\0.png\n"]
    report = check(fill(tmp_path, {"list.txt": b"".join(lines)}))
    assert {code: places(report, code) for code in ("image-missing", "list-invalid", "image-twice")} == {
        "image-missing": ["list.txt:2", "list.txt:6"], "list-invalid": ["list.txt:3", "list.txt:4"],
        "image-twice": ["list.txt:5"],
    }  # fmt: skip
    with pytest.raises(DataError, match=r"list\.txt:2"):
        read(tmp_path)
    assert len(read(tmp_path, on_error="drop")) == 1
    split_set(tmp_path, "train: images/train/train0.png\nnames: [cat]\n")
    assert places(check(tmp_path), "list-invalid") == ["images/train/train0.png"], "an image is no list"


def test_files_outside_are_read_with_a_note_and_only_named_folders_are_listed(tmp_path, monkeypatch):
    pool, listed = split_set(tmp_path / "pool", None), []
    walk = yolo_tree.walk
    monkeypatch.setattr(yolo_tree, "walk", lambda folder, report: listed.append(folder) or walk(folder, report))
    fill(tmp_path, {"pool/secret/x.png": None, "set/data.yaml": "path: ../pool\ntrain: images/train\nnames: [cat]\n"})
    assert len(read(tmp_path / "set" / "data.yaml")) == 2 and listed == [pool / "images" / "train"]
    monkeypatch.setattr(yolo_tree, "MOST_OUTSIDE", 1)
    report = check(tmp_path / "set")
    assert "split-too-wide" in report.counts and report.facts["samples"] == 1
    fill(tmp_path / "set", {"list.txt": f"{pool}/images/val/val0.png\n", "data.yaml": "train: list.txt\nnames: [x]"})
    report = check(tmp_path / "set")
    assert report.ok and places(report, "path-outside") == ["list.txt"]


@pytest.mark.parametrize(
    "yaml",
    ["train: /", "path: /\ntrain: proc", "train: /proc/self/root", "train: /sys", "train: /dev", "train: /etc/passwd",
     "train: /home", "path: ..\ntrain: ."],
)  # fmt: skip
def test_system_folders_and_folders_above_are_refused(tmp_path, yaml):
    fill(tmp_path / "set", {"images/a.png": None, "labels/a.txt": BOX, "data.yaml": f"{yaml}\nnames: [x]\n"})
    for data in (tmp_path / "set", tmp_path / "set" / "data.yaml"):
        assert codes(check(data).errors) == ["split-too-wide", "no-images"]


def test_a_list_file_cannot_name_system_files(tmp_path):
    (tmp_path / "link").symlink_to("/etc")
    lines = f"/proc/self/cwd/a.png\n{tmp_path}/link/x.png\n"
    fill(tmp_path, {"data.yaml": "train: list.txt\nnames: [x]", "list.txt": lines})
    assert set(codes(check(tmp_path).errors)) <= {"image-missing", "list-invalid", "no-images"}


def test_roboflow_paths_that_lead_one_folder_too_high_are_guessed(tmp_path):
    fill(tmp_path, {"train/images/a.png": None, "train/labels/a.txt": BOX})
    report = check(fill(tmp_path, {"data.yaml": "train: ../train/images\nval: ../valid/images\nnames: [cat]\n"}))
    assert places(report, "path-guessed") == ["data.yaml (train)"]
    assert places(report, "split-missing") == ["data.yaml (val)"]
    assert "valid/images" in message(report, "split-missing") and len(read(tmp_path, split="train")) == 1


def test_one_description_of_any_name_is_used_and_several_are_not_chosen_among(tmp_path):
    fill(split_set(tmp_path, "nc: 1\n"), {"one.yaml": "train: images/train\nnames: [cat]\n"})
    assert read(tmp_path).facts["splits"] == {"train": 2} and read(tmp_path).facts["classes"] == ["cat"]
    fill(tmp_path, {"two.yaml": "train: images/train\nnames: [cat]\n"})
    assert "yaml-ambiguous" in check(tmp_path).counts
    assert read(tmp_path / "one.yaml").facts["splits"] == {"train": 2}


# data.yaml: content


@pytest.mark.parametrize(
    ("names", "classes", "issue"),
    [
        ("[no, 007, 1.0, 1e3, Überfall]", ["no", "007", "1.0", "1e3", "Überfall"], None),
        ("!!seq [!!str cat, ! dog]", ["cat", "dog"], None),
        ("{0: cat, 2: dog}", ["cat", "class_1", "dog"], "no name for class 1"),
        ("[cat, null]", ["cat", "class_1"], "no name for class 1"),
        ("{a: cat}", None, "'a' is not an integer"),
        ("cat", None, "the text 'cat'"),
        ("{0: cat, 999999999: dog}", ["cat", "dog"], "up to 999999999"),
    ],
)
def test_names_are_a_list_or_numbered_without_gaps(tmp_path, names, classes, issue):
    report = check(split_set(tmp_path, f"train: images/train\nnames: {names}\n"))
    assert report.facts.get("classes") == classes
    if issue:
        assert places(report, "names-invalid") == ["data.yaml:2"] and issue in message(report, "names-invalid")
    else:
        assert report.ok and not report.warnings


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("nc: 3", "yaml-nc"),
        ("kpt_shape: [17, 2]", "yaml-keypoints"),
        ('download: \'open("{mark}", "w")\'', "yaml-download"),
        ("x: !!python/object/apply:os.system 'touch {mark}'", "yaml-tag"),
        ("x: !!python/name:os.system", "yaml-tag"),
        ("x: !mine cat", "yaml-tag"),
        ("x: !!binary Y2F0", "yaml-tag"),
        ("nc: 1", None),
    ],
)
def test_what_a_data_yaml_asks_for_is_reported_and_never_done(tmp_path, line, code):
    """YOLOv5 runs `download` with exec() or bash, and overwrites nc in silence."""
    mark = tmp_path / "ran"
    report = check(split_set(tmp_path / "set", f"{SPLIT_YAML}{line.replace('{mark}', str(mark))}\n"))
    assert places(report, code) == (["data.yaml:4"] if code else []) and not mark.exists()
    assert bool(report.errors) == (code in ("yaml-nc", "yaml-keypoints"))


def test_a_data_yaml_is_strict_utf8(tmp_path):
    """YOLOv5 opens it with errors="ignore": bytes vanish from class names."""
    issue = check(split_set(tmp_path, b"train: images/train\nnames: [caf\xe9]\n")).errors[0]
    assert issue.code == "yaml-invalid" and issue.location.byte == 31 and "0xe9" in issue.message


HOSTILE = {
    "aliases": "a: &a [x, x]\nb: &b [*a, *a]\nnames: *b\n",
    "nesting": "[" * 100_000,
    "tags": "names: !!python/object/apply:os.system ['true']\ntrain: [",
    "text": "just text",
    "nothing": " ",
    "huge": "x: " + "y" * (2 << 20),
    "twice": "train: images/train\ntrain: images/val\n",
    "mapping": "? [1, 2]\n: x\ntrain: {a: b}\n",
    "nul": "a\0b",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_data_yaml_is_refused(tmp_path, text):
    assert "yaml-invalid" in check(split_set(tmp_path, text)).counts


def test_an_invalid_data_yaml_alone_says_nothing_about_its_folder(tmp_path):
    fill(tmp_path, {"a.png": None, "a.txt": BOX, "broken.yaml": "["})
    assert set(codes(check(tmp_path / "broken.yaml").errors)) == {"yaml-invalid", "no-images"}


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
    assert report.counts["label-unreadable"] == 2 and report.counts["names-invalid"] == 1
    with pytest.raises(SampleError):
        source[0]


def test_an_archive_is_read_without_leaving_it(tmp_path):
    yaml = "path: set\ntrain: ../set/images/train\nval: /etc\ntest: ../../../etc\nnames: [cat]\n"
    fill(tmp_path / "data", {"data.yaml": yaml})
    split_set(tmp_path / "data" / "set", None)
    archive = shutil.make_archive(str(tmp_path / "data"), "zip", tmp_path / "data")
    source, report = scan(archive, depth="full")
    assert len(source) == 2 and len(source[0]["boxes"]) == 1 and report.counts["split-missing"] == 2
