# SPDX-License-Identifier: Apache-2.0
"""Zip and tar archives as `Files`: the same names and bytes as the folder, and only typed issues for hostile ones."""

import gzip
import io
import os
import pickle
import random
import shutil
import struct
import tarfile
import threading
import zipfile
import zlib

import pytest
import zstandard

from fewbit.data import members
from fewbit.data.archives import expand_braces, open_archive
from fewbit.data.files import Folder
from fewbit.data.members import ArchiveError, tar_members, zip_members
from fewbit.data.opening import choose_format, locate
from fewbit.data.types import DataReport, SampleError
from fewbit.errors import DataError, FewbitError

CONTENT = {
    "a.txt": b"first",
    "b/1.bin": bytes(range(256)) * 40,
    "b/c/2.bin": b"",
    "z.txt": b"last" * 9,
    "é.txt": b"accent",
}


@pytest.fixture
def folder(tmp_path):
    for name, content in CONTENT.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "data"


def zipped(path, content=CONTENT, method=zipfile.ZIP_DEFLATED, prefix=""):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in content.items():
            archive.writestr(prefix + name, data)
    return path


def tarred(path, content=CONTENT, prefix="", format=tarfile.GNU_FORMAT):
    with tarfile.open(path, "w", format=format) as archive:
        for name, data in content.items():
            info = tarfile.TarInfo(prefix + name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def opened(path):
    report = DataReport()
    return locate(str(path), report), report


def codes(path):
    return sorted(opened(path)[1].counts)


def error_code(path):
    with pytest.raises(DataError) as caught:
        opened(path)
    return caught.value.code


MAKERS = {
    "stored.zip": lambda path: zipped(path, method=zipfile.ZIP_STORED),
    "deflated.zip": zipped,
    "wrapped.zip": lambda path: zipped(path, prefix="dataset/v1/"),
    "gnu.tar": tarred,
    "pax.tar": lambda path: tarred(path, format=tarfile.PAX_FORMAT),
    "ustar.tar": lambda path: tarred(path, format=tarfile.USTAR_FORMAT),
    "dotted.tar": lambda path: tarred(path, prefix="./"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_an_archive_has_the_names_order_and_bytes_of_its_folder(tmp_path, folder, name):
    files, report = opened(MAKERS[name](tmp_path / name))
    unpacked = Folder(folder)
    assert list(files.names()) == list(unpacked.names())
    assert not report.counts
    for member in files.names():
        assert files.size(member) == unpacked.size(member)
        assert files.read(member, 3) == unpacked.read(member, 3)
        with files.open(member) as stream:
            assert stream.read() == CONTENT[member]
            stream.seek(-2, os.SEEK_END) if CONTENT[member] else None
            assert stream.read() == CONTENT[member][-2:]
        assert files.path(member) is None and files.fingerprint(member)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["data", name])  # nothing was extracted


@pytest.mark.parametrize("suffix", ["tar.gz", "tgz", "tar.zst"])
def test_compressed_tars_are_decompressed_once_into_the_cache(tmp_path, folder, monkeypatch, suffix):
    monkeypatch.setenv("FEWBIT_CACHE_DIR", str(tmp_path / "cache"))
    tar = tarred(tmp_path / "plain.tar").read_bytes()
    packed = zstandard.ZstdCompressor().compress(tar) if suffix.endswith("zst") else gzip.compress(tar)
    (tmp_path / f"a.{suffix}").write_bytes(packed)
    files, _ = opened(tmp_path / f"a.{suffix}")
    assert list(files.names()) == list(Folder(folder).names())
    assert files.location("a.txt") == f"a.{suffix}!/a.txt"
    opened(tmp_path / f"a.{suffix}")
    assert sum(path.is_file() for path in (tmp_path / "cache").rglob("*")) == 1


def test_hidden_and_system_files_are_not_members(tmp_path):
    names = [".git/x", "a/.DS_Store", "__MACOSX/a/1.png", "a/Thumbs.db", "a/1.png", "b/1.png"]
    files, _ = opened(zipped(tmp_path / "a.zip", dict.fromkeys(names, b"x")))
    assert list(files.names()) == ["a/1.png", "b/1.png"]


def test_one_folder_around_everything_is_unwrapped_unless_it_means_something(tmp_path):
    cases = {"data/x/": ["1", "b/2"], "data/train/": ["train/1", "train/b/2"], "images/": ["images/1", "images/b/2"]}
    for prefix, names in cases.items():
        files, _ = opened(zipped(tmp_path / "a.zip", {"1": b"x", "b/2": b"y"}, prefix=prefix))
        assert list(files.names()) == names
    files, _ = opened(zipped(tmp_path / "a.zip", {"1": b"x"}, prefix="data/"))
    assert files.location("1") == "a.zip!/data/1"  # locations show where it really is


def test_archives_can_be_pickled_and_used_by_threads_and_forks(tmp_path):
    content = {f"{number}.bin": bytes([number]) * 50_000 for number in range(20)}
    for files in (
        opened(zipped(tmp_path / "a.zip", content))[0],
        opened(tarred(tmp_path / "a.tar", content))[0],
    ):
        copy = pickle.loads(pickle.dumps(files))
        wrong = []

        def read(start, copy=copy, wrong=wrong):
            for step in range(40):
                name = f"{(start + step * 7) % 20}.bin"
                with copy.open(name) as stream:
                    if stream.read() != content[name]:
                        wrong.append(name)

        threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_a_fork_does_not_share_the_position(tmp_path):
    files, _ = opened(tarred(tmp_path / "a.tar", {"a.bin": b"a" * 5000, "b.bin": b"b" * 5000}))
    assert files.read("a.bin", 10) == b"a" * 10
    parent = files._handle._stream
    files._handle._process = -1  # as a child process finds it
    assert files.read("b.bin", 10) == b"b" * 10
    assert files._handle._stream is not parent


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_large_members_are_seekable_streams(tmp_path, method, monkeypatch):
    monkeypatch.setattr("fewbit.data.archives._IN_MEMORY_BYTES", 0)
    monkeypatch.setattr("fewbit.data.streams._PIECE", 1 << 12)
    monkeypatch.setattr("fewbit.data.streams._CHUNK", 1 << 10)
    content = random.Random(0).randbytes(50_000) + b"0" * 400_000 + random.Random(1).randbytes(50_000)
    files, _ = opened(zipped(tmp_path / "a.zip", {"x.bin": content}, method))
    chance = random.Random(2)
    with files.open("x.bin") as stream:
        assert stream.read() == content
        for _ in range(200):
            start, count = chance.randrange(len(content)), chance.randrange(1, 30_000)
            stream.seek(start)
            assert stream.read(count) == content[start : start + count]


def test_a_changed_byte_fails_the_checksum(tmp_path, monkeypatch):
    for method, limit in ((zipfile.ZIP_STORED, 1 << 20), (zipfile.ZIP_STORED, 0), (zipfile.ZIP_DEFLATED, 0)):
        monkeypatch.setattr("fewbit.data.archives._IN_MEMORY_BYTES", limit)
        content = random.Random(0).randbytes(5000)
        path = zipped(tmp_path / "a.zip", {"x.bin": content}, method)
        raw = bytearray(path.read_bytes())
        raw[3000] ^= 1
        path.write_bytes(raw)
        files, _ = opened(path)
        with pytest.raises(SampleError) as caught, files.open("x.bin") as stream:
            stream.read()
        assert caught.value.code == "archive-corrupt"
        assert caught.value.where == "a.zip!/x.bin"


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "..\\x", "C:\\x", "C:/x"])
def test_names_that_lead_out_are_unsafe(tmp_path, name):
    for path in (
        zipped(tmp_path / "a.zip", {name: b"x", "y": b"y"}),
        tarred(tmp_path / "a.tar", {name: b"x", "y": b"y"}),
    ):
        files, report = opened(path)
        assert list(report.counts) == ["archive-unsafe"]
        assert list(files.names()) == ["y"]
        assert report.raising()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicate_members_are_unsafe(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x", b"1")
        archive.writestr("x", b"2")
    assert codes(tmp_path / "a.zip") == ["archive-unsafe"]
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("x", "./x"):
            archive.addfile(tarfile.TarInfo(name))
    assert codes(tmp_path / "a.tar") == ["archive-unsafe"]


def patched(path, signature, offset, value, occurrence=0):
    raw = bytearray(path.read_bytes())
    position = -1
    for _ in range(occurrence + 1):
        position = raw.index(signature, position + 1)
    raw[position + offset : position + offset + len(value)] = value
    path.write_bytes(raw)
    return path


CENTRAL, LOCAL = b"PK\x01\x02", b"PK\x03\x04"


def test_encrypted_members_and_unknown_methods_are_issues(tmp_path):
    assert codes(patched(zipped(tmp_path / "a.zip"), CENTRAL, 8, b"\x01\x00")) == ["archive-unsafe"]
    assert codes(zipped(tmp_path / "b.zip", method=zipfile.ZIP_LZMA)) == ["archive-broken"]


def test_overlapping_members_are_unsafe(tmp_path):
    path = zipped(tmp_path / "a.zip", {"x": b"1" * 99, "y": b"2" * 99}, zipfile.ZIP_STORED)
    assert codes(patched(path, CENTRAL, 42, b"\0\0\0\0", occurrence=1)) == ["archive-unsafe"]


def test_a_local_header_with_another_name_is_unsafe(tmp_path):
    path = patched(zipped(tmp_path / "a.zip", {"good.txt": b"x" * 50}), LOCAL, 30, b"evil")
    files, _ = opened(path)
    for read in (lambda: files.open("good.txt"), lambda: files.read("good.txt", 3)):
        with pytest.raises(SampleError) as caught:
            read()
        assert caught.value.code == "archive-unsafe"


def test_links_and_devices_are_never_followed(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, kind in (("link", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE), ("pipe", tarfile.FIFOTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
        archive.addfile(tarfile.TarInfo("file"))
    files, report = opened(tmp_path / "a.tar")
    assert list(files.names()) == ["file"]
    assert report.counts == {"archive-link": 2, "special-file": 1}
    link = zipfile.ZipInfo("link")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
        archive.writestr("file", "x")
    assert codes(tmp_path / "a.zip") == ["archive-link"]


def test_expansion_bombs(tmp_path, monkeypatch):
    monkeypatch.setenv("FEWBIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(members, "RATIO_FROM", 1 << 20)
    monkeypatch.setattr(members, "RATIO", 500)
    assert codes(zipped(tmp_path / "a.zip", {"x": bytes(4 << 20), "y": b"1"})) == ["expansion-bomb"]
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(bytes(4 << 20)))
    assert error_code(tmp_path / "a.tar.gz") == "expansion-bomb"
    assert not list((tmp_path / "cache").rglob("*.tmp"))


def test_a_member_that_expands_to_more_than_it_claims_is_corrupt(tmp_path):
    content = b"x" * 1000
    path = zipped(tmp_path / "a.zip", {"x": content + b"more" * 1000})
    for signature, size_at, crc_at in ((LOCAL, 22, 14), (CENTRAL, 24, 16)):
        patched(path, signature, size_at, struct.pack("<L", len(content)))
        patched(path, signature, crc_at, struct.pack("<L", zlib.crc32(content)))
    with pytest.raises(SampleError) as caught:
        opened(path)[0].open("x").read()
    assert caught.value.code == "archive-corrupt"


def test_sizes_that_contradict_each_other_are_broken(tmp_path):
    path = zipped(tmp_path / "a.zip", {"x": b"1234"}, zipfile.ZIP_STORED)
    assert codes(patched(path, CENTRAL, 24, b"\x09\0\0\0")) == ["archive-broken"]


def test_zip64_comments_and_streamed_archives_are_read(tmp_path):
    class Unseekable(io.RawIOBase):
        def __init__(self, file):
            self.file = file

        def writable(self):
            return True

        def write(self, data):
            return self.file.write(data)

    with (tmp_path / "a.zip").open("wb") as file, zipfile.ZipFile(Unseekable(file), "w") as archive:
        with archive.open("x", "w", force_zip64=True) as member:
            member.write(b"content")
        archive.writestr("y", b"other")
    with zipfile.ZipFile(tmp_path / "a.zip", "a") as archive:
        archive.comment = b"made by hand"
    files, report = opened(tmp_path / "a.zip")
    assert [files.read(name, 99) for name in files.names()] == [b"content", b"other"] and not report.counts


def test_a_64_bit_end_is_read_and_held_against_the_short_one(tmp_path):
    raw = zipped(tmp_path / "a.zip", {"x": b"1"}).read_bytes()
    body, end = raw[:-22], raw[-22:]
    _, _, _, disk_count, count, size, start, _ = struct.unpack("<4s4H2LH", end)
    wide = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, disk_count, count, size, start)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, len(body), 1)
    short = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    (tmp_path / "b.zip").write_bytes(body + wide + locator + short)
    assert opened(tmp_path / "b.zip")[0].read("x", 9) == b"1"
    lying = wide[:-16] + struct.pack("<2Q", size, start + 1)
    (tmp_path / "c.zip").write_bytes(body + lying + locator + short)
    assert error_code(tmp_path / "c.zip") == "archive-broken"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        (b"\n<!DOCTYPE html><html></html>", "web page"),
        (b"\x1f\x8b" + b" " * 90, "gzip"),
        (b"PK\x03\x04" + b"\0" * 100, "beginning of a zip"),
        (b"Rar!\x1a\x07" + b"\0" * 900, "RAR"),
        (b"x" * 9000, "is not a"),
    ],
)
@pytest.mark.parametrize("name", ["a.zip", "a.tar"])
def test_what_is_no_archive_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        opened(tmp_path / name)
    assert caught.value.code == "archive-broken"


