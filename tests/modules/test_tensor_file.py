# SPDX-License-Identifier: Apache-2.0
import json
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from fewbit.errors import DataError
from fewbit.modules import tensor_file
from fewbit.modules.tensor_file import Entry, same_bits
from own_format import PLAIN, raw_tensors

NATIVE = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64,
    torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool,
]  # fmt: skip
AS_BYTES = [torch.complex64, torch.complex128, torch.float8_e8m0fnu, torch.float8_e4m3fnuz]


def some(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A tensor of any dtype with any bits; booleans are 0 or 1."""
    count = int(np.prod(shape)) * dtype.itemsize
    content = np.random.default_rng(count).integers(0, 2 if dtype is torch.bool else 256, count, dtype=np.uint8)
    return torch.from_numpy(content).view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def entries(tensors: dict[str, torch.Tensor]) -> list[Entry]:
    return [Entry(name, t.dtype, tuple(t.shape), lambda t=t: t) for name, t in tensors.items()]


@pytest.fixture
def written(tmp_path):
    """A file with a few tensors, and its table."""
    tensors = {"a.weight": some(torch.int8, 3, 5), "a.scale": some(torch.float32, 3), "b": some(torch.uint16, 2)}
    return tmp_path / "t.safetensors", tensor_file.write(tmp_path / "t.safetensors", entries(tensors)), tensors


@pytest.mark.parametrize("dtype", [*NATIVE, *AS_BYTES], ids=str)
def test_every_dtype_comes_back_bit_by_bit(dtype, tmp_path):
    tensors = {"scalar": some(dtype), "empty": some(dtype, 0, 3), "matrix": some(dtype, 4, 3)}
    tensors["odd"] = torch.zeros(3, dtype=torch.uint8)  # what follows is aligned all the same
    tensors["transposed"] = tensors["matrix"].t()
    table = tensor_file.write(tmp_path / "t.safetensors", entries(tensors))
    found = tensor_file.read(tmp_path, table)
    assert found.keys() == tensors.keys() and all(same_bits(found[name], tensors[name]) for name in tensors)


@given(
    st.dictionaries(st.text(min_size=1), st.tuples(st.sampled_from(NATIVE), st.lists(st.integers(0, 4), max_size=3)))
)
def test_any_names_and_shapes(tmp_path_factory, layout):
    path = tmp_path_factory.mktemp("any") / "t.safetensors"
    layout.pop("__metadata__", None)
    tensors = {name: some(dtype, *shape) for name, (dtype, shape) in layout.items()}
    table = tensor_file.write(path, entries(tensors))
    found = tensor_file.read(path.parent, table)
    assert all(same_bits(found[name], tensors[name]) for name in tensors)
    for name, array in raw_tensors(path).items():  # a second reader
        assert array.tobytes() == bytes(tensors[name].reshape(-1).view(torch.uint8).numpy())


def test_what_is_the_same():
    nan, zero = torch.tensor([float("nan")]), torch.tensor([0.0])
    assert same_bits(nan, nan.clone()) and not same_bits(zero, -zero)
    assert not same_bits(zero, zero.int()) and not same_bits(zero, zero.reshape(1, 1))


def test_the_library_reads_what_we_write_and_every_tensor_is_aligned(written):
    path, _, tensors = written
    with safe_open(path, "pt") as file:
        assert set(file.keys()) == set(tensors) and file.metadata() == {"format": "fewbit"}
        assert all(same_bits(file.get_tensor(name), tensor) for name, tensor in tensors.items())
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    for name, entry in json.loads(content[8 : 8 + length]).items():
        if name != "__metadata__":
            assert entry["data_offsets"][0] % np.dtype(PLAIN[entry["dtype"]]).itemsize == 0


def test_tensors_are_mapped_and_writing_to_one_leaves_the_file_alone(written):
    path, table, tensors = written
    before = path.read_bytes()
    tensor_file.read(path.parent, table)["a.scale"].zero_()
    assert path.read_bytes() == before
    assert same_bits(tensor_file.read(path.parent, table)["a.scale"], tensors["a.scale"])


def test_a_file_is_never_written_over(written):
    path, _, tensors = written
    with pytest.raises(FileExistsError):
        tensor_file.write(path, entries(tensors))


def test_one_changed_bit_names_file_and_tensor(written):
    path, table, _ = written
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # int8 comes last: the end of a.weight
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        tensor_file.read(path.parent, table)
    assert error.value.code == "tensor-changed"
    assert "t.safetensors" in error.value.where and "a.weight" in error.value.where
    assert tensor_file.read(path.parent, table, verify=False).keys() == table.keys()


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda path: path.unlink(), "file-missing"),
        (lambda path: path.write_bytes(b""), "file-unreadable"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "file-unreadable"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "file-unreadable"),
        (lambda path: path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:]), "file-unreadable"),
        (lambda path: path.write_bytes((10).to_bytes(8, "little") + b"[[[[[[[[[["), "file-unreadable"),
    ],
)
def test_damaged_files(written, damage, code):
    path, table, _ = written
    damage(path)
    with pytest.raises(DataError) as error:
        tensor_file.read(path.parent, table)
    assert error.value.code == code and "t.safetensors" in f"{error.value}"


def test_any_damage_ends_in_the_same_tensors_or_a_data_error(written):
    path, table, tensors = written
    content, rng, refused = path.read_bytes(), random.Random(1), 0
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged[: rng.choice([len(damaged), rng.randrange(len(damaged))])])
        try:
            found = tensor_file.read(path.parent, table)
        except DataError:
            refused += 1
        else:
            assert all(same_bits(found[name], tensors[name]) for name in tensors)
    assert refused > 250


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda table: {name: stored for name, stored in table.items() if name != "b"}, "has unknown tensors: b"),
        (lambda table: {**table, "c": table["b"]}, "lacks tensors: c"),
        (lambda table: {**table, "b": table["a.scale"]}, "the tensor is torch.uint16 [2]"),
    ],
)
def test_tensors_that_are_not_what_the_table_says(written, change, what):
    path, table, _ = written
    with pytest.raises(DataError, match=what.replace("[", r"\[").replace("]", r"\]")):
        tensor_file.read(path.parent, change(table))
