# SPDX-License-Identifier: Apache-2.0
"""WebDataset shards: samples by stem, random access, and what can be wrong with them."""

import io
import pickle
import tarfile
import wave

import numpy as np
import pytest
from PIL import Image

from fewbit.data.dataset import Dataset
from fewbit.data.files import Folder
from fewbit.data.formats import webdataset
from fewbit.data.opening import open_source, scan_source
from fewbit.data.types import SampleError
from fewbit.errors import UsageError


def png(red):
    content = io.BytesIO()
    Image.new("RGB", (4, 3), (red, 0, 0)).save(content, "PNG")
    return content.getvalue()


def npy(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def wav():
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(np.arange(80, dtype="<i2").tobytes())
    return content.getvalue()


def shard(path, *members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def simple(start=0, count=3):
    return [
        member
        for number in range(start, start + count)
        for member in ((f"{number:04}.png", png(number)), (f"{number:04}.cls", str(number % 2).encode()))
    ]


def checked(path, on_error=None, depth="full", **options):
    return scan_source(str(path), data_format="webdataset", on_error=on_error, depth=depth, **options)


def test_a_folder_of_shards_in_natural_order(tmp_path):
    for number in (0, 2, 10):
        shard(tmp_path / f"s-{number}.tar", *simple(number * 10))
    source, report = open_source(str(tmp_path))
    assert report.data_format == "webdataset" and len(source) == 9
    assert [source[index]["image"][0, 0, 0] for index in range(9)] == [0, 1, 2, 20, 21, 22, 100, 101, 102]
    assert source[4]["label"] == 1 and source[4]["key"] == "0021"
    assert source.location(4).file == "s-2.tar!/0021"
    assert source.strata() == ["s-0.tar"] * 3 + ["s-2.tar"] * 3 + ["s-10.tar"] * 3
    assert not checked(tmp_path)[1].counts
    assert pickle.loads(pickle.dumps(source))[8]["image"][0, 0, 0] == 102


def test_one_tar_and_a_pattern_are_the_same_samples(tmp_path):
    for number in range(3):
        shard(tmp_path / "folder" / f"s-{number:03}.tar", *simple(number * 10))
    alone, report = open_source(str(tmp_path / "folder" / "s-001.tar"))
    assert report.data_format == "webdataset"
    assert [alone[index]["key"] for index in range(3)] == ["0010", "0011", "0012"]
    pattern, _ = open_source(str(tmp_path / "folder" / "s-{001..002}.tar"))
    assert len(pattern) == 6
    for index in range(3):
        np.testing.assert_array_equal(alone[index]["image"], pattern[index]["image"])
        assert alone[index]["label"] == pattern[index]["label"]


def test_every_known_suffix_is_decoded(tmp_path):
    shard(
        tmp_path / "s-0.tar",
        ("a/0.JPG", png(9)),
        ("a/0.cls", b" 7\n"),
        ("a/0.txt", "café".encode()),
        ("a/0.json", b'{"width": 4, "label": 99}'),
        ("a/0.npy", npy(np.arange(3))),
        ("a/0.seg.png", png(50)),
        ("a/0.emb.npy", npy(np.ones(2))),
        ("a/0.wav", wav()),
    )
    source, report = checked(tmp_path)
    sample = source[0]
    assert sample["key"] == "a/0" and sample["label"] == 7 and sample["text"] == "café" and sample["width"] == 4
    assert sample["image"].shape == (3, 4, 3) and sample["seg"][0, 0, 0] == 50
    assert sample["array"].tolist() == [0, 1, 2] and sample["emb"].tolist() == [1, 1]
    assert sample["audio"].dtype == np.float32 and len(sample["audio"]) == 80 and sample["sampling_rate"] == 8000
    assert not report.counts


def test_splits_of_names_and_folders(tmp_path):
    shard(tmp_path / "test-000.tar", *simple(0, 1))
    shard(tmp_path / "train-000.tar", *simple(10, 2))
    source, _ = open_source(str(tmp_path))
    assert source.facts["splits"] == {"train": 2, "test": 1} and source[0]["key"] == "0010"
    assert source.strata() == ["train", "train", "test"]
    assert len(open_source(str(tmp_path), split="test")[0]) == 1
    with pytest.raises(UsageError, match="no split"):
        open_source(str(tmp_path), split="val")


def test_incomplete_samples_and_unknown_suffixes(tmp_path):
    members = [member for member in simple(0, 20) if member[0] != "0007.cls"]
    shard(tmp_path / "s.tar", *members, ("0001.weights", b"?"), ("__index__.json", b"{}"))
    source, report = checked(tmp_path)
    assert report.counts == {"sample-incomplete": 1, "suffix-unknown": 1}
    assert report.warnings[0].location.file == "s.tar!/0007" and ".cls" in report.warnings[0].message
    assert len(source) == 20 and "label" not in source[7]
    assert len(checked(tmp_path, {"sample-incomplete": "drop"})[0]) == 19


def test_the_same_suffix_twice_is_an_error(tmp_path):
    shard(tmp_path / "s.tar", *simple(), ("0001.png", png(200)))
    source, report = checked(tmp_path)
    assert report.counts == {"key-duplicate": 1} and report.raising() and source[1]["image"][0, 0, 0] == 1
    assert len(checked(tmp_path, {"key-duplicate": "drop"})[0]) == 2
    shard(tmp_path / "t.tar", *simple())  # the same keys in another shard are other samples
    assert len(checked(tmp_path)[0]) == 6


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("0000.cls", b"cat", "bad-label"),
        ("0000.json", b'{"a":', "bad-json"),
        ("0000.txt", b"\xff\xfe", "bad-encoding"),
        ("0000.png", b"\x89PNG\r\n\x1a\n", None),
        ("0000.npy", b"\x93NUMPY\x01\x00", "array-header"),
    ],
)
def test_a_damaged_file_is_an_issue_at_its_member(tmp_path, name, content, code):
    shard(tmp_path / "s.tar", *[member for member in simple() if member[0] != name], (name, content))
    _, report = checked(tmp_path)
    (issue,) = [issue for issue in report.issues if issue.location.file == f"s.tar!/{name}"]
    assert issue.code.startswith("image-") if code is None else issue.code == code
    source, _ = checked(tmp_path, depth="index")
    with pytest.raises(SampleError):
        source[0]
    assert len(checked(tmp_path, "drop")[0]) == 2