def test_bytes_before_or_after_a_zip_are_refused(tmp_path):
    raw = zipped(tmp_path / "a.zip").read_bytes()
    for content in (b"#!/bin/sh\n" + raw, raw + b"more"):
        (tmp_path / "b.zip").write_bytes(content)
        assert error_code(tmp_path / "b.zip") == "archive-broken"


def test_a_tar_that_was_cut_gives_what_is_complete_and_says_so(tmp_path):
    raw = tarred(tmp_path / "a.tar", {"a": b"1" * 600, "b": b"2" * 600}).read_bytes()
    (tmp_path / "b.tar").write_bytes(raw[: 512 * 4 + 100])
    files, report = opened(tmp_path / "b.tar")
    assert list(files.names()) == ["a"] and report.counts == {"archive-broken": 1} and report.raising()
    (tmp_path / "c.tar").write_bytes(raw[: 512 * 6])
    files, report = opened(tmp_path / "c.tar")
    assert list(files.names()) == ["a", "b"] and report.counts == {"archive-cut": 1} and report.raising()
    (tmp_path / "d.tar").write_bytes(raw[: 512 * 7] + raw)
    assert opened(tmp_path / "d.tar")[1].counts == {"archive-end": 1}


def test_a_tar_whose_sizes_lead_back_or_beyond_ends(tmp_path):
    for size in ("-512", "-1024", "99999999999999"):
        with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
            for name in ("first", "second"):
                info = tarfile.TarInfo(name)
                info.pax_headers = {"size": size} if name == "second" else {}
                archive.addfile(info)
        files, report = opened(tmp_path / "a.tar")
        assert list(files.names()) == ["first"] and report.counts["archive-broken"] == 1


