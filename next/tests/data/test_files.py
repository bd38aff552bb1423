# SPDX-License-Identifier: Apache-2.0
"""Folders as `Files`, names of splits, and formats that are recognized but not read."""

import os
import pickle
import re
import unicodedata
from pathlib import Path

import pytest

from fewbit import registry
from fewbit.data.files import DEEPEST, Folder, walk
from fewbit.data.recognized import recognized
from fewbit.data.splits import split_of_file, split_of_folder
from fewbit.data.types import DataReport, SampleError
from fewbit.errors import DataError, escape, render


def listed(root):
    report = DataReport()
    names = list(Folder(root, report=report).names())
    return names, [(issue.code, issue.location.file) for issue in report.issues]


def touch(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def test_names_are_sorted_with_slashes_files_before_folders(tmp_path):
    touch(tmp_path, "b/2.png", "a/x.png", "b/10.png", "Z/1.png", "zz.png", "b/c/0.png")
    assert listed(tmp_path) == (["zz.png", "Z/1.png", "a/x.png", "b/10.png", "b/2.png", "b/c/0.png"], [])


def test_hidden_and_system_files_are_passed_over(tmp_path):
    touch(tmp_path, ".git/x", ".ipynb_checkpoints/a.png", "__MACOSX/a.png", "a/.DS_Store", "a/Thumbs.db", "a/._1.png")
    touch(tmp_path, "a/1.png", "@eaDir/x", "$RECYCLE.BIN/y", "desktop.ini")
    assert listed(tmp_path) == (["a/1.png"], [])


def test_names_sort_by_their_composed_form_and_stay_as_they_are(tmp_path):
    decomposed = unicodedata.normalize("NFD", "é.png")
    touch(tmp_path, decomposed, "f.png", "z.png")
    names, _ = listed(tmp_path)
    assert names == ["f.png", "z.png", decomposed]  # é is behind z; its decomposed spelling would sort before f
    assert Folder(tmp_path).read(decomposed, 99)


def test_links_are_followed_and_cycles_are_not(tmp_path):
    touch(tmp_path, "a/1.png")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "b").symlink_to(tmp_path / "a", target_is_directory=True)
    assert listed(tmp_path) == (["a/1.png", "b/1.png"], [("link-cycle", "a/up"), ("link-cycle", "b/up")])


def test_links_that_break_leave_or_lead_into_the_system_are_reported(tmp_path):
    touch(tmp_path, "secret/1.png", "data/a/1.png")
    (tmp_path / "data" / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "data" / "out").symlink_to(tmp_path / "secret")
    (tmp_path / "data" / "system").symlink_to("/proc/self")
    names, issues = listed(tmp_path / "data")
    assert names == ["a/1.png", "out/1.png"]
    assert issues == [("link-broken", "gone"), ("link-outside", "out"), ("special-file", "system")]


def test_a_pipe_is_reported_and_never_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    assert listed(tmp_path) == ([], [("special-file", "pipe.png")])
    with pytest.raises(SampleError) as caught:
        Folder(tmp_path).open("pipe.png")
    assert caught.value.code == "special-file"
    with pytest.raises(SampleError):
        Folder(tmp_path / "pipe.png").read("pipe.png", 1)


def test_folders_beyond_the_limit_are_not_entered(tmp_path):
    folder = tmp_path
    for _ in range(DEEPEST + 2):
        folder = folder / "d"
        try:
            folder.mkdir()
        except OSError:
            pytest.skip("the file system is not that deep")
    (folder / "1.png").touch()
    assert listed(tmp_path)[1][0][0] == "folder-too-deep"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_folder_without_permission_is_an_issue(tmp_path):
    touch(tmp_path, "closed/1.png")
    (tmp_path / "closed").chmod(0)
    try:
        assert listed(tmp_path) == ([], [("file-unreadable", "closed")])
    finally:
        (tmp_path / "closed").chmod(0o755)


def test_a_name_that_is_not_utf8_survives_and_is_shown_harmlessly(tmp_path):
    with open(os.fsencode(tmp_path) + b"/\xff\x1b[31m.png", "wb") as file:
        file.write(b"x")
    (name,) = Folder(tmp_path).names()
    assert Folder(tmp_path).read(name, 9) == b"x"
    assert escape(name).encode("utf-8") == rb"\udcff\x1b[31m.png"


def test_one_file_is_a_folder_of_one(tmp_path):
    touch(tmp_path, "a.csv", "b.csv")
    files = Folder(tmp_path / "a.csv")
    assert list(files.names()) == ["a.csv"] and files.read("a.csv", 3) == b"a.c" and files.size("a.csv") == 5
    assert files.path("a.csv") == str(tmp_path / "a.csv")
    assert list(pickle.loads(pickle.dumps(files)).names()) == ["a.csv"]


