# SPDX-License-Identifier: Apache-2.0
import random
import struct
import zipfile
import zlib

import numpy as np
import pytest

from fewbit.data import limits
from fewbit.data.arrays.faults import ArrayFault
from fewbit.data.arrays.npz_archive import check_crc, opened, read_npz, scan
from fewbit.errors import DataError
from mutation import mutate


def code_of(path) -> str:
    with pytest.raises(ArrayFault) as caught:
        read_npz(path)
    assert str(path) in caught.value.where
    return caught.value.code


def scanned(path):
    with opened(path) as window:
        return scan(window)


def npy_bytes(array) -> bytes:
    import io

    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.fixture(params=[np.savez, np.savez_compressed])
def save(request):
    return request.param


def test_small_and_large_stored_and_deflated(tmp_path, save):
    arrays = {"ids": np.arange(128), "x": np.random.default_rng(0).normal(size=(3, 80, 80)), "s": np.float32(2)}
    save(tmp_path / "a.npz", **arrays)
    found = scanned(tmp_path / "a.npz")
    assert not found.faults
    assert found.infos["x"].shape == (3, 80, 80)
    for name, array in read_npz(tmp_path / "a.npz").items():
        np.testing.assert_array_equal(array, arrays[name])
        assert array.flags.writeable


def test_endianness_fortran_order_and_0d_arrays_are_normalized(tmp_path, save):
    array = np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3))
    save(tmp_path / "a.npz", x=array, s=np.array(3, ">f8"))
    read = read_npz(tmp_path / "a.npz")
    assert read["x"].flags.c_contiguous and read["x"].dtype == np.dtype("=i4")
    assert read["s"].shape == () and read["s"] == 3
    np.testing.assert_array_equal(read["x"], array)


def test_zip64_and_streamed_archives(tmp_path):
    content = npy_bytes(np.arange(5))
    with (tmp_path / "a.npz").open("wb") as file, zipfile.ZipFile(_Unseekable(file), "w") as archive:
        with archive.open("x.npy", "w", force_zip64=True) as member:
            member.write(content)
        archive.writestr("y.npy", content)
    assert set(read_npz(tmp_path / "a.npz")) == {"x", "y"}


class _Unseekable:
    def __init__(self, file):
        self.file = file

    def write(self, data):
        return self.file.write(data)

    def flush(self):
        self.file.flush()


def test_zip64_end_of_directory(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(5))
    raw = (tmp_path / "a.npz").read_bytes()
    body, end = raw[:-22], raw[-22:]
    _, _, _, here, count, size, start, _ = struct.unpack("<4s4H2LH", end)
    wide = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, here, count, size, start)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, len(body), 1)
    short = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    (tmp_path / "b.npz").write_bytes(body + wide + locator + short)
    assert read_npz(tmp_path / "b.npz")["x"].tolist() == [0, 1, 2, 3, 4]
    lying = wide[:-16] + struct.pack("<2Q", size, start + 1)
    (tmp_path / "c.npz").write_bytes(body + lying + locator + short)
    assert code_of(tmp_path / "c.npz") == "archive-broken"


def test_an_archive_comment_is_no_fault(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(5))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.comment = b"made by hand"
    assert "x" in read_npz(tmp_path / "a.npz")


def test_object_dtype_is_forbidden_before_key_access(tmp_path):
    np.savez(tmp_path / "a.npz", fine=np.ones(2), bad=np.array([print], object), worse=np.array([{}], object))
    found = scanned(tmp_path / "a.npz")
    assert [(fault.code, fault.place.field) for fault in found.faults] == [
        ("array-dtype", "bad"),
        ("array-dtype", "worse"),
    ]
    assert code_of(tmp_path / "a.npz") == "array-dtype"


def test_a_pickle_is_never_loaded_nor_suggested(tmp_path):
    class Boom:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    np.savez(tmp_path / "a.npz", x=np.array([Boom()], object))
    with pytest.raises(DataError) as caught:
        read_npz(tmp_path / "a.npz")
    assert "allow_pickle" not in str(caught.value)


def test_structured_dtypes_are_forbidden(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(2, [("a", "i4"), ("b", "f4")]))
    assert code_of(tmp_path / "a.npz") == "array-dtype"