def test_long_and_undecodable_names_survive(tmp_path):
    names = ["long" * 20 + "/" + "name" * 20 + ".x", "ü" * 90 + ".x"]
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        path = tarred(tmp_path / "a.tar", {name: name.encode() for name in [*names, "top"]}, format=format)
        files, _ = opened(path)
        assert sorted(files.names()) == sorted([*names, "top"])
        assert all(files.read(name, 999) == name.encode() for name in names)
    raw = tarred(tmp_path / "a.tar", {"aaa": b"1", "top": b"2"}).read_bytes()
    header = bytearray(raw[:512].replace(b"aaa", b"\xff\xfea", 1))
    header[148:156] = b" " * 8
    header[148:155] = f"{sum(header):06o}\0".encode()
    (tmp_path / "b.tar").write_bytes(bytes(header) + raw[512:])
    files, _ = opened(tmp_path / "b.tar")
    assert "\udcff\udcfea" in files.names()
    pickle.dumps(files)


def test_mutated_archives_end_in_members_or_typed_errors(tmp_path):
    chance = random.Random(7)
    for make, name in ((zipped, "mutated.zip"), (tarred, "mutated.tar")):
        raw = make(tmp_path / "original").read_bytes()
        for _ in range(300):
            data = bytearray(raw)
            for _ in range(chance.randint(1, 5)):
                data[chance.randrange(len(data))] = chance.choice((0, 255, 128, 48, 55, chance.randrange(256)))
            if chance.random() < 0.3:
                del data[chance.randrange(len(data)) :]
            (tmp_path / name).write_bytes(data)
            try:
                files, _ = opened(tmp_path / name)
                for member in files.names():
                    assert len(files.read(member, 1 << 30)) <= 1 << 20
            except FewbitError:
                pass


