# SPDX-License-Identifier: Apache-2.0
import io
import random
import tarfile

import pytest

from fewbit.data.arrays.faults import ArrayFault
from fewbit.data.arrays.tar_index import tar_entries


def make(path, names, format=tarfile.GNU_FORMAT, prepare=lambda info: None):
    with tarfile.open(path, "w", format=format) as archive:
        for number, name in enumerate(names):
            info = tarfile.TarInfo(name)
            prepare(info)
            content = bytes([number]) * (number * 300 + 1) if info.isreg() else b""
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_lie_where_the_index_says(tmp_path, format):
    names = ["a.npz", "folder/b.npz", "long" * 20 + "/" + "name" * 20 + ".npz"]
    if format != tarfile.USTAR_FORMAT:
        names.append("ü" * 90 + ".npz")
    make(tmp_path / "a.tar", names, format)
    raw = (tmp_path / "a.tar").read_bytes()
    entries = list(tar_entries(tmp_path / "a.tar"))
    assert [entry.name for entry in entries] == names
    for number, entry in enumerate(entries):
        assert raw[entry.start : entry.start + entry.size] == bytes([number]) * (number * 300 + 1)


def test_links_and_devices_are_passed_over(tmp_path):
    def link(info):
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"

    make(tmp_path / "a.tar", ["a.npz"], prepare=link)
    assert not list(tar_entries(tmp_path / "a.tar"))


@pytest.mark.parametrize("name", ["../a.npz", "/etc/a.npz", "x/../../a.npz"])
def test_names_that_lead_out_are_refused(tmp_path, name):
    make(tmp_path / "a.tar", [name])
    with pytest.raises(ArrayFault) as caught:
        list(tar_entries(tmp_path / "a.tar"))
    assert caught.value.code == "archive-unsafe"


def test_a_cut_archive_gives_what_is_whole_and_then_says_so(tmp_path):
    make(tmp_path / "a.tar", ["a.npz", "b.npz", "c.npz"])
    raw = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "b.tar").write_bytes(raw[: 512 * 3 + 100])
    entries = tar_entries(tmp_path / "b.tar")
    assert next(entries).name == "a.npz"
    with pytest.raises(ArrayFault):
        next(entries)


def test_mutated_archives_end_in_entries_or_a_fault(tmp_path):
    make(tmp_path / "a.tar", ["a.npz", "ü" * 90 + ".npz", "b.npz"], tarfile.PAX_FORMAT)
    raw = (tmp_path / "a.tar").read_bytes()
    chance = random.Random(3)
    for _ in range(300):
        data = bytearray(raw)
        for _ in range(chance.randint(1, 5)):
            data[chance.randrange(4000)] = chance.choice((0, 255, 128, 48, 55, 45, chance.randrange(256)))
        if chance.random() < 0.3:
            del data[chance.randrange(len(data)) :]
        (tmp_path / "b.tar").write_bytes(data)
        try:
            for entry in tar_entries(tmp_path / "b.tar"):
                assert 0 <= entry.start <= entry.start + entry.size <= len(data)
        except ArrayFault:
            pass