def test_the_fingerprint_changes_with_the_content(tmp_path):
    touch(tmp_path, "a.csv")
    before = Folder(tmp_path).fingerprint("a.csv")
    assert Folder(tmp_path).fingerprint("a.csv") == before
    (tmp_path / "a.csv").write_text("other")
    os.utime(tmp_path / "a.csv", ns=(1, 1))
    assert Folder(tmp_path).fingerprint("a.csv") != before


def test_a_missing_file_is_a_typed_error(tmp_path):
    for call in (Folder(tmp_path).open, Folder(tmp_path).size, lambda name: Folder(tmp_path).read(name, 1)):
        for name in ("none", "a\0b"):
            with pytest.raises(SampleError) as caught:
                call(name)
            assert caught.value.code == "file-unreadable"


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train", "train"),
        ("Validation", "val"),
        ("val2017", "val"),
        ("testing", "test"),
        ("latest", None),
        ("dev", None),
    ],
)
def test_folders_named_after_splits(name, split):
    assert split_of_folder(name) == split


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.csv", "train"),
        ("dev-00001.jsonl", "val"),
        ("contest.csv", None),
        ("latest.csv", None),
        ("training-notes.txt", None),
        ("train_test.csv", None),
    ],
)
def test_files_named_after_splits(name, split):
    assert split_of_file(name) == split


@pytest.mark.parametrize(
    ("name", "content", "title"),
    [
        ("train-00000-of-00010.tfrecord", b"", "TFRecord"),
        ("a.tfrecord-00000-of-00010", b"", "TFRecord"),
        ("data.h5", b"", "HDF5"),
        ("unnamed", b"\x89HDF\r\n\x1a\n", "HDF5"),
        ("data.mat", b"", "MATLAB"),
        ("train-images-idx3-ubyte.gz", b"", "IDX"),
        ("clip.MP4", b"", "video"),
        ("unnamed", b"\0\0\0 ftypisom", "video"),
        ("weights.pt", b"", "PyTorch"),
        ("data.pkl", b"", "pickle"),
        ("data_batch_1", b"", "pickle"),
        ("data.7z", b"", "7z"),
        ("unnamed", b"Rar!\x1a\x07\x01", "RAR"),
        ("data.tar.xz", b"", "compressed tar"),
        ("data.mdb", b"", "LMDB"),
        ("model.onnx", b"", "model"),
    ],
)
def test_known_formats_are_answered_with_what_to_do(tmp_path, name, content, title):
    (tmp_path / name).write_bytes(content)
    answer = recognized(Folder(tmp_path))
    assert answer["code"] == "format-unsupported" and title in answer["what"] and answer["where"] == name
    error = DataError(answer.pop("what"), **answer)
    assert "try:" in error.text("cli") and "{" not in render(error.hint, "cli").replace("**{", "")


def test_nothing_known_is_nothing_recognized(tmp_path):
    assert recognized(Folder(tmp_path)) is None
    touch(tmp_path, "a.xyz", "b")
    os.mkfifo(tmp_path / "pipe")
    assert recognized(Folder(tmp_path)) is None
    touch(tmp_path, "one.pkl", *(f"{number}.foo" for number in range(20)))
    assert recognized(Folder(tmp_path)) is None  # one among many says nothing about the rest


def test_folders_are_listed_also_empty_ones(tmp_path):
    touch(tmp_path, "a/b/1.png", "top.png", ".git/x")
    (tmp_path / "empty" / "deep").mkdir(parents=True)
    assert list(Folder(tmp_path).folders()) == ["a", "empty", "a/b", "empty/deep"]
    assert list(Folder(tmp_path / "top.png").folders()) == []


def test_every_data_option_is_documented_with_its_formats():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    documented = set()
    for options, formats in re.findall(r"^\| ((?:`\w+` ?)+) \| ([a-z_ ]+) \| ", page, re.MULTILINE):
        documented |= {(option, name) for option in re.findall(r"\w+", options) for name in formats.split()}
    formats = registry.members("data_formats").values()
    assert {(option.name, format.name) for format in formats for option in format.options} <= documented


def test_folders_that_link_to_each_other_are_listed_a_bounded_number_of_times(tmp_path, monkeypatch):
    monkeypatch.setattr("fewbit.data.files._MOST_REPEATS", 20)
    for name in "abcdefgh":
        (tmp_path / name).mkdir()
        for other in set("abcdefgh") - {name}:
            (tmp_path / name / other).symlink_to(tmp_path / other)
    report, folders = DataReport(), []
    assert list(walk(tmp_path, report, folders)) == []
    assert len(folders) == 8 + 20 and report.counts["link-cycle"]