def test_random_bytes_are_never_an_untyped_error():
    chance = random.Random(1)
    for _ in range(500):
        raw = chance.choice((b"", b"PK\x05\x06", bytes(512))) + chance.randbytes(chance.randrange(2000))

        def read_at(offset, count, raw=raw):
            return raw[offset : offset + count]

        for listed in (zip_members, tar_members):
            try:
                list(listed(read_at, len(raw), lambda *problem: None))
            except ArchiveError as error:
                assert error.message


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_folders_of_an_archive_are_listed_also_empty_ones(tmp_path, kind):
    for name in ("data/cat", "data/dog", "data/.hidden"):
        (tmp_path / "set" / name).mkdir(parents=True)
    (tmp_path / "set" / "data" / "cat" / "1.png").write_bytes(b"x")
    files, report = opened(shutil.make_archive(str(tmp_path / "a"), kind, tmp_path / "set"))
    assert list(files.names()) == ["cat/1.png"] and list(files.folders()) == ["cat", "dog"] and not report.counts


def test_an_archive_inside_an_archive_is_answered_with_what_to_do(tmp_path):
    inner = zipped(tmp_path / "inner.zip").read_bytes()
    outer = zipped(tmp_path / "outer.zip", {"inner.zip": inner})
    assert list(opened(outer)[0].names()) == ["inner.zip"]
    with pytest.raises(DataError, match=r"holds only archives: inner\.zip") as caught:
        choose_format(opened(outer)[0])
    assert caught.value.code == "archive-nested" and "unpack it" in caught.value.hint
    outer = zipped(tmp_path / "outer.zip", {"inner.zip": inner, "notes.xyz": b""})
    with pytest.raises(DataError, match="archives inside a folder or archive") as caught:
        choose_format(opened(outer)[0])
    assert caught.value.where == "inner.zip" and "unzip" in caught.value.hint


