# SPDX-License-Identifier: Apache-2.0
"""`.npz` and `.npy` files: one sample per file, hostile files as typed issues, and the writer."""

import io
import os
import pickle
import random
import struct
import tarfile
import zipfile
import zlib

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.formats import _npy, npz
from fewbit.data.formats._npy import ArrayError, ArrayFile, parse_header
from fewbit.data.formats.npz import write_npz
from fewbit.data.opening import locate, open_source, scan_source
from fewbit.data.types import SampleError
from fewbit.errors import DataError, FewbitError, UsageError


def pixels(seed, shape=(3, 4, 4), dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def checked(path, on_error=None, split=None, depth="full", **options):
    return scan_source(str(path), data_format="npz", data_option=options, on_error=on_error, split=split, depth=depth)[
        1
    ]


def opened(path, on_error=None, split=None, depth="index", **options):
    return open_source(str(path), data_format="npz", data_option=options, on_error=on_error, split=split, depth=depth)[
        0
    ]


def read_file(path):
    """All arrays of one file; the first problem is raised."""
    raw = path.read_bytes()
    bare = "array" if path.suffix == ".npy" else None
    file = ArrayFile(lambda offset, count: raw[offset : offset + count], len(raw), bare)
    if file.problems:
        raise file.problems[0]
    return {name: file.array(name) for name in file.infos}


def code_of(path):
    with pytest.raises(ArrayError) as caught:
        read_file(path)
    return caught.value.type.code


def npy_bytes(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.fixture(params=[np.savez, np.savez_compressed])
def save(request):
    return request.param


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for i in range(4):
        np.savez(folder / f"input{i}.npz", x=pixels(i), label=i)
    return folder


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(12):
        np.savez(folder / f"input{i}.npz", input_ids=np.arange(6) + i, attention_mask=np.ones(6, np.int64))
    return folder


# Headers


def header(text, version=b"\x01\x00"):
    width = 2 if version == b"\x01\x00" else 4
    return b"\x93NUMPY" + version + len(text).to_bytes(width, "little") + text.encode("latin-1")


@settings(deadline=None, max_examples=60)
@given(hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)), st.booleans())
def test_every_plain_array_of_numpy_is_read(array, fortran):
    if array.dtype.kind in "mMO" or array.dtype.itemsize == 0:
        return
    raw = npy_bytes(np.array(array, order="F" if fortran else "C"))
    file = ArrayFile(lambda offset, count: raw[offset : offset + count], len(raw), "x")
    assert not file.problems and file.infos["x"].shape == array.shape
    np.testing.assert_array_equal(file.array("x"), array)
    assert file.array("x").dtype == array.dtype.newbyteorder("=")


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
        "{'shape': (2L, 3L), 'descr': '<f4', 'fortran_order': False}",
        '{"descr":"<f4","fortran_order":False,"shape":(2,3)}   \n',
    ],
)
@pytest.mark.parametrize("version", [b"\x01\x00", b"\x02\x00", b"\x03\x00"])
def test_headers_of_other_writers_are_read(text, version):
    assert parse_header(header(text, version)).shape == (2, 3)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "array-dtype"),
        ("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,), }", "array-dtype"),
        ("{'descr': '<V2', 'fortran_order': False, 'shape': (1,), }", "array-dtype"),
        ("{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (1,), }", "array-dtype"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999,), }", "array-bomb"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 9999999999999), }", "array-bomb"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 40 + "), }", "array-bomb"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", "array-header"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (3), }", "array-header"),
        ("{'descr': '<f4', 'fortran_order': False}", "array-header"),
        ("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", "array-header"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}", "array-header"),
        ("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", "array-header"),
        ("{'descr': '<q9', 'fortran_order': False, 'shape': (1,)}", "array-header"),
        ("{'descr': '<f3', 'fortran_order': False, 'shape': (1,)}", "array-header"),
        ("{'descr': '<U0', 'fortran_order': False, 'shape': (9,)}", "array-header"),
        ("__import__('os').system('true')", "array-header"),
        ("(" * 9000, "array-header"),
        ("", "array-header"),
    ],
)
def test_a_header_that_is_no_plain_array_is_refused(text, code):
    with pytest.raises(ArrayError) as caught:
        parse_header(header(text))
    assert caught.value.type.code == code


def test_bfloat16_as_numpy_writes_it_is_named():
    with pytest.raises(ArrayError, match="bfloat16"):
        parse_header(header("{'descr': '<V2', 'fortran_order': False, 'shape': (1,), }"))


