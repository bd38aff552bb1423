# SPDX-License-Identifier: Apache-2.0
import os
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.data.duplicates import duplicates
from fewbit.data.walk import CODES, natural, walk


def listed(root):
    problems = []
    names = [entry.name for entry in walk(root, lambda code, path, message: problems.append((code, path)))]
    return names, problems


def touch(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def test_files_come_sorted_with_posix_relative_names(tmp_path):
    touch(tmp_path, "b/2.png", "a/x.png", "b/10.png", "Z/1.png")
    assert listed(tmp_path) == (["Z/1.png", "a/x.png", "b/10.png", "b/2.png"], [])


def test_hidden_and_system_files_are_passed_over(tmp_path):
    touch(tmp_path, ".git/x", ".ipynb_checkpoints/a.png", "__MACOSX/a.png", "a/.DS_Store", "a/Thumbs.db", "a/._1.png")
    touch(tmp_path, "a/1.png")
    assert listed(tmp_path) == (["a/1.png"], [])


def test_names_are_nfc_whatever_the_file_system_holds(tmp_path):
    decomposed = unicodedata.normalize("NFD", "café.png")
    touch(tmp_path, decomposed)
    (entry,) = walk(tmp_path)
    assert entry.name == "café.png" and os.path.exists(entry.path)


def test_links_are_followed_and_cycles_are_not(tmp_path):
    touch(tmp_path, "a/1.png")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "b").symlink_to(tmp_path / "a", target_is_directory=True)
    names, problems = listed(tmp_path)
    assert names == ["a/1.png", "b/1.png"]
    assert problems == [("link-cycle", "a/up"), ("link-cycle", "b/up")]


def test_links_that_break_or_leave_the_tree_are_told(tmp_path):
    inside = tmp_path / "data"
    touch(tmp_path, "secret/1.png", "data/a/1.png")
    (inside / "gone").symlink_to(tmp_path / "nowhere")
    (inside / "out").symlink_to(tmp_path / "secret")
    names, problems = listed(inside)
    assert names == ["a/1.png", "out/1.png"]
    assert problems == [("link-broken", "gone"), ("link-outside", "out")]


def test_a_pipe_is_passed_over_and_never_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    assert listed(tmp_path) == ([], [("not-a-file", "pipe.png")])
    assert {"not-a-file", "link-cycle"} <= set(CODES)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_folder_without_permission_is_a_problem(tmp_path):
    touch(tmp_path, "closed/1.png")
    (tmp_path / "closed").chmod(0)
    try:
        assert listed(tmp_path) == ([], [("unreadable", "closed")])
    finally:
        (tmp_path / "closed").chmod(0o755)


@given(st.lists(st.tuples(st.sampled_from(["input", "a", ""]), st.integers(0, 10**6)), unique=True))
def test_natural_order_is_the_order_of_the_numbers(pairs):
    names = [f"{word}{number}" for word, number in pairs]
    expected = [f"{word}{number}" for word, number in sorted(pairs, key=lambda p: (p[0] != "", p[0], p[1]))]
    assert sorted(names, key=natural) == expected


def test_duplicates_are_files_with_the_same_bytes(tmp_path):
    touch(tmp_path, "a", "b", "c")
    (tmp_path / "d").write_text("a")
    (tmp_path / "empty1").touch()
    (tmp_path / "empty2").touch()
    assert [[e.name for e in group] for group in duplicates(walk(tmp_path))] == [["a", "d"]]
