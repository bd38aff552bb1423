# SPDX-License-Identifier: Apache-2.0
"""Reading and writing single `.npz` and `.npy` files: what numpy writes is read, hostile bytes are typed errors."""

import io
import zipfile

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.arrays import files as array_files
from fewbit.data.arrays.files import ArrayError, ArrayFile, parse_header, write_npz
from fewbit.errors import DataError


def read(content, bare=False):
    """All arrays of one file; the first problem is raised."""
    file = ArrayFile.of_bytes(content, bare)
    for problem in file.problems:
        raise problem
    return {name: file.array(name) for name in file.headers}


def code_of(content, bare=False):
    with pytest.raises(ArrayError) as caught:
        read(content, bare)
    return caught.value.type.code


def saved(save=np.savez, **arrays):
    content = io.BytesIO()
    save(content, **arrays)
    return content.getvalue()


def bare_file(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def npy(descr="'<f4'", order="False", shape="(1,)", version=1, text=None):
    """A `.npy` file without values; the header is made of parts, or given."""
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}" if text is None else text
    return b"\x93NUMPY" + bytes((version, 0)) + len(text).to_bytes(2 if version == 1 else 4, "little") + text.encode()


def packed(content, method=zipfile.ZIP_STORED):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", method) as file:
        file.writestr("x.npy", content)
    return archive.getvalue()


@settings(deadline=None, max_examples=60)
@given(hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)), st.booleans())
def test_every_plain_array_of_numpy_is_read(array, fortran):
    if array.dtype.kind in "mMO" or array.dtype.itemsize == 0:
        return
    stored = np.array(array, order="F" if fortran else "C")
    native = array.dtype.newbyteorder("=")
    for save in (np.savez, np.savez_compressed):
        (loaded,) = read(saved(save, x=stored)).values()
        np.testing.assert_array_equal(loaded, array)
        assert loaded.dtype == native and loaded.shape == array.shape
        assert loaded.flags.writeable and loaded.flags.c_contiguous


@pytest.mark.parametrize("version", [1, 2, 3])
def test_headers_of_other_writers_are_read(version):
    python_2 = "{'shape': (2L, 3L), 'descr': '<f4', 'fortran_order': False}"
    compact = '{"descr":"<f4","fortran_order":False,"shape":(2,3)}  \n'
    for head in (
        npy(shape="(2, 3)", version=version),
        *(npy(text=text, version=version) for text in (python_2, compact)),
    ):
        assert parse_header(head).shape == (2, 3)


REFUSED = {
    "array-dtype": [npy("'|O'"), npy("[('a', '<i4')]"), npy("'<V2'"), npy("'<V7'"), npy("'<M8[ns]'"), npy("'<m8'")],
    "array-bomb": [npy(shape=f"({9 * 10**13},)"), npy(shape=f"(0, {10**13})"), npy(shape=f"({'1,' * 40})")],
    "array-header": [
        *(npy(shape=shape) for shape in ("(-1,)", "(3)", "(True,)", "[1]", f"({10**30},)")),
        *(npy(descr) for descr in ("'<q9'", "'<f3'", "'<U0'", "'f4,f4'", "'(9,9)f4'", "7")),
        npy(order="0"), npy(order="False, 'more': 1"), npy("'<f4', 'descr': '<f4'"), npy(text="{'descr': '<f4'}"),
        npy(text="__import__('os').system('true')"), npy(text="(" * 9000), npy(text=""),
        b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00", b"PK\x03\x04", npy(version=9), npy(text=" " * 20_000, version=2),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("code", "content"), [(code, content) for code in REFUSED for content in REFUSED[code]])
def test_a_header_that_is_no_plain_array_is_refused(code, content):
    assert code_of(content, bare=True) == code


def test_bfloat16_as_numpy_writes_it_is_named():
    with pytest.raises(ArrayError, match="bfloat16"):
        read(npy("'<V2'"), bare=True)


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=200))
def test_any_bytes_end_in_arrays_or_a_typed_error(content):
    for raw in (content, npy(text="")[:8] + len(content).to_bytes(2, "little") + content):
        for bare in (True, False):
            file = ArrayFile.of_bytes(raw, bare)
            assert file.problems or file.headers or not bare


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_claim_beyond_the_bytes_allocates_nothing(method):
    assert code_of(packed(npy("'<f8'", shape="(500000000,)"), method)) == "array-size"
    assert code_of(packed(npy("'<f8'", shape="(4000000000, 4000000000)"), method)) == "array-bomb"


