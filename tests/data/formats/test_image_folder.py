# SPDX-License-Identifier: Apache-2.0
import builtins
import errno
import hashlib
import inspect
import os
import subprocess
import sys
import unicodedata
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fewbit.data.detect import find_format
from fewbit.data.findings import DataReport, Policy
from fewbit.data.formats.image_folder import CODES, check, detect, fix, read
from fewbit.errors import DataError, FewbitError, UsageError

numbers = iter(range(1_000_000))


def picture(path, *, size=(16, 12), **options):
    """A small image with content of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number = next(numbers)
    pixels = np.full((size[1], size[0], 3), number % 251, np.uint8)
    pixels[0, 0] = number // 251 % 256, number % 256, 7
    image = Image.fromarray(pixels)
    # Lossless kinds keep the number apart in the bytes; for JPEG a comment does.
    if path.suffix.lower() in (".jpg", ".jpeg"):
        options.setdefault("comment", str(number).encode())
    image.save(path, **options)
    return path


def folder(root, *names):
    for name in names:
        picture(root / name)
    return root


def report_of(root, quick=False, **options):
    report = DataReport(str(root), format="image_folder", codes=CODES)
    check(root, report, task=options.pop("task", None), signature=None, quick=quick, **options)
    report.to_json()
    return report


def opened(root, policy=None, **options):
    return read(root, policy=Policy(CODES, policy), **options)


def codes(report):
    return set(report.counts)


def labels(source):
    return [(sample.place.path, sample["label"]) for sample in source]


@pytest.fixture
def split(tmp_path):
    names = [f"{part}/{name}/{i}.png" for part in ("train", "val", "test") for name in ("cat", "dog") for i in (1, 2)]
    return folder(tmp_path / "data", *names)


# Layout


def test_classes_are_folder_names_and_files_lie_at_any_depth(tmp_path):
    root = folder(tmp_path, "cat/1.png", "cat/deep/er/2.JPG", "dog/3.webp")
    source = opened(root)
    assert source.facts == {"classes": ["cat", "dog"], "splits": {"all": 3}, "task": "image-classification"}
    assert labels(source) == [("cat/1.png", 0), ("cat/deep/er/2.JPG", 0), ("dog/3.webp", 1)]
    assert source.targets == {"label"} and source.random_access and len(source) == 3
    assert source.get(2)["image"].shape == (12, 16, 3) and source.get(2)["image"].dtype == np.uint8
    assert str(source.place(2)) == "dog/3.webp, sample 2"
    assert report_of(root).ok


def test_classes_sort_by_code_point_and_case(tmp_path):
    root = folder(tmp_path, "apple/1.png", "Zebra/1.png", "10/1.png", "2/1.png")
    assert opened(root).facts["classes"] == ["10", "2", "Zebra", "apple"]


@pytest.mark.parametrize(
    "words", [("train", "val", "test"), ("Training", "valid", "TEST"), ("train", "validation", "test")]
)
def test_splits_are_detected_by_their_usual_names(tmp_path, words):
    names = [f"{word}/{name}/1.png" for word in words for name in ("cat", "dog")]
    source = opened(folder(tmp_path, *names))
    assert source.facts["splits"] == {"train": 2, "val": 2, "test": 2}
    assert [sample.place.path.partition("/")[0] for sample in source] == [word for word in words for _ in (1, 2)]
    assert len(opened(tmp_path, split="validation")) == 2


def test_all_splits_are_read_in_the_order_train_val_test(split):
    paths = [path for path, _ in labels(opened(split))]
    assert [path.partition("/")[0] for path in paths] == ["train"] * 4 + ["val"] * 4 + ["test"] * 4
    assert len(opened(split, split="all")) == 12


def test_a_split_that_is_not_there_is_a_wrong_call(split, tmp_path):
    with pytest.raises(UsageError, match="tset"):
        opened(split, split="tset")
    with pytest.raises(UsageError) as caught:
        opened(folder(tmp_path / "flat", "a/1.png", "b/1.png"), split="train")
    assert "no splits" in str(caught.value)


def test_two_classes_called_train_and_test_need_an_explicit_option(tmp_path):
    root = folder(tmp_path, "train/1.png", "train/2.png", "test/3.png")
    with pytest.raises(DataError) as caught:
        opened(root)
    assert caught.value.code == "split-ambiguous" and "splits=False" in caught.value.try_
    assert "split-ambiguous" in codes(report_of(root))
    assert opened(root, splits=False).facts["classes"] == ["test", "train"]
    assert report_of(root, splits=False).ok
    with pytest.raises(DataError, match="no image"):
        opened(root, splits=True)


def test_a_train_among_other_vehicles_is_a_class(tmp_path):
    root = folder(tmp_path, "bus/1.png", "car/1.png", "train/1.png")
    assert opened(root).facts["classes"] == ["bus", "car", "train"]


def test_split_folders_beside_class_folders_are_ambiguous(tmp_path):
    root = folder(tmp_path, "train/cat/1.png", "val/cat/1.png", "extra/1.png")
    assert "split-ambiguous" in codes(report_of(root))
    report = report_of(root, splits=True)
    assert "split-beside" in codes(report) and report.ok
    assert opened(root, splits=True).facts["splits"] == {"train": 1, "val": 1}


def test_two_folders_for_one_split_are_reported_and_both_read(tmp_path):
    root = folder(tmp_path, "train/cat/1.png", "training/cat/2.png")
    assert "split-twice" in codes(report_of(root))
    assert len(opened(root)) == 2


def test_an_unlabelled_test_split_is_reported(tmp_path):
    root = folder(tmp_path, "train/cat/1.png", "train/dog/1.png", "test/1.png")
    report = report_of(root)
    assert [str(finding.place) for finding in report.warnings] == ["test/1.png"]
    assert codes(report) >= {"image-outside-class"}
    source = opened(root)
    assert source.facts["splits"]["test"] == 0 and len(source) == 2
    assert any(line["what"] == "image-outside-class" for line in source.record.lines)


def test_images_directly_in_the_root_are_reported(tmp_path):
    report = report_of(folder(tmp_path, "cat/1.png", "dog/1.png", "stray.png"))
    assert report.counts["image-outside-class"] == 1 and report.findings[0].place.path == "stray.png"


# No classes


def test_images_alone_are_samples_without_a_label(tmp_path):
    root = folder(tmp_path, *(f"{i}.jpg" for i in range(8)))
    assert 0.5 <= detect(root).confidence < 0.8
    source = opened(root)
    assert len(source) == 8 and source.facts == {"classes": [], "splits": {"all": 8}}
    assert all(set(sample) == {"image"} for sample in [*source, source.get(3)])
    assert [line["what"] for line in source.record.lines] == ["no-classes"]
    for quick in (True, False):
        report = report_of(root, quick=quick)
        assert [f.code for f in report.findings] == ["no-classes"] and report.ok
        assert report.understood["images"] == 8 and report.understood["classes"] == []


def test_images_alone_are_checked_dropped_and_repaired_like_others(tmp_path):
    root, out = folder(tmp_path / "data", "1.jpg", "2.jpg"), tmp_path / "out"
    (root / "0.jpg").touch()
    (root / "3.jpg").write_bytes((root / "1.jpg").read_bytes())
    assert report_of(root).counts == {"no-classes": 1, "image-empty": 1, "duplicate": 1}
    assert len(opened(root, {"image-empty": "drop"})) == 3
    out.mkdir()
    assert fix(root, out, task=None, signature=None) == ["left out 0.jpg: the file is empty (0 bytes)"]
    assert report_of(out).ok and len(opened(out)) == 3


def test_images_alone_serve_any_task_and_have_no_splits(tmp_path):
    root = folder(tmp_path, "1.png", "2.png")
    (root / "empty").mkdir()
    assert len(opened(root, task="object-detection")) == 2 and report_of(root, task="object-detection").ok
    with pytest.raises(UsageError, match="no split"):
        opened(root, split="train")


def test_images_alone_with_labels_or_a_table_beside_them_are_not_taken_for_granted(tmp_path):
    root = folder(tmp_path, *(f"{i}.png" for i in range(4)))
    (root / "0.txt").write_text("a photo of a cat")
    assert find_format(root)[0] == "image_folder"
    (root / "0.txt").write_text("0 0.5 0.5 1 1\n")
    assert find_format(root)[0] == "yolo"
    (root / "0.txt").unlink()
    (root / "metadata.csv").write_text("file_name,label\n0.png,cat\n")
    with pytest.raises(UsageError, match="more than one format"):
        find_format(root)


# Classes


def test_indices_come_from_the_union_of_the_splits_never_per_split(tmp_path):
    root = folder(tmp_path, "train/a/1.png", "train/b/1.png", "train/c/1.png", "val/a/1.png", "val/c/1.png")
    assert [label for _, label in labels(opened(root, split="val"))] == [0, 2]


def test_an_empty_class_folder_keeps_its_index_and_is_reported(tmp_path):
    root = folder(tmp_path, "train/a/1.png", "train/b/1.png", "train/c/1.png", "val/a/1.png", "val/c/1.png")
    (root / "val/b").mkdir()
    (root / "train/aa").mkdir()
    assert opened(root).facts["classes"] == ["a", "aa", "b", "c"]
    report = report_of(root)
    assert [finding.place.path for finding in report.warnings] == ["train/aa", "val/b"]
    assert report.ok


def test_a_class_of_val_that_train_lacks_is_an_error(tmp_path):
    root = folder(tmp_path, "train/a/1.png", "train/b/1.png", "val/a/1.png", "val/z/1.png")
    report = report_of(root)
    assert [(f.code, f.place.path) for f in report.errors] == [("class-unseen-in-train", "val/z")]
    with pytest.raises(DataError):
        opened(root)
    assert len(opened(root, split="train")) == 2
    assert len(opened(root, {"class-unseen-in-train": "drop"})) == 3
    assert len(opened(root, {"class-unseen-in-train": "keep"})) == 4


def test_a_class_that_train_lacks_comes_with_the_name_that_was_meant(tmp_path):
    root = folder(tmp_path, "train/seven/1.png", "train/two/1.png", "val/sevn/1.png", "val/xyz/1.png", "val/TWO/1.png")
    messages = {f.place.path: f.message for f in report_of(root).errors}
    assert "did you mean 'seven'?" in messages["val/sevn"] and "did you mean 'two'?" in messages["val/TWO"]
    assert "did you mean" not in messages["val/xyz"]
    given = report_of(root, classes=["seven", "two", "xyz", "TWO"])
    assert ["did you mean 'seven'?" in f.message for f in given.errors if f.code == "class-unknown"] == [True]


def test_a_class_that_val_lacks_is_only_information(tmp_path):
    report = report_of(folder(tmp_path, "train/a/1.png", "train/b/1.png", "val/a/1.png"))
    assert report.counts["class-missing-in-split"] == 1 and report.ok and not report.warnings


def test_numeric_class_names_are_warned_about(tmp_path):
    report = report_of(folder(tmp_path, "1/a.png", "2/a.png", "10/a.png"))
    assert "class-numeric" in codes(report)


@pytest.mark.parametrize("names, warned", [(["10", "2", "Zebra", "apple"], True), (["02", "10", "apple"], False)])
def test_numbers_among_other_names_are_warned_about_when_text_sorts_them_otherwise(tmp_path, names, warned):
    root = folder(tmp_path, *(f"{name}/1.png" for name in names))
    assert ("class-numeric" in codes(report_of(root))) is warned
    assert "class-numeric" not in codes(report_of(root, classes=sorted(names, key=lambda n: (len(n), n))))


def test_numeric_names_that_equal_their_indices_are_fine(tmp_path):
    assert not report_of(folder(tmp_path, *(f"{i}/a.png" for i in range(10)))).warnings


def test_names_equal_after_casefold_collide(tmp_path):
    report = report_of(folder(tmp_path, "Cat/1.png", "cat/1.png"))
    assert report.counts["class-collision"] == 1 and report.understood["classes"] == ["Cat", "cat"]


def test_names_equal_after_nfc_collide_and_are_one_class(tmp_path):
    composed, decomposed = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    root = folder(tmp_path, f"{composed}/1.png", f"{decomposed}/1.png", "tea/1.png")
    report = report_of(root)
    assert report.counts["class-collision"] == 1
    assert report.understood["classes"] == [composed, "tea"]
    assert len(opened(root)) == 3


def test_a_folder_that_only_wraps_the_dataset_is_pointed_out(tmp_path):
    report = report_of(folder(tmp_path, "dataset/cat/1.png", "dataset/dog/1.png"))
    assert "one-class" in codes(report)


def test_given_classes_fix_the_indices(tmp_path):
    root = folder(tmp_path, "cat/1.png", "dog/1.png")
    assert labels(opened(root, classes=["dog", "fox", "cat"])) == [("cat/1.png", 2), ("dog/1.png", 0)]
    with pytest.raises(DataError) as caught:
        opened(root, classes=["dog"])
    assert caught.value.code == "class-unknown"
    assert labels(opened(root, {"class-unknown": "drop"}, classes=["dog"])) == [("dog/1.png", 0)]
    assert [f.code for f in report_of(root, classes=["dog"]).errors] == ["class-unknown"]
    with pytest.raises(UsageError):
        opened(root, classes="dog")


# Files


def test_hidden_and_system_files_are_never_classes_or_samples(tmp_path):
    root = folder(tmp_path, "cat/1.png", "dog/1.png", ".ipynb_checkpoints/1.png", "__MACOSX/cat/._1.png", "cat/._2.png")
    (root / "cat/.DS_Store").write_bytes(b"x")
    (root / "dog/Thumbs.db").write_bytes(b"x")
    assert opened(root).facts["classes"] == ["cat", "dog"] and len(opened(root)) == 2
    assert not report_of(root).findings


def test_links_are_followed_and_cycles_are_detected(tmp_path):
    root = folder(tmp_path / "data", "cat/1.png", "dog/1.png")
    folder(tmp_path / "else", "2.png")
    (root / "cat/round").symlink_to(root)
    (root / "loop").symlink_to(root, target_is_directory=True)
    (root / "cat/more").symlink_to(tmp_path / "else")
    (root / "dog/gone.png").symlink_to(tmp_path / "nowhere.png")
    report = report_of(root)
    assert report.counts["link-cycle"] == 2 and report.counts["link-broken"] == 1 and report.counts["link-outside"] == 1
    assert report.understood["classes"] == ["cat", "dog"]
    assert [path for path, _ in labels(opened(root))] == ["cat/1.png", "cat/more/2.png", "dog/1.png"]


def test_pipes_and_deep_folders_do_not_hang_or_crash(tmp_path):
    root = folder(tmp_path, "cat/1.png", "dog/1.png")
    os.mkfifo(root / "cat/pipe.png")
    deep = root / "dog"
    for _ in range(400):
        deep = deep / "d"
        deep.mkdir()
    report = report_of(root)
    assert codes(report) >= {"not-a-file", "unreadable"}
    assert len(opened(root)) == 2


def test_a_name_that_is_no_utf8_is_read_and_reported(tmp_path):
    root = folder(tmp_path, "cat/1.png", "dog/1.png")
    os.rename(root / "cat/1.png", os.fsencode(root / "cat") + b"/\xff.png")
    os.truncate(os.fsencode(root / "cat") + b"/\xff.png", 40)
    report = report_of(root)
    assert not report.ok and "udcff" in report.to_json()


def test_extensions_count_in_any_case(tmp_path):
    root = folder(tmp_path, "a/1.JPEG", "a/2.Png", "b/3.BMP", "b/4.TIF")
    assert len(opened(root)) == 4


def test_extension_and_content_that_disagree_are_warned_about(tmp_path):
    root = folder(tmp_path, "a/1.png", "b/1.png")
    Image.new("RGB", (20, 20)).save(root / "a/2.png", "JPEG")
    for quick in (True, False):
        report = report_of(root, quick=quick)
        assert [f.place.path for f in report.warnings if f.code == "image-extension-mismatch"] == ["a/2.png"]
        assert report.ok
    assert len(list(opened(root))) == 3


def test_heic_avif_and_gif_are_reported(tmp_path):
    root = folder(tmp_path, "a/1.png", "b/1.png")
    (root / "a/2.heic").write_bytes(b"\0\0\0\x1cftypheic" + bytes(40))
    (root / "a/3.avif").write_bytes(b"\0\0\0\x1cftypavif" + bytes(40))
    frames = [Image.new("RGB", (12, 12), (i * 90, 0, 0)) for i in range(3)]
    frames[0].save(root / "b/4.gif", save_all=True, append_images=frames[1:])
    report = report_of(root)
    assert report.counts["image-skipped"] == 3
    assert len(opened(root)) == 2
    assert any("3 files" in line["reason"] for line in opened(root).record.lines)


def test_an_animated_gif_is_either_read_or_passed_over(tmp_path):
    root = folder(tmp_path, "a/1.png", "b/1.png")
    frames = [Image.new("RGB", (12, 12), (i * 90, 0, 0)) for i in range(3)]
    for name in ("b/2.gif", "b/3.png"):  # the second is read, for its name promises an image that we read
        frames[0].save(root / name, "GIF", save_all=True, append_images=frames[1:])
    found = {(f.code, f.place.path): f.message for f in report_of(root).findings if f.code != "duplicate"}
    assert set(found) == {
        ("image-skipped", "b/2.gif"),
        ("image-animated", "b/3.png"),
        ("image-extension-mismatch", "b/3.png"),
    }
    assert "3 frames" in found["image-skipped", "b/2.gif"] and "first is used" in found["image-animated", "b/3.png"]
    assert [path for path, _ in labels(opened(root))] == ["a/1.png", "b/1.png", "b/3.png"]


def test_a_file_that_the_system_refuses_is_a_matter_of_permissions(tmp_path, monkeypatch):
    root = folder(tmp_path, "a/1.png", "b/1.png")
    refuse(monkeypatch, root / "a/1.png")
    for quick in (True, False):
        (error,) = report_of(root, quick=quick).errors
        assert (error.code, error.place.path) == ("image-denied", "a/1.png")
        assert "permissions" in error.fix and "restore" not in error.fix
    with pytest.raises(DataError) as caught:
        opened(root).get(0)
    assert caught.value.code == "image-denied"
    assert len(opened(root, {"image-denied": "drop"})) == 1


def test_fix_leaves_out_what_the_system_refuses(tmp_path, monkeypatch):
    root, out = folder(tmp_path / "data", "a/1.png", "a/2.png", "b/1.png"), tmp_path / "out"
    (root / "a/notes.txt").write_text("secret")
    out.mkdir()
    refuse(monkeypatch, root / "a/1.png", root / "a/notes.txt")
    changes = fix(root, out, task=None, signature=None)
    assert [line.partition(":")[0] for line in changes] == ["left out a/1.png", "left out a/notes.txt"]


def refuse(monkeypatch, *paths):
    """Permissions that hold for root, too."""
    for module, name in ((os, "open"), (builtins, "open")):
        real = getattr(module, name)

        def guarded(file, *args, real=real, **options):
            if not isinstance(file, int) and os.fspath(file) in map(str, paths):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(file))
            return real(file, *args, **options)

        monkeypatch.setattr(module, name, guarded)


def test_an_image_without_suffix_and_a_text_are_told_apart(tmp_path):
    root = folder(tmp_path, "a/1.png", "b/1.png")
    (root / "a/2").write_bytes((root / "a/1.png").read_bytes())
    (root / "a/notes.txt").write_text("hello")
    report = report_of(root)
    assert (report.counts["image-skipped"], report.counts["file-ignored"]) == (1, 1)


def test_a_multi_page_tiff_is_reported(tmp_path):
    root = folder(tmp_path, "a/1.png", "b/1.png")
    pages = [Image.new("L", (12, 12), i) for i in range(3)]
    pages[0].save(root / "a/2.tif", save_all=True, append_images=pages[1:])
    assert report_of(root).counts["image-multipage"] == 1


def test_tiny_images_are_warned_about(tmp_path):
    root = folder(tmp_path, "a/1.png", "b/1.png")
    picture(root / "a/2.png", size=(9, 50))
    assert [f.place.path for f in report_of(root).warnings] == ["a/2.png"]


def truncated(path):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path, quality=90)
    os.truncate(path, path.stat().st_size * 2 // 3)


def spoil(root):
    """Five broken files of five kinds beside two good ones."""
    folder(root, "a/1.png", "a/3.png", "b/1.png", "b/2.jpg")
    (root / "a/0.jpg").touch()
    (root / "a/2.jpg").write_text("<html>not found</html>")
    truncated(root / "b/0.jpg")
    (root / "b/3.jpg").write_bytes(b"\0\0\0\x1cftypheic" + bytes(40))
    header = b"IHDR" + (100_000).to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0"
    pixels = b"\0\0\0\x04IDATabcd" + zlib.crc32(b"IDATabcd").to_bytes(4, "big")
    start = b"\x89PNG\r\n\x1a\n\0\0\0\r"
    (root / "b/4.png").write_bytes(start + header + zlib.crc32(header).to_bytes(4, "big") + pixels)
    return root


def test_check_finds_all_broken_files_not_the_first(tmp_path):
    for workers in (1, 2):
        report = report_of(spoil(tmp_path), workers=workers)
        assert {(f.place.path, f.code) for f in report.errors} == {
            ("a/0.jpg", "image-empty"),
            ("a/2.jpg", "image-unreadable"),
            ("b/0.jpg", "image-truncated"),
            ("b/3.jpg", "image-kind-unsupported"),
            ("b/4.png", "image-bomb"),
        }


def test_a_truncated_jpeg_that_verify_passes_is_found_by_the_full_check_only(tmp_path):
    root = folder(tmp_path, "a/1.png", "b/1.png")
    truncated(root / "a/2.jpg")
    with Image.open(root / "a/2.jpg") as image:
        image.verify()
    assert report_of(root, quick=True).ok
    assert [f.code for f in report_of(root).errors] == ["image-truncated"]


def test_a_quick_check_reads_sizes_and_first_bytes(tmp_path):
    report = report_of(spoil(tmp_path), quick=True)
    assert codes(report) >= {"image-empty", "image-unreadable", "image-kind-unsupported"}


def test_reading_raises_at_a_broken_image_unless_told_to_drop_it(tmp_path):
    root = spoil(tmp_path)
    with pytest.raises(DataError) as caught:
        list(opened(root))
    assert caught.value.code == "image-empty" and "a/0.jpg" in caught.value.where
    broken = ["image-empty", "image-unreadable", "image-truncated", "image-kind-unsupported", "image-bomb"]
    for workers in (1, 2):
        source = opened(root, dict.fromkeys(broken, "drop"), workers=workers)
        assert [path for path, _ in labels(source)] == ["a/1.png", "a/3.png", "b/1.png", "b/2.jpg"]
        assert len(list(source)) == 4
        assert sorted(line["what"] for line in source.record.lines) == sorted(broken)


@pytest.mark.parametrize("first", ["len", "get", "place", "iter"])
def test_length_order_and_random_access_agree_when_files_are_dropped(tmp_path, first):
    kept = ["a/1.png", "a/3.png", "b/1.png", "b/2.jpg"]
    broken = ["image-empty", "image-unreadable", "image-truncated", "image-kind-unsupported", "image-bomb"]
    source = opened(spoil(tmp_path), dict.fromkeys(broken, "drop"))
    ask = {
        "len": lambda: len(source),
        "get": lambda: source.get(3),
        "place": lambda: source.place(0),
        "iter": lambda: next(iter(source)),
    }
    ask[first]()
    for _ in (1, 2):
        assert [(s.place.path, s.place.index) for s in source] == [(name, i) for i, name in enumerate(kept)]
        assert len(source) == len(source.facts["classes"]) + 2 == 4
        assert [source.get(i).place for i in range(4)] == [source.place(i) for i in range(4)]
    assert [source.place(i).path for i in range(4)] == kept
    assert sorted(line["what"] for line in source.record.lines) == sorted(broken)


def test_a_fault_that_is_to_be_raised_is_raised_when_it_is_read_not_when_it_is_counted(tmp_path):
    source = opened(spoil(tmp_path), {"image-empty": "drop"})
    assert len(source) == 8 and source.get(0).place.path == "a/1.png"
    with pytest.raises(DataError) as caught:
        source.get(1)
    assert "a/2.jpg" in caught.value.where and "policy={'image-unreadable': 'drop'}" in caught.value.try_
    with pytest.raises(DataError):
        list(source)


def test_a_file_that_breaks_after_it_was_counted_shifts_nothing(tmp_path):
    source = opened(folder(tmp_path, "a/1.png", "b/1.png"), {"image-empty": "drop"})
    assert len(source) == 2
    (tmp_path / "a/1.png").write_bytes(b"")
    for read_it in (lambda: source.get(0), lambda: list(source)):
        with pytest.raises(DataError, match="empty"):
            read_it()
    assert source.get(1).place.path == "b/1.png"


def test_without_a_drop_policy_the_length_costs_no_decoding(tmp_path):
    assert len(opened(spoil(tmp_path))) == 9


def test_the_same_image_in_two_splits_or_classes_is_leakage(split):
    (split / "val/cat/9.png").write_bytes((split / "train/cat/1.png").read_bytes())
    (split / "train/dog/9.png").write_bytes((split / "train/cat/2.png").read_bytes())
    (split / "test/dog/9.png").write_bytes((split / "test/dog/1.png").read_bytes())
    report = report_of(split)
    assert [(f.place.path) for f in report.warnings if f.code == "duplicate-across-splits"] == ["val/cat/9.png"]
    assert [(f.place.path) for f in report.warnings if f.code == "duplicate-across-classes"] == ["train/dog/9.png"]
    assert report.counts["duplicate"] == 1
    assert "train/cat/1.png" in report.warnings[0].message


# Options, detection, contract


def test_transparency_goes_onto_the_chosen_background(tmp_path):
    root = folder(tmp_path, "a/1.png", "b/1.png")
    Image.new("RGBA", (12, 12), (255, 0, 0, 0)).save(root / "a/0.png")
    assert opened(root, background=[0, 0, 9]).get(0)["image"][0, 0].tolist() == [0, 0, 9]
    for wrong in ([1, 2], [0, 0, 256], "red"):
        with pytest.raises(UsageError, match="background"):
            opened(root, background=wrong)


def test_another_task_is_an_error(tmp_path):
    root = folder(tmp_path, "a/1.png", "b/1.png")
    assert [f.code for f in report_of(root, task="detection").errors] == ["task-mismatch"]
    with pytest.raises(DataError):
        opened(root, task="detection")
    assert len(opened(root, task="image_classification")) == 2


def test_a_missing_folder_is_a_wrong_call(tmp_path):
    with pytest.raises(UsageError, match="not a folder"):
        opened(tmp_path / "nowhere")


def test_a_folder_without_images_is_an_error(tmp_path):
    (tmp_path / "a").mkdir()
    assert [f.code for f in report_of(tmp_path).errors] == ["no-images"]
    with pytest.raises(DataError):
        opened(tmp_path)


def test_detect_says_yes_to_classes_and_splits(tmp_path, split):
    assert detect(split).confidence >= 0.8
    assert detect(folder(tmp_path / "flat", "a/1.png", "b/x/1.jpg")).confidence >= 0.8
    assert detect(folder(tmp_path / "vague", "train/1.png", "test/1.png")) is not None


@pytest.mark.parametrize(
    "names",
    [
        ["images/1.png", "labels/1.txt"],
        ["images/train/1.png", "labels/train/1.txt"],
        ["train/images/1.png", "train/labels/1.txt", "val/images/1.png"],
        ["data.yaml", "train/1.png"],
        ["images/1.png"],
        ["a/1.npz", "b/2.npz"],
        ["train.jsonl"],
        ["a/1.txt"],
        ["1.png", "a.txt", "b.txt"],
        [],
    ],
)
def test_detect_says_no_to_other_layouts(tmp_path, names):
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(path) if path.suffix == ".png" else path.write_text("0 0.5 0.5 1 1")
    assert detect(tmp_path) is None


def test_detect_says_no_to_everything_else(tmp_path):
    for source in (None, [1], "text", 3.0, picture(tmp_path / "a.png"), tmp_path / "none"):
        assert detect(source) is None


def test_importing_the_member_imports_no_pillow():
    code = "import sys, fewbit.data.formats.image_folder; print({'PIL', 'torch'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_reading_and_checking_never_write_into_the_dataset(split):
    before = snapshot(split)
    report_of(split)
    list(opened(split, workers=2))
    assert snapshot(split) == before


def snapshot(root):
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(root.rglob("*"))
    }


# Repair


def test_fix_copies_a_clean_dataset_unchanged(split, tmp_path):
    (split / "README.md").write_text("cats and dogs")
    (split / "train/empty").mkdir()
    out = tmp_path / "out"
    out.mkdir()
    assert fix(split, out, task=None, signature=None) == []
    assert snapshot(out) == snapshot(split)


def test_fix_takes_along_no_class_that_it_has_emptied(tmp_path):
    root, out = tmp_path / "data", tmp_path / "out"
    out.mkdir()
    folder(root, *(f"train/{name}/{i}.png" for name in ("one", "seven", "two") for i in (1, 2)))
    folder(root, "val/one/1.png", "val/sevn/1.png", "val/two/1.png")
    (root / "val/sevn/notes.txt").write_text("a misspelt folder")
    (root / "val/two/1.png").write_bytes(b"")
    (root / "train/six").mkdir()
    changes = fix(root, out, task=None, signature=None)
    assert opened(out).facts["classes"] == ["one", "seven", "six", "two"]  # six was empty before: it keeps its index
    assert not (out / "val/sevn").exists() and not (out / "val/two").exists()
    assert [line for line in changes if "the class" in line and "index" in line] == [
        "left out the class 'sevn': the index of every class sorted after it is one less"
    ]
    assert report_of(out).ok


def test_fix_leaves_out_what_cannot_be_used(tmp_path):
    root, out = tmp_path / "data", tmp_path / "out"
    out.mkdir()
    folder(
        root,
        "train/a/1.png",
        "train/c/1.png",
        "train/d/0.png",
        "val/a/9.png",
        "val/b/1.png",
        "val/c/1.png",
        "x.txt.png",
    )
    (root / "train/d/0.png").write_bytes(b"")  # now d is untrained, too
    picture(root / "val/d/1.png")
    (root / "val/a/1.png").write_bytes((root / "train/a/1.png").read_bytes())
    Image.new("RGB", (20, 20)).save(root / "train/c/2.png", "JPEG")
    Image.new("RGB", (20, 20), (9, 9, 9)).save(root / "train/c/2.jpg", "JPEG")
    (root / "val/c/gone.png").symlink_to("nowhere")
    before = snapshot(root)
    changes = fix(root, out, task=None, signature=None)
    assert snapshot(root) == before
    assert not report_of(out).errors
    assert "class-unseen-in-train" not in codes(report_of(out))
    assert opened(out).facts["classes"] == ["a", "c"]
    told = "\n".join(changes)
    for name in ("train/d/0.png", "val/b/1.png", "val/d/1.png", "val/a/1.png", "val/c/gone.png", "2-2.jpg"):
        assert name in told
    assert (out / "train/c/2.jpg").read_bytes() == (root / "train/c/2.jpg").read_bytes()
    assert (out / "train/c/2-2.jpg").read_bytes() == (root / "train/c/2.png").read_bytes()


def test_fix_asks_when_the_layout_is_ambiguous(tmp_path):
    root = folder(tmp_path / "data", "train/1.png", "test/1.png")
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(DataError):
        fix(root, out, task=None, signature=None)
    assert fix(root, out, task=None, signature=None, splits=False) == []


def test_fix_of_every_kind_of_broken_file_leaves_no_error(tmp_path):
    root, out = spoil(tmp_path / "data"), tmp_path / "out"
    out.mkdir()
    assert len(fix(root, out, task=None, signature=None)) == 5
    assert report_of(out).ok


# Properties

words = st.sampled_from(["train", "val", "test", "Train", "cat", "Cat", "été", "été", "1", "10", ".x", "a b", "images"])


@given(st.lists(st.lists(words, min_size=1, max_size=4).map("/".join), max_size=8, unique=True))
@settings(deadline=None, max_examples=60)
def test_any_tree_is_checked_read_or_refused(tmp_path_factory, names):
    root = tmp_path_factory.mktemp("tree")
    for number, name in enumerate(names):
        picture(root / name / f"{number}.png")
    detect(root)
    for splits in (None, True, False):
        report = report_of(root, quick=True, splits=splits)
        try:
            source = opened(root, splits=splits)
        except DataError:
            assert not report.ok
            continue
        classes = source.facts["classes"]
        assert classes == sorted(classes)
        for index in range(len(source)):
            sample = source.get(index)
            inner = sample.place.path.split("/")
            assert classes[sample["label"]] in inner
        assert sum(source.facts["splits"].values()) == len(source)


def test_mutated_datasets_end_in_samples_or_typed_faults(tmp_path):
    random = np.random.default_rng(3)
    root = folder(tmp_path, "a/1.png", "a/2.jpg", "a/3.webp", "b/1.tif", "b/2.bmp", "b/3.ppm", "b/4.gif")
    originals = {path: path.read_bytes() for path in sorted(root.rglob("*.*"))}
    targets = list(originals)
    for round_ in range(250):
        path = targets[round_ % len(targets)]
        path.write_bytes(mutated(originals[path], random))
        report = DataReport(str(root), codes=CODES)
        check(root, report, task=None, signature=None, quick=bool(round_ % 2))
        try:
            assert all(sample["image"].ndim == 3 for sample in opened(root))
        except FewbitError as error:
            assert isinstance(error, DataError) and error.code in CODES
        path.write_bytes(originals[path])


def mutated(content, random):
    data = bytearray(content)
    for _ in range(int(random.integers(1, 4))):
        at, size = int(random.integers(len(data) + 1)), int(random.integers(1, 30))
        match random.integers(5):
            case 0 if at < len(data):
                data[at] ^= int(random.integers(1, 256))
            case 1:
                del data[at : at + size]
            case 2:
                data[at:at] = random.bytes(size)
            case 3:
                del data[at:]
            case _:
                data[at:at] = data[max(0, at - size) : at]
    return bytes(data)


def test_every_option_of_check_and_fix_is_one_of_read():
    def options(function):
        return set(inspect.signature(function).parameters) & {"splits", "classes", "background", "workers"}

    assert options(check) == options(fix) == options(read)
