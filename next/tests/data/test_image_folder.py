# SPDX-License-Identifier: Apache-2.0
"""Image folders: splits, classes, damage, duplicates, detection, repair."""

import hashlib
import itertools
import os
import subprocess
import sys
import unicodedata
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from fewbit.data.files import Folder
from fewbit.data.formats.image_folder import FORMAT, detect, scan
from fewbit.data.opening import open_source
from fewbit.data.types import DataReport, SampleError
from fewbit.errors import DataError, UsageError

seeds = itertools.count()


def picture(path, *, size=(16, 12)):
    """An image of noise that no other has, in the format of its suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(next(seeds)).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)


def folder(root, *names):
    for name in names:
        picture(root / name)
    return root


def check(root, on_error=None, depth="full", **options):
    report = DataReport(on_error=on_error)
    source = scan(Folder(root, report=report), report, depth=depth, options=options)
    report.facts.setdefault("samples", len(source))
    report.complete = True
    return source, report


def report_of(root, **options):
    return check(root, **options)[1]


def found(issues):
    return [(issue.code, issue.location.file) for issue in issues]


def opened(root, on_error=None, split=None, task=None, **options):
    return open_source(
        str(root), data_format="image_folder", data_option=options, split=split, task=task, on_error=on_error
    )[0]


def labels(source):
    return [(source.location(index).file, source[index]["label"]) for index in range(len(source))]


def repaired(root, out, **options):
    out.mkdir()
    return FORMAT.write(check(root, on_error="repair", **options)[0], out)


@pytest.fixture
def split(tmp_path):
    names = [f"{part}/{name}/{i}.png" for part in ("train", "val", "test") for name in ("cat", "dog") for i in (1, 2)]
    return folder(tmp_path / "data", *names)


# Layout


def test_classes_are_folder_names_and_files_lie_at_any_depth(tmp_path):
    root = folder(tmp_path, "dog/3.webp", "cat/deep/er/2.JPG", "cat/1.png")
    source, report = check(root)
    assert labels(source) == [("cat/1.png", 0), ("cat/deep/er/2.JPG", 0), ("dog/3.webp", 1)]
    assert source.strata() == ["cat", "cat", "dog"] and source.location(2).index == 2
    image = opened(root)[1]["image"]
    assert image.shape == (12, 16, 3) and image.dtype == np.uint8
    assert report.ok and not report.issues and source.facts == opened(root).facts
    facts = {key: report.facts[key] for key in ("class_counts", "task", "image_sizes", "image_formats", "samples")}
    assert list(facts.values()) == [
        {"cat": 2, "dog": 1}, "image-classification", "16 x 12", "JPEG 1, PNG 1, WEBP 1", 3,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "words", [("train", "val", "test"), ("Training", "valid", "TEST"), ("train2017", "val2017", "test")]
)
def test_splits_are_known_by_their_usual_names(tmp_path, words):
    source = opened(folder(tmp_path, *(f"{word}/{name}/1.png" for word in words for name in ("cat", "dog"))))
    assert source.facts["splits"] == {"train": 2, "val": 2, "test": 2}
    files = [source.location(index).file for index in range(6)]
    assert [file.partition("/")[0] for file in files] == [word for word in words for _ in (1, 2)]
    assert len(opened(tmp_path, split="validation")) == 2


def test_a_split_that_is_not_there_is_a_wrong_call(split, tmp_path):
    with pytest.raises(UsageError, match="tset") as caught:
        opened(split, split="tset")
    assert "train, val, test" in caught.value.expected
    with pytest.raises(UsageError, match="no splits"):
        opened(folder(tmp_path / "flat", "a/1.png", "b/1.png"), split="train")


def test_two_folders_called_train_and_test_need_an_option(tmp_path):
    root = folder(tmp_path, "train/1.png", "train/2.png", "test/3.png")
    with pytest.raises(DataError) as caught:
        opened(root)
    assert caught.value.code == "split-ambiguous" and "--data-option splits=false" in caught.value.text("cli")
    assert opened(root, splits=False).facts["classes"] == ["test", "train"]
    source = opened(root, splits="true")
    assert source.facts["splits"] == {"train": 2, "test": 1} and set(source[0]) == {"image"}
    assert source.strata() == ["train", "train", "test"]
    with pytest.raises(UsageError):
        opened(root, splits="perhaps")


def test_a_train_among_other_vehicles_is_a_class(tmp_path):
    root = folder(tmp_path, "bus/1.png", "car/1.png", "train/1.png")
    assert opened(root).facts["classes"] == ["bus", "car", "train"]


def test_split_folders_next_to_class_folders_are_ambiguous(tmp_path):
    root = folder(tmp_path, "train/cat/1.png", "val/cat/1.png", "extra/1.png")
    assert report_of(root).counts["split-ambiguous"] == 1
    assert report_of(root, splits=True).counts == {"split-beside": 1, "one-class": 1}
    assert opened(root, splits=True).facts["splits"] == {"train": 1, "val": 1}


@pytest.mark.parametrize(
    ("names", "issues", "samples"),
    [
        (["train/cat/1.png", "training/cat/2.png", "train/dog/1.png"], [("split-twice", "training")], 3),
        (["train/a/1.png", "train/b/1.png", "val/a/1.png"], [("class-missing-in-split", "val")], 3),
        (["data/cat/1.png", "data/dog/1.png"], [("one-class", "")], 2),
        (["1.jpg", "2.jpg"], [("no-classes", "")], 2),
        (["Tea/1.png", "tea/1.png", "x/1.png"], [("class-collision", "Tea")], 3),
        (["caf\u00e9/1.png", "cafe\u0301/1.png", "x/1.png"], [("class-collision", "cafe\u0301")], 3),
        (
            ["train/a/1.png", "train/b/1.png", "val/a/1.png", "val/b/1.png", "val/1.png", "x.png"],
            [("image-outside-class", "x.png"), ("image-outside-class", "val/1.png")],
            4,
        ),
        (["a/1.txt"], [("file-ignored", "a/1.txt"), ("no-images", ""), ("class-empty", "a")], 0),
    ],
)
def test_what_is_odd_about_names_is_reported_and_the_rest_is_read(tmp_path, names, issues, samples):
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch() if path.suffix == ".txt" else picture(path)
    source, report = check(tmp_path)
    assert sorted(found(report.issues)) == sorted(issues) and len(source) == samples


def test_images_alone_are_samples_without_a_label(tmp_path):
    root = folder(tmp_path / "data", "1.jpg", "2.jpg")
    (root / "0.jpg").touch()
    (root / "3.jpg").write_bytes((root / "1.jpg").read_bytes())
    source, report = check(root)
    assert len(source) == 4 and source.facts == {} and set(source[1]) == {"image"} and source.strata() is None
    assert report.counts == {"no-classes": 1, "image-empty": 1, "duplicate": 1}
    assert repaired(root, tmp_path / "out") == ["left out 0.jpg: empty image file: 0 bytes"]
    assert sorted(os.listdir(tmp_path / "out")) == ["1.jpg", "2.jpg", "3.jpg"]
    assert len(opened(root / "1.jpg")) == 1 and detect(Folder(root / "1.jpg")).confidence == 0.9


# Classes


def test_numbers_come_from_the_union_of_the_splits(tmp_path):
    root = folder(tmp_path, "train/a/1.png", "train/b/1.png", "train/c/1.png", "val/a/1.png", "val/c/1.png")
    assert [label for _, label in labels(opened(root, split="val"))] == [0, 2]


def test_an_empty_class_folder_keeps_its_number_and_is_reported(tmp_path):
    root = folder(tmp_path, "train/a/1.png", "train/b/1.png", "train/c/1.png", "val/a/1.png", "val/c/1.png")
    for name in ("val/b", "train/aa", "train/.hidden", "test/a"):
        (root / name).mkdir(parents=True)
    source, report = check(root)
    assert source.facts["classes"] == ["a", "aa", "b", "c"]
    empty = [("class-empty", name) for name in ("train/aa", "val/b", "test/a")]
    assert found(report.warnings) == empty and report.facts["splits"] == {"train": 3, "val": 2, "test": 0}


def test_a_class_of_val_that_train_lacks_is_an_error(tmp_path):
    root = folder(tmp_path, "train/a/1.png", "train/b/1.png", "val/a/1.png", "val/z/1.png")
    assert found(report_of(root).errors) == [("class-unseen-in-train", "val/z")]
    with pytest.raises(DataError):
        opened(root)
    assert len(opened(root, split="train")) == 2
    assert len(opened(root, {"class-unseen-in-train": "drop"})) == 3
    assert len(opened(root, {"class-unseen-in-train": "keep"})) == 4


def test_a_wrong_class_comes_with_the_name_that_was_meant(tmp_path):
    root = folder(tmp_path, "train/seven/1.png", "train/two/1.png", "val/sevn/1.png", "val/xyz/1.png", "val/TWO/1.png")
    messages = {issue.location.file: issue.message for issue in report_of(root).errors}
    assert messages == {
        "val/sevn": "1 image; did you mean 'seven'?", "val/xyz": "1 image", "val/TWO": "1 image; did you mean 'two'?"
    }  # fmt: skip
    errors = report_of(root, classes="seven,two,xyz,TWO").errors
    assert [issue.message for issue in errors if issue.code == "class-unknown"] == ["1 image; did you mean 'seven'?"]


@pytest.mark.parametrize(
    ("names", "warned"),
    [(["1", "2", "10"], True), (["1", "2"], True), (["10", "2", "apple"], False), (["00", "01", "02"], False)],
)
def test_numeric_names_are_warned_about_unless_they_are_their_numbers(tmp_path, names, warned):
    root = folder(tmp_path, *(f"{name}/1.png" for name in names))
    assert bool(report_of(root).counts["class-numeric"]) is warned
    assert not report_of(root, classes=names).counts["class-numeric"]


def test_given_classes_fix_the_numbers(tmp_path):
    root = folder(tmp_path, "cat/1.png", "dog/1.png")
    assert labels(opened(root, classes=["dog", "fox", "cat"])) == [("cat/1.png", 2), ("dog/1.png", 0)]
    with pytest.raises(DataError) as caught:
        opened(root, classes=["dog"])
    assert caught.value.code == "class-unknown"
    assert labels(opened(root, {"class-unknown": "drop"}, classes="dog")) == [("dog/1.png", 0)]
    for wrong in ([], ["a", "a"], [1], ""):
        with pytest.raises(UsageError):
            opened(root, classes=wrong)


def test_the_task_must_fit(tmp_path):
    root, flat = folder(tmp_path / "a", "a/1.png", "b/1.png"), folder(tmp_path / "b", "1.png", "2.png")
    for wrong_root, task in ((root, "detection"), (flat, "image-classification")):
        with pytest.raises(DataError) as caught:
            opened(wrong_root, task=task)
        assert caught.value.code == "task-mismatch"
    assert len(opened(root, task="image_classification")) == len(opened(root, task="tasks.py:mine")) == 2
    assert len(opened(flat, task="object-detection")) == 2


# Files


def test_links_are_followed_and_cycles_are_no_classes(tmp_path):
    root = folder(tmp_path / "data", "cat/1.png", "dog/1.png")
    folder(tmp_path / "else", "2.png")
    (root / "cat/round").symlink_to(root)
    (root / "loop").symlink_to(root, target_is_directory=True)
    (root / "cat/more").symlink_to(tmp_path / "else")
    source, report = check(root)
    assert report.counts["link-cycle"] == 2 and source.facts["classes"] == ["cat", "dog"]
    assert [file for file, _ in labels(source)] == ["cat/1.png", "cat/more/2.png", "dog/1.png"]


def test_images_that_are_not_read_are_told_from_other_files(tmp_path):
    root = folder(tmp_path, "a/1.png", "b/1.png")
    for name in ("a/2.heic", "a/3.svg", "a/4", "b/notes.txt"):
        (root / name).write_text("x")
    source, report = check(root)
    assert len(source) == 2 and found(report.issues) == [
        ("image-skipped", "a/2.heic"), ("image-skipped", "a/3.svg"), ("file-ignored", "a/4"),
        ("file-ignored", "b/notes.txt"),
    ]  # fmt: skip


def test_suffixes_animations_pages_and_tiny_images_are_warned_about(tmp_path):
    root = folder(tmp_path, "a/1.png", "b/1.png")
    frames = [Image.new("RGB", (12, 12), (i * 90, 0, 0)) for i in range(3)]
    frames[0].save(root / "a/2.png", "JPEG")
    frames[0].save(root / "b/2.gif", save_all=True, append_images=frames[1:])
    frames[0].save(root / "b/3.tif", save_all=True, append_images=frames[1:])
    picture(root / "b/4.png", size=(9, 50))
    source, report = check(root)
    assert {(issue.code, str(issue)) for issue in report.issues} == {
        ("image-extension-mismatch", "a/2.png: a JPEG file"), ("image-animated", "b/2.gif: 3 frames"),
        ("image-multipage", "b/3.tif: 3 pages"), ("image-tiny", "b/4.png: 9 x 50 pixels"),
    }  # fmt: skip
    assert len(source) == 6 and report.facts["image_sizes"] == "12 x 12 to 9 x 50"


BROKEN = {
    "a/0.jpg": "image-empty", "a/2.jpg": "image-unreadable", "b/0.jpg": "image-truncated",
    "b/3.jpg": "image-kind-unsupported", "b/4.png": "image-bomb",
}  # fmt: skip


def spoil(root):
    """Five broken files of five kinds next to four good ones."""
    folder(root, "a/1.png", "a/3.png", "b/1.png", "b/2.jpg")
    (root / "a/0.jpg").touch()
    (root / "a/2.jpg").write_text("<html>not found</html>")
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(root / "b/0.jpg", quality=90)
    os.truncate(root / "b/0.jpg", (root / "b/0.jpg").stat().st_size * 2 // 3)
    (root / "b/3.jpg").write_bytes(b"\0\0\0\x1cftypheic" + bytes(40))
    header = b"IHDR" + (100_000).to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0"
    pixels = b"\0\0\0\x04IDATabcd" + zlib.crc32(b"IDATabcd").to_bytes(4, "big")
    start = b"\x89PNG\r\n\x1a\n\0\0\0\r"
    (root / "b/4.png").write_bytes(start + header + zlib.crc32(header).to_bytes(4, "big") + pixels)
    return root


def test_a_full_check_finds_all_broken_files_in_order(tmp_path):
    source, report = check(spoil(tmp_path / "data"))
    assert [(issue.location.file, issue.code) for issue in report.errors] == list(BROKEN.items())
    assert len(source) == 9 and not report.ok and set(report.counts) <= {kind.code for kind in FORMAT.issues}
    quick = report_of(tmp_path / "data", depth="index")  # sizes and first bytes, nothing is decoded
    assert found(quick.errors) == [(BROKEN[name], name) for name in ("a/0.jpg", "a/2.jpg", "b/3.jpg")]
    assert len(repaired(tmp_path / "data", tmp_path / "out")) == 5 and report_of(tmp_path / "out").ok


def test_broken_images_raise_when_read_unless_dropped(tmp_path):
    root = spoil(tmp_path)
    with pytest.raises(DataError) as caught:
        opened(root)
    assert caught.value.code == "data-issues" and "a/0.jpg" in caught.value.where
    dropped = opened(root, "drop")
    assert [dropped.location(index).file for index in (0, 2)] == ["a/1.png", "b/0.jpg"]
    with pytest.raises(SampleError) as caught:
        dropped[2]
    assert caught.value.code == "image-truncated"
    kept, _ = check(root, on_error="drop")
    assert [file for file, _ in labels(kept)] == ["a/1.png", "a/3.png", "b/1.png", "b/2.jpg"]
    some, _ = check(root, on_error={"image-empty": "drop"})
    assert len(some) == 8 and some.location(0).file == "a/1.png"


def test_equal_files_across_splits_classes_and_within_a_class(split):
    (split / "val/cat/9.png").write_bytes((split / "train/cat/1.png").read_bytes())
    (split / "train/dog/9.png").write_bytes((split / "train/cat/2.png").read_bytes())
    (split / "test/dog/9.png").write_bytes((split / "test/dog/1.png").read_bytes())
    assert sorted((issue.code, str(issue)) for issue in report_of(split).issues) == [
        ("duplicate", "test/dog/9.png: same bytes as test/dog/1.png"),
        ("duplicate-across-classes", "train/dog/9.png: same bytes as train/cat/2.png"),
        ("duplicate-across-splits", "val/cat/9.png: same bytes as train/cat/1.png"),
    ]


def test_an_image_with_two_labels_is_not_ready(tmp_path):
    root = folder(tmp_path, *(f"{name}/{i}.png" for name in ("cat", "dog") for i in range(7)))
    (root / "dog/7.png").write_bytes((root / "cat/0.png").read_bytes())
    report = report_of(root)
    assert report.counts == {"duplicate-across-classes": 1} and not report.ok, "two of 15 samples are in doubt"


def test_a_quick_check_opens_a_bounded_number_of_files(tmp_path, monkeypatch):
    from fewbit.data.images import file_source

    root = folder(tmp_path, *(f"{name}/{i}.png" for name in ("cat", "dog") for i in range(5)))
    (root / "cat/3.png").write_bytes(b"")
    (root / "dog/0.png").write_text("<html>")
    (root / "dog/1.png").write_text("<html>")
    monkeypatch.setattr(file_source, "MOST_OPENED", 8)
    read = []
    monkeypatch.setattr(Folder, "read", lambda self, name, limit: read.append(name) or b"<html>")
    report = report_of(root, depth="index")
    assert read == ["cat/0.png", "cat/2.png", "cat/4.png", "dog/1.png", "dog/3.png"]
    assert report.counts == {"image-empty": 1, "image-unreadable": 5}


def test_only_files_of_equal_size_are_hashed(tmp_path, monkeypatch):
    from fewbit.data.images import inspect

    root = folder(tmp_path, "a/1.png")
    picture(root / "b/2.png", size=(100, 100))
    (root / "a/2.png").write_bytes((root / "b/2.png").read_bytes())
    hashed, real = set(), inspect._digest
    monkeypatch.setattr(inspect, "_digest", lambda files, name: hashed.add(name) or real(files, name))
    report_of(root)
    assert hashed == {"a/2.png", "b/2.png"}


# Options, detection


def test_transparency_goes_onto_the_chosen_background(tmp_path):
    root = folder(tmp_path, "a/1.png", "b/1.png")
    Image.new("RGBA", (12, 12), (255, 0, 0, 0)).save(root / "a/0.png")
    for background in ([0, 0, 9], "0,0,9"):
        assert opened(root, background=background)[0]["image"][0, 0].tolist() == [0, 0, 9]
    for wrong in ([1, 2], [0, 0, 256], "red"):
        with pytest.raises(UsageError, match="background"):
            opened(root, background=wrong)


@pytest.mark.parametrize(
    ("low", "high", "names"),
    [
        (0.8, 1, ["a/1.png", "b/x/1.jpg"]),
        (0.8, 1, ["train/a/1.png", "val/a/1.png"]),
        (0.8, 1, ["train/1.png", "test/1.png"]),
        (0.8, 1, ["mask/1.png", "no_mask/1.png"]),
        (0.8, 1, ["train/n01/images/1.png", "train/n02/images/1.png"]),
        (0.6, 0.6, ["1.png", "2.png"]),
        (0, 0.4, ["images/1.png", "labels/1.txt"]),
        (0, 0.4, ["images/train/1.png", "labels/train/1.txt"]),
        (0, 0.4, ["images/1.png", "masks/1.png"]),
        (0, 0.4, ["image/1.png", "mask/1.png"]),
        (0, 0.4, ["train/images/1.png", "train/labels/1.txt", "val/images/1.png"]),
        (0, 0.4, ["train/images/1.png", "train/masks/1.png"]),
        (0, 0.4, ["data.yaml", "train/a/1.png"]),
        (0, 0.4, ["Annotations/1.xml", "JPEGImages/1.jpg", "ImageSets/Main/train.txt", "SegmentationClass/1.png"]),
        (0, 0.4, ["annotations/instances.json", "train2017/1.jpg", "val2017/1.jpg"]),
        (0, 0.4, ["metadata.csv", "a/1.png", "b/1.png"]),
        (0, 0.4, ["images/1.png"]),
        (0, 0.4, ["labels.csv", "1.png", "2.png"]),
        (0, 0.4, ["a/1.npz", "b/2.npz"]),
        (0, 0.4, ["1.png", "a.txt", "b.txt"]),
        (0, 0.4, []),
    ],
)
def test_class_folders_are_told_from_other_layouts(tmp_path, low, high, names):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    detection = detect(Folder(tmp_path))
    assert low <= (detection.confidence if detection else 0.0) <= high


def test_importing_the_format_imports_no_pillow():
    code = "import sys, fewbit.data.formats.image_folder; print({'PIL', 'torch'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


# Repair


def snapshot(root):
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(root.rglob("*"))
    }


def test_a_clean_dataset_is_copied_unchanged(split, tmp_path):
    (split / "README.md").write_text("cats and dogs")
    (split / "train/empty").mkdir()
    before = snapshot(split)
    assert repaired(split, tmp_path / "out") == []
    assert snapshot(tmp_path / "out") == snapshot(split) == before


def test_a_class_that_loses_its_last_image_goes(tmp_path):
    root, out = tmp_path / "data", tmp_path / "out"
    folder(root, *(f"train/{name}/{i}.png" for name in ("one", "seven", "two") for i in (1, 2)))
    folder(root, "val/one/1.png", "val/sevn/1.png", "val/two/1.png")
    (root / "val/sevn/notes.txt").write_text("a misspelt folder")
    (root / "val/two/1.png").write_bytes(b"")
    (root / "train/six").mkdir()
    changes = repaired(root, out)
    assert opened(out).facts["classes"] == ["one", "seven", "six", "two"]  # six was empty before: it keeps its number
    assert not (out / "val/sevn").exists() and not (out / "val/two").exists()
    assert [line for line in changes if line.startswith("left out the class")] == [
        "left out the class 'sevn': the number of every class after it is one less"
    ]
    assert not report_of(out).errors


def test_what_cannot_be_used_is_left_out(tmp_path):
    root, out = tmp_path / "data", tmp_path / "out"
    folder(
        root, "train/a/1.png", "train/c/1.png", "train/d/0.png", "val/a/9.png", "val/b/1.png", "val/c/1.png", "x.png"
    )
    (root / "train/d/0.png").write_bytes(b"")  # now train lacks d, too
    picture(root / "val/d/1.png")
    (root / "val/a/1.png").write_bytes((root / "train/a/1.png").read_bytes())
    Image.new("RGB", (20, 20)).save(root / "train/c/2.png", "JPEG")
    Image.new("RGB", (20, 20), (9, 9, 9)).save(root / "train/c/2.jpg", "JPEG")
    before = snapshot(root)
    changes = "\n".join(repaired(root, out))
    assert snapshot(root) == before
    assert not report_of(out).errors and opened(out).facts["classes"] == ["a", "c"]
    for name in ("train/d/0.png", "val/b/1.png", "val/d/1.png", "val/a/1.png", "2-2.jpg"):
        assert name in changes
    assert (out / "train/c/2.jpg").read_bytes() == (root / "train/c/2.jpg").read_bytes()
    assert (out / "train/c/2-2.jpg").read_bytes() == (root / "train/c/2.png").read_bytes()


# Any tree

words = st.sampled_from(
    ["train", "val", "test", "Train", "cat", "Cat", "e\u0301te\u0301", "été", "1", "10", ".x", "a b", "images"]
)


@given(st.lists(st.lists(words, min_size=1, max_size=4).map("/".join), max_size=8, unique=True))
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_any_tree_is_checked_and_read_or_refused(tmp_path_factory, names):
    root = tmp_path_factory.mktemp("tree")
    for number, name in enumerate(names):
        picture(root / name / f"{number}.png")
    detect(Folder(root))
    for options in ({}, {"splits": True}, {"splits": False}):
        report = report_of(root, depth="index", **options)
        try:
            source = opened(root, **options)
        except DataError:
            assert report.raising()
            continue
        classes = source.facts.get("classes", [])
        assert list(classes) == sorted(classes)
        for index in range(len(source)):
            sample = source[index]
            if "label" in sample:
                parts = unicodedata.normalize("NFC", source.location(index).file).split("/")
                assert classes[sample["label"]] in parts
        assert sum(source.facts.get("splits", {"": len(source)}).values()) == len(source)