def test_an_archive_inside_a_folder_stays_a_file(tmp_path):
    (tmp_path / "data").mkdir()
    zipped(tmp_path / "data" / "a.zip")
    assert list(opened(tmp_path / "data")[0].names()) == ["a.zip"]


def test_a_pattern_names_its_files_and_missing_ones_are_issues(tmp_path):
    for number in (8, 9, 11):
        tarred(tmp_path / f"s-{number:03}.tar")
    files, report = opened(tmp_path / "s-{008..011}.tar")
    assert list(files.names()) == ["s-008.tar", "s-009.tar", "s-011.tar"]
    assert report.counts == {"shard-missing": 1} and str(report.issues[0].location) == "s-010.tar"
    assert list(pickle.loads(pickle.dumps(files)).names()) == list(files.names())
    with pytest.raises(DataError, match="there is no file"):
        opened(tmp_path / "t-{008..011}.tar")
    assert len(expand_braces("{0..99999999999}", most=1000)) == 1000
    assert expand_braces("a{b}c") == ["a{b}c"]


@pytest.mark.parametrize("path", ["/proc", "/sys/kernel", "/dev/zero", "/dev/stdin"])
def test_the_operating_system_is_no_dataset(path):
    with pytest.raises(DataError) as caught:
        opened(path)
    assert caught.value.code in ("data-system", "data-missing")


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "~nobody/x"])
def test_a_name_that_cannot_exist_is_missing(name):
    with pytest.raises(DataError) as caught:
        opened(name)
    assert caught.value.code == "data-missing"


def test_open_archive_keeps_the_users_name(tmp_path):
    zipped(tmp_path / "a.zip")
    files = open_archive(Folder(tmp_path / "a.zip"), "a.zip", "~/a.zip", DataReport())
    assert files.root == "~/a.zip" and files.location("a.txt") == "a.zip!/a.txt"
