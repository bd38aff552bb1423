# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest

from fewbit.data import cache


def test_entries_follow_the_content_not_the_path(tmp_path):
    (tmp_path / "a").write_bytes(b"same")
    (tmp_path / "b").write_bytes(b"same")
    (tmp_path / "c").write_bytes(b"other")
    a, b, c = (cache.entry("rows", tmp_path / name) for name in "abc")
    assert a == b != c
    assert cache.entry("rows", tmp_path / "a", "delimiter=;") != a


def test_a_changed_file_has_another_entry(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"1111")
    before = cache.entry("rows", file)
    file.write_bytes(b"2222")
    os.utime(file, ns=(5, 5))
    assert cache.entry("rows", file) != before


def test_a_file_of_the_same_size_and_time_is_not_read_again(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"1111")
    before, stat = cache.digest(file), file.stat()
    file.write_bytes(b"2222")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert cache.digest(file) == before


def test_a_failed_write_leaves_nothing(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"1")
    target = cache.entry("rows", file)

    def fail(temporary: Path) -> None:
        temporary.write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        cache.keep(target, fail)
    assert list(target.parent.iterdir()) == []


def test_the_cache_lies_where_the_user_says(tmp_path, monkeypatch):
    monkeypatch.setenv("FEWBIT_CACHE", str(tmp_path / "here"))
    assert cache.folder() == tmp_path / "here"
    monkeypatch.delenv("FEWBIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.folder() == tmp_path / "xdg" / "fewbit"
