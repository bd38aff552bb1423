# SPDX-License-Identifier: Apache-2.0
import pytest

import fewbit
from fewbit.errors import DataError, UsageError


def test_a_path_that_is_not_there_says_what_is(tmp_path):
    (tmp_path / "pictures").mkdir()
    with pytest.raises(UsageError, match="there is no file or folder") as caught:
        fewbit.open_dataset(tmp_path / "pictrues")
    assert "pictures" in caught.value.expected
    assert caught.value.try_ == f"did you mean {str(tmp_path / 'pictures')!r}?"


def test_a_folder_of_nothing_known_says_what_was_seen(tmp_path):
    for name in ("a.xyz", "b.xyz", "c.doc"):
        (tmp_path / name).write_text("x")
    with pytest.raises(DataError, match=r"2 \.xyz, 1 \.doc") as caught:
        fewbit.open_dataset(tmp_path)
    assert caught.value.code == "format-unknown" and "image_folder" in caught.value.expected


def test_an_empty_folder_is_no_dataset(tmp_path):
    with pytest.raises(DataError, match="it holds nothing"):
        fewbit.open_dataset(tmp_path)


def test_an_unknown_option_is_refused_with_the_near_one(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nx,1\n")
    with pytest.raises(UsageError, match="no option 'delimeter'") as caught:
        fewbit.open_dataset(tmp_path / "a.csv", delimeter=";")
    assert "did you mean 'delimiter'" in caught.value.expected


def test_an_unknown_format_is_refused_with_the_near_one(tmp_path):
    with pytest.raises(UsageError, match="no member 'npzz'") as caught:
        fewbit.open_dataset(tmp_path, format="npzz")
    assert "did you mean 'npz'" in caught.value.expected


def test_a_dataset_takes_a_path_and_a_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    assert fewbit.Dataset("~/a.jsonl")[0] == {"x": 1}


def test_a_pipe_or_a_device_is_refused_and_never_opened(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/null"):
        with pytest.raises(UsageError, match="a pipe, a socket or a device"):
            fewbit.check_dataset(path)