@pytest.mark.parametrize("name", ["../x.npy", "/x.npy", "a/../../x.npy", "..\\x.npy", "C:\\x.npy"])
def test_member_paths_that_lead_out_are_forbidden(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr(name, npy_bytes(np.ones(1)))
    assert code_of(tmp_path / "a.npz") == "archive-unsafe"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicate_members_are_forbidden(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", npy_bytes(np.ones(1)))
        archive.writestr("x.npy", npy_bytes(np.zeros(1)))
    assert code_of(tmp_path / "a.npz") == "archive-unsafe"


def _patched(path, signature: bytes, offset: int, value: bytes):
    raw = bytearray(path.read_bytes())
    at = raw.index(signature)
    raw[at + offset : at + offset + len(value)] = value
    path.write_bytes(raw)


def test_encrypted_members_are_forbidden(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones(1))
    _patched(tmp_path / "a.npz", b"PK\x01\x02", 8, b"\x01\x00")
    assert code_of(tmp_path / "a.npz") == "archive-unsafe"


def test_unknown_compression_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x.npy", npy_bytes(np.ones(1)))
    assert code_of(tmp_path / "a.npz") == "archive-broken"


def test_sizes_that_contradict_each_other_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones(1))
    _patched(tmp_path / "a.npz", b"PK\x01\x02", 24, (4).to_bytes(4, "little"))
    assert code_of(tmp_path / "a.npz") == "archive-broken"


def test_overlapping_members_are_refused(tmp_path):
    content = npy_bytes(np.ones(64))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", content)
        archive.writestr("y.npy", content)
    raw = bytearray((tmp_path / "a.npz").read_bytes())
    second = raw.index(b"PK\x01\x02", raw.index(b"PK\x01\x02") + 4)
    raw[second + 42 : second + 46] = (0).to_bytes(4, "little")  # y claims x's place
    raw[second + 46 : second + 51] = b"x.npy"
    raw[raw.index(b"PK\x01\x02") + 46 : raw.index(b"PK\x01\x02") + 51] = b"X.npy"
    (tmp_path / "a.npz").write_bytes(raw)
    assert code_of(tmp_path / "a.npz") in ("archive-unsafe", "archive-broken")


def test_a_header_that_claims_more_than_is_there_allocates_nothing(tmp_path):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (500000000,), }"
    fake = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
            archive.writestr("x.npy", fake)
        assert code_of(tmp_path / "a.npz") == "array-size"


def test_a_compressed_ratio_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((40 << 20) // 8))
    monkeypatch.setattr(limits, "EXPANSION", 500)
    assert code_of(tmp_path / "a.npz") == "array-bomb"
    monkeypatch.setattr(limits, "EXPANSION", 10_000)
    monkeypatch.setattr(limits, "ARRAY_BYTES", 1 << 20)
    assert code_of(tmp_path / "a.npz") == "array-bomb"


def test_a_stream_that_unpacks_to_more_than_it_says_is_refused(tmp_path):
    content = npy_bytes(np.zeros(100))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
    raw = (tmp_path / "a.npz").read_bytes()
    longer = zlib.compressobj(9, wbits=-15)
    packed = longer.compress(content + b"\0" * 100_000) + longer.flush()
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("x.npy", packed)
    raw = bytearray((tmp_path / "b.npz").read_bytes())
    for signature, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        found = raw.index(signature)
        raw[found + at : found + at + 2] = b"\x08\x00"
        size_at = found + (22 if signature == b"PK\x03\x04" else 24)
        raw[size_at : size_at + 4] = len(content).to_bytes(4, "little")
    (tmp_path / "b.npz").write_bytes(raw)
    assert code_of(tmp_path / "b.npz") == "array-corrupt"


def test_arrays_together_stay_within_the_limit(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", x=np.ones(1000), y=np.ones(1000))
    monkeypatch.setattr(limits, "ARRAY_BYTES", 10_000)
    assert code_of(tmp_path / "a.npz") == "array-bomb"


def test_a_changed_byte_fails_the_checksum(tmp_path, save):
    save(tmp_path / "a.npz", x=np.arange(20_000))
    raw = bytearray((tmp_path / "a.npz").read_bytes())
    raw[4000] ^= 0xFF
    (tmp_path / "a.npz").write_bytes(raw)
    assert not scanned(tmp_path / "a.npz").faults
    assert code_of(tmp_path / "a.npz") == "array-corrupt"


def test_check_crc_agrees_with_whole_archives(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=400_000), y=np.zeros(300_000))
    with opened(tmp_path / "a.npz") as window:
        for member in scan(window).members.values():
            check_crc(window, member)


@pytest.mark.parametrize(
    "content", [b"", b"x", b"PK\x03\x04" + b"\0" * 100, b"\0" * 100_000, b"PK\x05\x06" + b"\0" * 18]
)
def test_what_is_no_archive_is_said_so(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    assert code_of(tmp_path / "a.npz") == "archive-broken"


def test_a_missing_file_is_a_data_error(tmp_path):
    assert code_of(tmp_path / "none.npz") == "unreadable"


def test_a_member_that_is_no_array_is_passed_over_and_told(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones(1))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("README.txt", "hello")
    assert [fault.code for fault in scanned(tmp_path / "a.npz").faults] == ["member-not-array"]
    assert list(read_npz(tmp_path / "a.npz")) == ["x"]


def test_a_bool_array_holds_only_bools(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", npy_bytes(np.array([True, False]))[:-2] + b"\x02\x00")
    assert read_npz(tmp_path / "a.npz")["x"].view(np.uint8).tolist() == [1, 0]


def test_mutated_archives_end_in_arrays_or_faults(tmp_path, save):
    save(tmp_path / "a.npz", ids=np.arange(16), x=np.ones((2, 3), np.float32), t=np.array(["ab", "c"]))
    content = (tmp_path / "a.npz").read_bytes()
    chance = random.Random(7)
    path = tmp_path / "b.npz"
    for _ in range(400):
        path.write_bytes(mutate(content, chance))
        try:
            arrays = read_npz(path)
        except DataError:
            continue
        assert all(array.nbytes < 10_000 for array in arrays.values())