@pytest.mark.parametrize(
    "raw", [b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00", b"PK\x03\x04", b"\x93NUMPY\x09\x00\x10\x00" + b" " * 99]
)
def test_a_short_or_foreign_npy_file_is_refused(tmp_path, raw):
    (tmp_path / "a.npy").write_bytes(raw)
    assert code_of(tmp_path / "a.npy") == "array-header"


def test_a_long_header_is_not_read(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x02\x00" + (1 << 30).to_bytes(4, "little") + b" " * 100)
    with pytest.raises(ArrayError, match="claims a header"):
        read_file(tmp_path / "a.npy")


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=200))
def test_any_bytes_end_in_arrays_or_a_typed_error(content):
    for raw in (content, b"\x93NUMPY\x01\x00" + len(content).to_bytes(2, "little") + content):
        for bare in ("x", None):
            file = ArrayFile(lambda offset, count, raw=raw: raw[offset : offset + count], len(raw), bare)
            assert file.problems or file.infos or bare is None


# Archives


def test_stored_and_deflated_large_and_small(tmp_path, save):
    arrays = {"ids": np.arange(128), "x": pixels(0, (3, 80, 80)), "s": np.float32(2), "empty": np.zeros((0, 3))}
    save(tmp_path / "a.npz", **arrays)
    for name, array in read_file(tmp_path / "a.npz").items():
        np.testing.assert_array_equal(array, arrays[name])
        assert array.flags.writeable


def test_byte_order_fortran_order_and_scalars_are_normalized(tmp_path, save):
    array = np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3))
    save(tmp_path / "a.npz", x=array, s=np.array(3, ">f8"))
    arrays = read_file(tmp_path / "a.npz")
    assert arrays["x"].flags.c_contiguous and arrays["x"].dtype == np.dtype("=i4")
    assert arrays["s"].shape == () and arrays["s"] == 3
    np.testing.assert_array_equal(arrays["x"], array)


def test_objects_are_refused_in_every_array_and_never_unpickled(tmp_path):
    class Boom:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    np.savez(tmp_path / "a.npz", fine=np.ones(2), bad=np.array([Boom()], object), worse=np.array([{}], object))
    for depth in ("index", "full"):
        report = checked(tmp_path / "a.npz", depth=depth)
        assert [(issue.code, issue.location.field) for issue in report.errors] == [
            ("array-dtype", "bad"),
            ("array-dtype", "worse"),
        ]
    with pytest.raises(DataError) as caught:
        opened(tmp_path / "a.npz")
    assert "allow_pickle" not in str(caught.value)


def test_records_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(2, [("a", "i4"), ("b", "f4")]))
    assert code_of(tmp_path / "a.npz") == "array-dtype"