def test_a_cut_shard_gives_what_is_complete(tmp_path):
    path = shard(tmp_path / "s.tar", *simple())
    path.write_bytes(path.read_bytes()[: 512 * 5 + 10])
    shard(tmp_path / "t.tar", *simple(10))
    (tmp_path / "u.tar").write_bytes(b"<html>")
    source, report = checked(tmp_path)
    assert report.counts["archive-broken"] == 2
    assert {issue.location.file for issue in report.errors} >= {"u.tar"}
    assert [source[index]["key"] for index in range(len(source))] == ["0000", "0010", "0011", "0012"]


def test_the_index_of_a_large_shard_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("FEWBIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(webdataset, "_CACHED_FROM", 0)
    shard(tmp_path / "data" / "s.tar", *simple())
    first, _ = checked(tmp_path / "data", depth="index")
    calls = []
    monkeypatch.setattr(webdataset, "tar_members", lambda *arguments: calls.append(arguments) or iter(()))
    second, _ = checked(tmp_path / "data", depth="index")
    assert not calls and len(second) == len(first) == 3 and second[2]["label"] == 0
    shard(tmp_path / "data" / "s.tar", *simple(0, 4))  # changed: indexed again
    checked(tmp_path / "data", depth="index")
    assert calls


def test_what_does_not_look_like_samples_is_not_claimed(tmp_path):
    shard(tmp_path / "a" / "classes.tar", ("cat/1.jpg", png(0)), ("dog/2.jpg", png(0)))
    assert open_source(str(tmp_path / "a" / "classes.tar"), data_format=None)[1].data_format != "webdataset"
    shard(tmp_path / "b" / "code.tar", ("main.c", b"x"), ("main.h", b"y"))
    assert webdataset.detect(Folder(tmp_path / "b")) is None


def test_a_dataset_over_shards_spreads_its_subset(tmp_path):
    for number in range(4):
        shard(tmp_path / f"s-{number}.tar", *simple(number * 100, 20))
    subset = Dataset(str(tmp_path)).subset(8)
    assert sorted(subset.location(index).file[:3] for index in range(8)) == sorted(["s-0", "s-1", "s-2", "s-3"] * 2)
