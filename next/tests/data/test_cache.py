# SPDX-License-Identifier: Apache-2.0
import errno
import os

import pytest

from fewbit.data import cache
from fewbit.data.cache import cache_folder, cached_file, trim
from fewbit.errors import ResourceError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEWBIT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def content(data):
    return lambda stream: stream.write(data)


def never(stream):
    raise AssertionError("written a second time")


def test_the_folder_is_the_environments_or_the_users(monkeypatch, folder):
    assert cache_folder() == folder
    monkeypatch.delenv("FEWBIT_CACHE_DIR")
    assert cache_folder().parts[-2:] == (".cache", "fewbit")


def test_a_file_is_written_once_per_key(folder):
    path = cached_file("a", content(b"1"))
    assert path.read_bytes() == b"1" and folder in path.parents
    assert cached_file("a", never) == path
    assert cached_file("b", content(b"2")) != path


def test_a_failure_leaves_nothing_behind(folder):
    def fail(stream):
        stream.write(b"half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        cached_file("a", fail)
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    assert cached_file("a", content(b"whole")).read_bytes() == b"whole"


def test_the_least_recently_used_files_make_room(monkeypatch):
    monkeypatch.setattr(cache, "MOST_BYTES", 2500)
    paths = [cached_file(str(number), content(b"x" * 1000)) for number in range(2)]
    os.utime(paths[0], (2, 2))
    os.utime(paths[1], (1, 1))
    newest = cached_file("2", content(b"x" * 1000))
    assert [path.exists() for path in (*paths, newest)] == [True, False, True]


def test_use_counts_as_use():
    paths = [cached_file(str(number), content(b"x" * 1000)) for number in range(2)]
    for path in paths:
        os.utime(path, (1, 1))
    cached_file("0", never)
    trim(cache_folder(), max_bytes=1000)
    assert [path.exists() for path in paths] == [True, False]


def test_the_new_file_stays_even_if_it_is_larger_than_the_cache(monkeypatch):
    monkeypatch.setattr(cache, "MOST_BYTES", 10)
    assert cached_file("a", content(b"x" * 1000)).exists()


def test_what_a_dead_process_left_is_swept(folder):
    path = cached_file("a", content(b"1"))
    old, new = path.with_name("x.tmp"), path.with_name("y.tmp")
    old.write_bytes(b"1")
    new.write_bytes(b"1")
    os.utime(old, (1, 1))
    trim(folder)
    assert not old.exists() and new.exists() and path.exists()


def test_without_a_cache_a_temporary_folder_serves(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEWBIT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    path = cached_file("a", content(b"1"))
    assert path.read_bytes() == b"1" and cached_file("a", never) == path


def test_a_full_disk_is_named():
    def fill(stream):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ResourceError, match="FEWBIT_CACHE_DIR") as caught:
        cached_file("a", fill)
    assert caught.value.code == "disk-full"
