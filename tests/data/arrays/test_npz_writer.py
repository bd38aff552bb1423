# SPDX-License-Identifier: Apache-2.0
import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.arrays.npz_archive import read_npz
from fewbit.data.arrays.npz_writer import write_npz
from fewbit.errors import DataError

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0/\\"), max_size=12).filter(
    lambda name: name != ".."
)
DTYPES = st.sampled_from(["?", "i1", "<i8", ">i4", "u2", "<f2", ">f4", "f8", "c8", "<U3", "S2"])


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_what_is_written_is_read_back_by_us_and_by_numpy(tmp_path_factory, data):
    names = data.draw(st.lists(NAMES, unique=True, min_size=1, max_size=4))
    arrays = {
        name: data.draw(hnp.arrays(data.draw(DTYPES), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)))
        for name in names
    }
    path = tmp_path_factory.mktemp("w") / "file.npz"
    write_npz(path, arrays)
    ours = read_npz(path)
    with np.load(path, allow_pickle=False) as theirs:
        assert list(ours) == names == theirs.files
        for name, array in arrays.items():
            np.testing.assert_array_equal(ours[name], theirs[name])
            assert ours[name].shape == array.shape
            assert ours[name].dtype == array.dtype.newbyteorder("=")


def test_a_name_that_savez_cannot_take(tmp_path):
    arrays = {name: np.arange(3) for name in ("file", "args", "kwds", "allow_pickle", "a/b", "x.npy", "input:0", "")}
    write_npz(tmp_path / "file.npz", arrays)
    assert list(read_npz(tmp_path / "file.npz")) == list(arrays)


def test_same_arrays_same_bytes(tmp_path):
    for name in ("a.npz", "b.npz"):
        write_npz(tmp_path / name, {"x": np.ones((2, 3)), "y": np.asfortranarray(np.eye(3))})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_types_numpy_lacks_are_widened(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    write_npz(tmp_path / "a.npz", {"x": np.ones(2, ml_dtypes.bfloat16), "q": np.ones(2, ml_dtypes.int4)})
    arrays = read_npz(tmp_path / "a.npz")
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


def test_a_stopped_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(np.lib.format, "write_array", stop)
    with pytest.raises(KeyboardInterrupt):
        write_npz(tmp_path / "a.npz", {"x": np.ones(3)})
    assert not list(tmp_path.iterdir())
