# SPDX-License-Identifier: Apache-2.0
import gzip
import os

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.tables import compression, encoding, plain
from fewbit.data.tables.json_table import JsonTable
from fewbit.data.tables.table import Broken
from fewbit.errors import DataError, UsageError


@settings(deadline=None, max_examples=60)
@given(
    text=st.text(), name=st.sampled_from(["utf-16-le", "utf-16-be", "utf-32-le", "shift_jis"]), size=st.integers(1, 7)
)
def test_transcoding_does_not_depend_on_the_pieces(text, name, size):
    raw = text.encode(name, "ignore")
    pieces = [raw[i : i + size] for i in range(0, len(raw), size)]
    assert b"".join(encoding.to_utf8(pieces, name)).decode() == raw.decode(name)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_the_offset_of_a_bad_byte_is_the_files_own(size):
    raw = "ab".encode("utf-16-le") + b"\x00\xd8" + "cd".encode("utf-16-le")
    with pytest.raises(Broken) as broken:
        list(encoding.to_utf8([raw[i : i + size] for i in range(0, len(raw), size)], "utf-16-le"))
    assert broken.value.fault.offset == 4


@pytest.mark.parametrize("name", ["nonsense", "rot13", "zlib", ""])
def test_an_unknown_encoding_is_the_callers_error(name):
    with pytest.raises(UsageError):
        encoding.canonical(name)


@pytest.mark.parametrize("chosen", ["utf-8", "UTF8", "utf-8-sig", "utf_8"])
def test_every_spelling_of_utf8_passes_over_the_mark(chosen):
    assert encoding.detect(b"\xef\xbb\xbfa", chosen) == ("utf-8", 3)


@settings(deadline=None, max_examples=40)
@given(content=st.binary(max_size=3000), cut=st.integers(0, 60), zst=st.booleans())
def test_packed_data_cut_anywhere_gives_a_beginning_and_a_fault(tmp_path_factory, content, cut, zst):
    packed = zstandard.compress(content) if zst else gzip.compress(content)
    path = tmp_path_factory.mktemp("p") / "a"
    path.write_bytes(packed[: max(5, len(packed) - cut)])
    found = b""
    try:
        for chunk in compression.unpacked(path, 10, 100):
            found += chunk
    except Broken as broken:
        assert broken.fault.code == "bad-compression"
    else:
        assert cut == 0 and found == content
    assert content.startswith(found)


def test_padding_after_a_gzip_member_is_no_fault(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"one") + b"\0" * 512 + gzip.compress(b"two"))
    assert b"".join(compression.unpacked(path, 10, 10)) == b"onetwo"


def test_a_plain_file_is_read_where_it_lies(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf{}")
    assert plain.plain_file(path) == plain.PlainFile(path, 3)


def test_a_copy_remembers_why_it_ends(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"{}\n" * 1000)[:-4])
    for _ in range(2):
        found = plain.plain_file(path)
        assert found.copied and found.fault.code == "bad-compression" and found.path.read_bytes() == b"{}\n" * 1000


def test_copies_that_were_not_used_for_longest_make_room(tmp_path, monkeypatch):
    monkeypatch.setattr(plain, "_ROOM", 2500)
    copies = []
    for number in range(4):
        path = tmp_path / f"{number}.gz"
        path.write_bytes(gzip.compress(bytes([65 + number]) * 1000)[: -1 if number == 0 else None])
        copies.append(plain.plain_file(path).path)
        os.utime(copies[-1], (number, number))
    assert [copy.exists() for copy in copies] == [False, True, True, True]
    assert [path.name for path in copies[0].parent.iterdir() if path.suffix == ".fault"] == []


def test_a_copy_used_today_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(plain, "_ROOM", 0)
    copies = []
    for number in range(3):
        (tmp_path / f"{number}.gz").write_bytes(gzip.compress(bytes([65 + number]) * 1000))
        copies.append(plain.plain_file(tmp_path / f"{number}.gz").path)
    assert all(copy.exists() for copy in copies)


def test_a_file_that_vanished_is_a_typed_error(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n')
    table = JsonTable(path, "a.jsonl")
    assert table.count() == 1
    path.unlink()
    with pytest.raises(DataError, match="cannot read it any more"):
        table.row(0)