def test_arrays_together_stay_within_the_limit(monkeypatch):
    content = saved(x=np.ones(1000), y=np.ones(1000))
    parse_header.cache_clear()
    monkeypatch.setattr(array_files, "ARRAY_BYTES", 10_000)
    assert code_of(content) == "array-bomb"


def test_a_compressed_bomb_is_refused_before_it_is_decompressed(monkeypatch):
    content = saved(np.savez_compressed, x=np.zeros((4 << 20) // 8))
    assert read(content)["x"].nbytes == 4 << 20  # zeros are ordinary below the limit
    monkeypatch.setattr("fewbit.data.members.RATIO_FROM", 1 << 20)
    monkeypatch.setattr("fewbit.data.members.RATIO", 500)
    assert code_of(content) == "expansion-bomb"


def test_a_bool_array_holds_only_bools():
    content = bare_file(np.array([True, False]))[:-2] + b"\x02\x00"
    assert read(content, bare=True)["array"].view(np.uint8).tolist() == [1, 0]


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0/\\"), max_size=12)
DTYPES = st.sampled_from(["?", "i1", "<i8", ">i4", "u2", "<f2", ">f4", "f8", "c8", "<U3", "S2"])


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_what_is_written_is_read_here_and_by_numpy(tmp_path_factory, data):
    names = data.draw(st.lists(NAMES.filter(lambda name: name != ".."), unique=True, min_size=1, max_size=4))
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
    arrays = {name: data.draw(hnp.arrays(data.draw(DTYPES), shapes)) for name in names}
    path = tmp_path_factory.mktemp("w") / "written.npz"
    write_npz(path, arrays)
    loaded = read(path.read_bytes())
    with np.load(path, allow_pickle=False) as theirs:
        assert list(loaded) == list(arrays) == theirs.files
        for name in names:
            np.testing.assert_array_equal(loaded[name], theirs[name])
            assert loaded[name].dtype == arrays[name].dtype.newbyteorder("=")


def test_the_same_arrays_give_the_same_bytes_under_any_name(tmp_path):
    arrays = {name: np.eye(3) for name in ("file", "args", "kwds", "allow_pickle", "a/b", "x.npy", "input:0", "")}
    contents = set()
    for path in (tmp_path / "first.npz", tmp_path / "second.npz"):
        write_npz(path, arrays)
        contents.add(path.read_bytes())
    assert len(contents) == 1 and list(read(contents.pop())) == list(arrays)


def test_types_that_numpy_lacks_are_widened(tmp_path):
    types = pytest.importorskip("ml_dtypes")
    for stored, loaded in ((types.bfloat16, np.float32), (types.int4, np.int8)):
        write_npz(tmp_path / "a.npz", {"x": np.ones(2, stored)})
        assert read((tmp_path / "a.npz").read_bytes())["x"].dtype == loaded


@pytest.mark.parametrize("name", ["../x", "/x", "a\0b", "\ud800", "object", "record"])
def test_what_cannot_be_stored_changes_nothing(tmp_path, name):
    unstorable = {"object": np.array([{}], object), "record": np.zeros(1, [("a", "i4")])}
    path = tmp_path / "a.npz"
    path.write_bytes(b"before")
    with pytest.raises(DataError):
        write_npz(path, {"fine": np.ones(3), name: unstorable.get(name, np.ones(1))})
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == b"before"