@pytest.mark.parametrize("name", ["../x.npy", "/x.npy", "a/../../x.npy", "..\\x.npy", "C:\\x.npy"])
def test_member_names_that_lead_out_are_refused(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr(name, npy_bytes(np.ones(1)))
    assert code_of(tmp_path / "a.npz") == "archive-unsafe"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicate_members_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", npy_bytes(np.ones(1)))
        archive.writestr("x.npy", npy_bytes(np.zeros(1)))
    assert code_of(tmp_path / "a.npz") == "archive-unsafe"


def test_a_local_header_that_differs_is_refused(tmp_path):
    write_npz(tmp_path / "a.npz", {"x": np.ones(1)})
    raw = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(raw.replace(b"x.npy", b"y.npy", 1))
    assert code_of(tmp_path / "a.npz") == "archive-unsafe"


def test_a_claim_beyond_the_bytes_allocates_nothing(tmp_path):
    fake = header("{'descr': '<f8', 'fortran_order': False, 'shape': (500000000,), }")
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
            archive.writestr("x.npy", fake)
        assert code_of(tmp_path / "a.npz") == "array-size"
    huge = header("{'descr': '<f8', 'fortran_order': False, 'shape': (4000000000, 4000000000), }")
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", huge)
    assert checked(tmp_path / "a.npz").counts == {"array-bomb": 1}


def test_arrays_together_stay_within_the_limit(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", x=np.ones(1000), y=np.ones(1000))
    parse_header.cache_clear()
    monkeypatch.setattr(_npy, "ARRAY_BYTES", 10_000)
    assert code_of(tmp_path / "a.npz") == "array-bomb"


def test_a_compressed_bomb_is_refused_before_it_is_decompressed(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((4 << 20) // 8))
    assert read_file(tmp_path / "a.npz")["x"].nbytes == 4 << 20  # zeros are ordinary below the limit
    monkeypatch.setattr("fewbit.data.members.RATIO_FROM", 1 << 20)
    monkeypatch.setattr("fewbit.data.members.RATIO", 500)
    assert code_of(tmp_path / "a.npz") == "expansion-bomb"


def test_a_member_that_expands_to_more_than_it_claims_is_refused(tmp_path):
    content = npy_bytes(np.zeros(100))
    longer = zlib.compressobj(9, wbits=-15)
    packed = longer.compress(content + b"\0" * 100_000) + longer.flush()
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("x.npy", packed)
    raw = bytearray((tmp_path / "a.npz").read_bytes())
    for signature, method_at, crc_at in ((b"PK\x03\x04", 8, 14), (b"PK\x01\x02", 10, 16)):
        start = raw.index(signature)
        raw[start + method_at : start + method_at + 2] = b"\x08\x00"
        raw[start + crc_at : start + crc_at + 4] = struct.pack("<L", zlib.crc32(content))
        raw[start + crc_at + 8 : start + crc_at + 12] = struct.pack("<L", len(content))
    (tmp_path / "a.npz").write_bytes(raw)
    assert code_of(tmp_path / "a.npz") == "array-corrupt"


def test_a_changed_byte_fails_the_checksum_on_full_depth(tmp_path, save):
    save(tmp_path / "a.npz", x=np.random.default_rng(0).integers(0, 1 << 40, 20_000))
    raw = bytearray((tmp_path / "a.npz").read_bytes())
    raw[40_000] ^= 0xFF
    (tmp_path / "a.npz").write_bytes(raw)
    assert not checked(tmp_path / "a.npz", depth="index").errors
    assert list(checked(tmp_path / "a.npz").counts) == ["array-corrupt"]
    with pytest.raises(SampleError) as caught:
        opened(tmp_path / "a.npz")[0]
    assert caught.value.code == "array-corrupt" and "a.npz" in caught.value.where


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npz", b"\x93NUMPY\x01\x00" + b" " * 60, "suffix .npy"),
        ("a.npy", b"PK\x03\x04" + b" " * 60, "suffix .npz"),
        ("a.npz", b"\x1f\x8b" + b" " * 60, "gzip"),
        ("a.npz", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        ("a.npy", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        ("a.npz", b"\n<!DOCTYPE html><html></html>", "web page"),
        ("a.npz", b"", "is empty"),
        ("a.npz", b"PK\x03\x04" + b"\0" * 100, "the rest is missing"),
    ],
)
def test_a_file_that_is_something_else_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    (issue,) = checked(tmp_path).errors
    assert message in issue.message


def test_a_member_that_is_no_array_is_passed_over_and_reported(tmp_path):
    np.savez(tmp_path / "a.npz", x=pixels(0))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("README.txt", "hello")
    assert checked(tmp_path).counts == {"member-not-array": 1}
    assert list(opened(tmp_path)[0]) == ["x"]


def test_a_bool_array_holds_only_bools(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", npy_bytes(np.array([True, False]))[:-2] + b"\x02\x00")
    assert read_file(tmp_path / "a.npz")["x"].view(np.uint8).tolist() == [1, 0]


def test_mutated_files_end_in_arrays_or_typed_errors(tmp_path, save):
    save(tmp_path / "a.npz", ids=np.arange(16), x=np.ones((2, 3), np.float32), t=np.array(["ab", "c"]))
    content = (tmp_path / "a.npz").read_bytes()
    chance = random.Random(7)
    for _ in range(400):
        raw = bytearray(content)
        for _ in range(chance.randint(1, 3)):
            raw[chance.randrange(len(raw))] = chance.choice((0, 255, 10, 123, chance.randrange(256)))
        if chance.random() < 0.2:
            del raw[chance.randrange(len(raw)) :]
        (tmp_path / "b.npz").write_bytes(raw)
        try:
            arrays = read_file(tmp_path / "b.npz")
        except ArrayError:
            continue
        assert all(array.nbytes < 10_000 for array in arrays.values())


# Datasets


def test_one_sample_per_file_in_natural_order(texts):
    source = opened(texts)
    assert len(source) == 12 and source[10]["input_ids"][0] == 10
    assert [source.location(index).file for index in range(12)] == [f"input{i}.npz" for i in range(12)]
    assert not checked(texts).issues
    assert pickle.loads(pickle.dumps(source))[3]["input_ids"][0] == 3


def test_facts_name_the_arrays(images):
    np.savez(images / "input9.npz", x=pixels(9, (3, 5, 4)), label=1)
    facts = opened(images).facts
    assert facts["columns"] == ["x", "label"]
    assert facts["arrays"] == {
        "x": {"dtype": "float32", "shape": [3, None, 4]},
        "label": {"dtype": "int64", "shape": []},
    }


def test_detection(images, tmp_path):
    assert npz.detect(locate(str(images), None)).confidence > 0.9
    assert npz.detect(locate(str(images / "input0.npz"), None)).confidence > 0.9
    for number in range(40):
        (images / f"{number}.txt").touch()
    assert npz.detect(locate(str(images), None)).confidence < 0.5
    (tmp_path / "empty").mkdir()
    assert npz.detect(locate(str(tmp_path / "empty"), None)) is None


def test_index_depth_reads_a_few_headers_only(tmp_path, monkeypatch):
    for number in range(200):
        write_npz(tmp_path / f"{number}.npz", {"x": pixels(number)})
    count = []
    original = npz.NpzSource.open
    monkeypatch.setattr(npz.NpzSource, "open", lambda self, name: count.append(name) or original(self, name))
    assert len(opened(tmp_path)) == 200
    assert len(set(count)) == 16


def test_a_lone_file_is_one_sample_unless_stacked(tmp_path):
    x, y = pixels(0, (5, 3, 4, 4)), np.arange(5)
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", x=x, label=y)
        assert len(opened(tmp_path / "a.npz")) == len(opened(tmp_path / "a.npz", stacked=False)) == 1
        source = opened(tmp_path / "a.npz", stacked=True)
        assert len(source) == 5
        np.testing.assert_array_equal(source[3]["x"], x[3])
        assert source[3]["label"] == 3 and source[3]["label"].shape == ()
        assert source.location(3).row == 3
    assert checked(tmp_path / "a.npz").counts == {"stack-suspected": 1}
    assert not checked(tmp_path / "a.npz", stacked=False).counts
    assert checked(tmp_path / "a.npz", stacked=True).facts["samples"] == 5


@pytest.mark.parametrize("shape", [(3, 8, 8), (128,), (80, 300)])
def test_a_lone_array_is_never_suspected_to_be_a_stack(tmp_path, shape):
    np.savez(tmp_path / "a.npz", x=pixels(0, shape))
    assert not checked(tmp_path / "a.npz").counts and opened(tmp_path / "a.npz")[0]["x"].shape == shape


def test_a_folder_of_stacks(tmp_path):
    for i in range(2):
        np.savez(tmp_path / f"{i}.npz", x=pixels(i, (i + 2, 3, 4, 4)))
    source = opened(tmp_path, stacked=True)
    assert len(source) == 5
    np.testing.assert_array_equal(source[4]["x"], pixels(1, (3, 3, 4, 4))[2])
    np.savez(tmp_path / "2.npz", x=pixels(0, (2, 3, 4, 4)), z=np.arange(3))
    assert checked(tmp_path, stacked=True).counts["stack-uneven"] == 1
    with pytest.raises(DataError) as caught:
        opened(tmp_path, stacked=True)
    assert caught.value.code == "stack-uneven"
    assert len(opened(tmp_path, {"stack-uneven": "drop"}, stacked=True)) == 5


def test_rows_of_a_stored_stack_are_read_alone(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(4000.0).reshape(100, 40))
    source = opened(tmp_path / "a.npy", stacked=True)
    assert source[7]["array"][0] == 280 and len(source) == 100
    np.save(tmp_path / "f.npy", np.asfortranarray(np.arange(4000.0).reshape(100, 40)))
    assert opened(tmp_path / "f.npy", stacked=True)[7]["array"].tolist() == source[7]["array"].tolist()


def test_npy_files_are_samples_or_columns(tmp_path):
    np.save(tmp_path / "input_ids.npy", np.arange(40).reshape(5, 8))
    np.save(tmp_path / "attention_mask.npy", np.ones((5, 8), np.int64))
    assert [list(opened(tmp_path)[index]) for index in range(2)] == [["array"]] * 2
    assert checked(tmp_path).counts == {"columns-suspected": 1}
    assert not checked(tmp_path, stacked=False).counts
    source = opened(tmp_path, stacked=True)
    assert len(source) == 5 and source[2]["input_ids"].tolist() == list(range(16, 24))
    assert set(source.facts["columns"]) == {"input_ids", "attention_mask"}
    np.save(tmp_path / "attention_mask.npy", np.ones((4, 8), np.int64))
    assert checked(tmp_path, stacked=True).counts["stack-uneven"] == 1


def test_splits(tmp_path):
    for split, count in (("test", 1), ("validation", 2), ("train", 3)):
        (tmp_path / split).mkdir()
        for i in range(count):
            np.savez(tmp_path / split / f"{i}.npz", x=pixels(i))
    assert len(opened(tmp_path)) == 6
    assert [len(opened(tmp_path, split=name)) for name in ("train", "val", "test")] == [3, 2, 1]
    assert opened(tmp_path).facts["splits"] == {"train": 3, "val": 2, "test": 1}
    assert opened(tmp_path).strata() == ["train"] * 3 + ["val"] * 2 + ["test"]
    with pytest.raises(UsageError, match="no split"):
        opened(tmp_path, split="trian")


def test_files_named_after_splits_are_splits_only_together(tmp_path):
    np.savez(tmp_path / "train.npz", x=pixels(0, (5, 3)))
    np.savez(tmp_path / "test.npz", x=pixels(1, (2, 3)))
    assert opened(tmp_path, stacked=True).facts["splits"] == {"train": 5, "test": 2}
    np.savez(tmp_path / "input0.npz", x=pixels(2, (2, 3)))
    assert "splits" not in opened(tmp_path).facts


@pytest.mark.parametrize("names", ["x_train y_train x_test y_test", "train_images train_labels val_images val_labels"])
def test_several_splits_in_one_file_are_an_error_with_the_line_to_write(tmp_path, names):
    shapes = [(60, 8, 8), (60,), (10, 8, 8), (10,)]
    np.savez(tmp_path / "mnist.npz", **{name: pixels(0, shape) for name, shape in zip(names.split(), shapes)})
    report = checked(tmp_path / "mnist.npz", depth="index")
    assert report.counts == {"splits-inside": 1} and "numpy.savez('train.npz'" in report.errors[0].message
    with pytest.raises(DataError) as caught:
        opened(tmp_path / "mnist.npz")
    assert caught.value.code == "splits-inside"
    assert len(opened(tmp_path / "mnist.npz", stacked=False)) == 1
    assert len(opened(tmp_path / "mnist.npz", {"splits-inside": "keep"})) == 1
    np.savez(tmp_path / "fine.npz", train_step=np.arange(3), test_time=np.float32(1), x=pixels(0))
    assert not checked(tmp_path / "fine.npz").errors


def test_a_damaged_file_is_met_when_it_is_read_or_dropped(texts):
    (texts / "input3.npz").write_bytes(b"broken")
    with pytest.raises(DataError) as caught:
        opened(texts)
    assert caught.value.code == "archive-broken"
    source = opened(texts, {"archive-broken": "drop"})
    assert len(source) == 11 and source.location(3).file == "input4.npz"


def test_every_problem_of_every_file_is_reported(texts):
    np.savez(texts / "input1.npz", input_ids=np.array([print]), attention_mask=np.array([{}]))
    (texts / "input2.npz").write_bytes((texts / "input0.npz").read_bytes()[:-9])
    (texts / "input4.npz").write_bytes(b"")
    report = checked(texts)
    assert report.counts == {"array-dtype": 2, "archive-broken": 2}
    assert {issue.location.file for issue in report.errors} == {"input1.npz", "input2.npz", "input4.npz"}


def test_files_that_differ_from_the_others(texts):
    np.savez(texts / "input1.npz", input_ids=np.arange(6))
    np.savez(texts / "input2.npz", input_ids=np.arange(6)[None], attention_mask=np.ones(6, np.int64))
    np.savez(texts / "input3.npz", input_ids=np.arange(6.0), attention_mask=np.ones(6, np.int64))
    np.savez(texts / "input4.npz", input_ids=np.arange(9), attention_mask=np.ones(9, np.int64))
    report = checked(texts)
    issues = {(issue.code, issue.location.file) for issue in report.issues}
    assert {("keys-differ", "input1.npz"), ("rank-differs", "input2.npz"), ("dtype-differs", "input3.npz")} <= issues
    assert report.counts["shape-differs"] == 1  # attention_mask; input_ids differs in rank, which says more


def test_values_and_duplicates_are_for_full_depth(images):
    np.savez(images / "input1.npz", x=np.full((3, 4, 4), np.nan, np.float32), label=0)
    np.savez(images / "input2.npz", x=np.zeros((3, 4, 4), np.float32), label=0)
    np.savez_compressed(images / "input3.npz", x=pixels(0), label=0)
    np.savez(images / "input4.npz", x=np.full((3, 4, 4), 7, np.float32), label=0)
    np.savez(images / "input5.npz", x=np.array([[[np.inf, 1]]], np.float32), label=0)
    np.savez(images / "input6.npz", x=np.zeros((0, 4, 4), np.float32), label=0)
    report = checked(images)
    expected = ("array-nan", "array-zero", "duplicate-sample", "array-constant", "array-inf", "array-empty")
    assert {code: report.counts[code] for code in expected} == dict.fromkeys(expected, 1)
    assert set(checked(images, depth="index").counts) == {"shape-differs"}
    duplicate = next(issue for issue in report.issues if issue.code == "duplicate-sample")
    assert duplicate.location.file == "input3.npz" and "input0.npz" in duplicate.message
    nan = next(issue for issue in report.issues if issue.code == "array-nan")
    assert (nan.location.index, nan.location.field) == (1, "x")


def test_values_are_looked_at_while_reading_if_asked_for(images):
    np.savez(images / "input1.npz", x=np.full((3, 4, 4), np.nan, np.float32), label=0)
    assert np.isnan(opened(images)[1]["x"]).all()
    with pytest.raises(SampleError) as caught:
        opened(images, {"array-nan": "drop"})[1]
    assert caught.value.code == "array-nan"
    source = opened(images, {"array-nan": "drop"}, depth="full")
    assert len(source) == 3 and source.location(1).file == "input2.npz"


def test_a_leading_axis_of_1_everywhere_is_noted(tmp_path):
    for i in range(3):
        np.savez(tmp_path / f"{i}.npz", x=pixels(i, (1, 3, 4, 4)))
    assert checked(tmp_path).counts == {"batch-suspected": 1}
    assert opened(tmp_path)[0]["x"].shape == (1, 3, 4, 4)  # and never cut


def test_other_files_are_noted_but_a_manifest_is_not(images):
    (images / "manifest.json").write_text("{}")
    (images / "notes.txt").write_text("hello")
    assert checked(images).counts == {"file-ignored": 1}


@pytest.mark.parametrize("prefix", ["", "train"])
def test_outputs_next_to_the_inputs_are_not_read(tmp_path, prefix):
    for kind in ("input", "output"):
        (tmp_path / prefix / f"sample-{kind}s").mkdir(parents=True)
        for i in range(3):
            write_npz(tmp_path / prefix / f"sample-{kind}s" / f"{kind}{i}.npz", {kind: pixels(i)})
    report = checked(tmp_path)
    assert report.counts == {"outputs-ignored": 1} and report.facts["samples"] == 3
    assert list(opened(tmp_path)[0]) == ["input"]
    assert len(opened(tmp_path / prefix / "sample-outputs")) == 3


def test_a_tar_of_samples_is_read_in_place(images, tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for i in (2, 0, 1):
            archive.add(images / f"input{i}.npz", f"data/train/input{i}.npz")
    source = opened(tmp_path / "a.tar")
    assert [source.location(index).file for index in range(3)] == [f"train/input{i}.npz" for i in range(3)]
    np.testing.assert_array_equal(source[1]["x"], pixels(1))
    assert source.facts["splits"] == {"train": 3}


def test_pipes_and_links_do_not_hang(images):
    os.mkfifo(images / "pipe.npz")
    os.symlink("nowhere", images / "link.npz")
    assert checked(images).counts == {"special-file": 1, "link-broken": 1}


@pytest.mark.parametrize("stacked", ["False", 1])
def test_an_option_of_the_wrong_kind_is_refused(images, stacked):
    with pytest.raises(UsageError, match="stacked"):
        opened(images, stacked=stacked)


def test_many_rows_without_a_value_are_a_bomb(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((4_000_000_000, 0), np.float32))
    assert checked(tmp_path / "a.npz", stacked=True).counts == {"array-bomb": 1}


# Repair and writer


def test_a_clean_dataset_is_copied_unchanged(images, tmp_path):
    source = opened(images, "repair", depth="full")
    assert npz.write(source, tmp_path / "copy") == []
    for path in images.iterdir():
        assert (tmp_path / "copy" / path.name).read_bytes() == path.read_bytes()


def test_a_repair_renames_where_that_is_certain_and_leaves_the_damaged_out(texts, tmp_path):
    np.savez(texts / "input1.npz", **{"Input-IDs:0": np.arange(6) + 50, "attention_mask": np.ones(6, np.int64)})
    np.savez(texts / "input2.npz", tokens=np.arange(6), attention_mask=np.ones(6, np.int64))
    (texts / "input3.npz").write_bytes(b"")
    source, _ = scan_source(str(texts), on_error={"*": "repair", "archive-broken": "drop"}, depth="full")
    assert list(source[1]) == ["input_ids", "attention_mask"]
    changes = npz.write(source, tmp_path / "copy")
    assert changes == ["input3.npz: left out", "input1.npz: renamed 'Input-IDs:0' to 'input_ids'"]
    copy = checked(tmp_path / "copy")
    assert copy.counts == {"keys-differ": 1}  # "tokens" may be anything
    assert opened(tmp_path / "copy")[1]["input_ids"][0] == 50


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0/\\"), max_size=12)
DTYPES = st.sampled_from(["?", "i1", "<i8", ">i4", "u2", "<f2", ">f4", "f8", "c8", "<U3", "S2"])


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_what_is_written_is_read_by_us_and_by_numpy(tmp_path_factory, data):
    names = data.draw(st.lists(NAMES.filter(lambda name: name != ".."), unique=True, min_size=1, max_size=4))
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
    arrays = {name: data.draw(hnp.arrays(data.draw(DTYPES), shapes)) for name in names}
    path = tmp_path_factory.mktemp("w") / "file.npz"
    write_npz(path, arrays)
    ours = read_file(path)
    with np.load(path, allow_pickle=False) as theirs:
        assert list(ours) == names == theirs.files
        for name, array in arrays.items():
            np.testing.assert_array_equal(ours[name], theirs[name])
            assert ours[name].shape == array.shape and ours[name].dtype == array.dtype.newbyteorder("=")


def test_names_that_savez_cannot_take(tmp_path):
    arrays = {name: np.arange(3) for name in ("file", "args", "kwds", "allow_pickle", "a/b", "x.npy", "input:0", "")}
    write_npz(tmp_path / "file.npz", arrays)
    assert list(read_file(tmp_path / "file.npz")) == list(arrays)


def test_the_same_arrays_give_the_same_bytes(tmp_path):
    for name in ("a.npz", "b.npz"):
        write_npz(tmp_path / name, {"x": np.ones((2, 3)), "y": np.asfortranarray(np.eye(3))})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_types_numpy_lacks_are_widened(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    write_npz(tmp_path / "a.npz", {"x": np.ones(2, ml_dtypes.bfloat16), "q": np.ones(2, ml_dtypes.int4)})
    arrays = read_file(tmp_path / "a.npz")
    assert (arrays["x"].dtype, arrays["q"].dtype) == (np.float32, np.int8)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("x", np.array([{}], object)),
        ("x", np.zeros(1, [("a", "i4")])),
        ("../x", np.ones(1)),
        ("/x", np.ones(1)),
        ("a\0b", np.ones(1)),
        ("\ud800", np.ones(1)),
    ],
)
def test_what_cannot_be_stored_leaves_nothing_behind(tmp_path, name, array):
    (tmp_path / "a.npz").write_bytes(b"before")
    with pytest.raises(DataError):
        write_npz(tmp_path / "a.npz", {"fine": np.ones(3), name: array})
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
    assert (tmp_path / "a.npz").read_bytes() == b"before"


def test_a_mutated_dataset_ends_in_samples_or_typed_issues(tmp_path):
    npz.example(tmp_path)
    np.save(tmp_path / "bare.npy", pixels(0))
    paths = sorted(tmp_path.iterdir())
    chance = random.Random(11)
    for _ in range(60):
        path = chance.choice(paths)
        before = path.read_bytes()
        raw = bytearray(before)
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        path.write_bytes(raw)
        try:
            source, _ = scan_source(str(tmp_path), data_format="npz", depth="full")
            for index in range(len(source)):
                source[index]
        except FewbitError:
            pass
        path.write_bytes(before)
