# SPDX-License-Identifier: Apache-2.0
"""Files without zeros: every bit comes back, tied tensors lie there once, and damage is told with file and tensor."""

import weakref

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import nn

import fewbit
from fewbit.errors import DataError
from fewbit.modules import compact_file
from fewbit.modules.compact_header import contents
from fewbit.modules.tensor_file import Entry, same_bits

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.int64,
    torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


def _entries(tensors):
    return [Entry(name, t.dtype, tuple(t.shape), lambda t=t: t) for name, t in tensors.items()]


def _sparse(share, shape, dtype=torch.float32, seed=0):
    made = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=made)
    return values.masked_fill(torch.rand(shape, generator=made) < share, 0).to(dtype)


def _write(path, tensors):
    return compact_file.write(path, _entries(tensors))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 5), max_size=3),
    st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    st.integers(0, 9),
)
def test_every_bit_comes_back(tmp_path_factory, dtype, shape, share, seed):
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape)) * dtype.itemsize
    content = rng.integers(0, 2 if dtype is torch.bool else 256, size).astype(np.uint8)
    content[rng.random(size) < share] = 0
    tensor = torch.from_numpy(content).view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
    path = tmp_path_factory.mktemp("c") / "a.compact.safetensors"
    _write(path, {"t": tensor, "u": tensor + 0 if dtype is torch.int8 else tensor})
    found = dict(compact_file.read(path))
    assert list(found) == ["t", "u"] and same_bits(found["t"], tensor)


def test_scalars_empty_tensors_and_negative_zeros(tmp_path):
    tensors = {
        "scalar": torch.tensor(-0.0),
        "empty": torch.empty(0, 3),
        "minus": torch.tensor([-0.0] * 300 + [0.0] * 300 + [1.0, float("nan")]),
        "whole": torch.tensor(7),
    }
    _write(tmp_path / "a", tensors)
    found = dict(compact_file.read(tmp_path / "a"))
    assert all(same_bits(found[name], tensor) for name, tensor in tensors.items())
    assert bool(torch.signbit(found["scalar"])) and found["empty"].shape == (0, 3)


def test_sizes_are_told_truly(tmp_path):
    tensors = {
        "half": _sparse(0.5, (64, 512)),
        "most": _sparse(0.9, (64, 512), torch.float16),
        "full": _sparse(0, (9,)),
    }
    _write(tmp_path / "a", tensors)
    kept = contents(tmp_path / "a")
    for name, share in (("half", 0.5), ("most", 0.1)):
        dense, stored = kept[name].dense_bytes, kept[name].stored_bytes
        assert dense == tensors[name].nbytes
        assert 0.7 * share * dense < stored < share * 1.05 * dense + tensors[name].numel() / 8
    with safe_open(tmp_path / "a", framework="pt") as file:  # a second reader sees the pieces
        seen = [file.get_tensor(name).numel() for name in sorted(file.keys())]
    assert sum(seen) == sum(each.stored_bytes for each in kept.values())


def test_one_tensor_is_held_at_a_time(tmp_path):
    held = []

    def read():
        assert not held or held[-1]() is None  # the one before is gone
        content = np.zeros((64, 64), np.float32)
        held.append(weakref.ref(content))
        return torch.from_numpy(content)

    compact_file.write(tmp_path / "a", [Entry(name, torch.float32, (64, 64), read) for name in "abc"])
    assert len(held) == 3


def test_the_same_bytes_in_every_run(tmp_path):
    for name in "ab":
        _write(tmp_path / name, {"t": _sparse(0.6, (40, 40))})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("keep", [0, 4, 60, 400, -1])
def test_a_file_that_is_cut_short_is_refused(tmp_path, keep):
    path = tmp_path / "a"
    _write(path, {"first": _sparse(0.6, (40, 40)), "last": _sparse(0.6, (40, 40), seed=1)})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError) as caught:
        dict(compact_file.read(path))
    assert str(path) in caught.value.where
    assert keep != -1 or caught.value.where.endswith("last")


def test_every_changed_byte_is_noticed(tmp_path):
    path = tmp_path / "a"
    _write(path, {"only": _sparse(0.6, (12, 12))})
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    for place in range(start, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DataError) as caught:
            dict(compact_file.read(path))
        assert caught.value.where.endswith("a: only")


def _rewritten(path, change):
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    header = orjson.loads(whole[8:start])
    described = orjson.loads(header["__metadata__"]["tensors"])
    change(header, described)
    header["__metadata__"]["tensors"] = orjson.dumps(described).decode()
    text = orjson.dumps(header)
    path.write_bytes(len(text).to_bytes(8, "little") + text + whole[start:])


@pytest.mark.parametrize(
    "change",
    [
        lambda header, described: described["t"].update(shape=[1 << 40, 1 << 20]),
        lambda header, described: described["t"].update(shape=[12, 13]),
        lambda header, described: described["t"].update(shape=[-1]),
        lambda header, described: described["t"].update(dtype="nonsense"),
        lambda header, described: described["t"].update(number=5),
        lambda header, described: described["t"].update(unit=8),
        lambda header, described: described.update(other=described["t"]),
        lambda header, described: described.clear(),
        lambda header, described: header["0.values"].update(data_offsets=[9, 3]),
        lambda header, described: header["0.values"].update(data_offsets=["a", 3]),
        lambda header, described: header.update({"0.signs": header["0.values"]}),
    ],
)
def test_a_header_that_contradicts_the_file_is_refused(tmp_path, change):
    path = tmp_path / "a"
    _write(path, {"t": _sparse(0.6, (12, 12))})
    _rewritten(path, change)
    with pytest.raises(DataError) as caught:
        dict(compact_file.read(path))
    assert str(path) in caught.value.where


class _Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 64)
        self.head = nn.Linear(64, 50, bias=False)
        self.head.weight = self.table.weight
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, ids):
        return self.head(self.table(ids)) * self.scale


def test_a_model_comes_back_from_a_folder_and_tied_weights_lie_there_once(tmp_path):
    model = _Tied().eval()
    with torch.no_grad():
        model.table.weight.copy_(_sparse(0.7, (50, 64)))
    fewbit.export(model, tmp_path / "m", compact=True)
    kept = contents(tmp_path / "m" / "fewbit.compact.safetensors")
    assert sorted(kept) == ["scale", "table.weight"]
    assert kept["table.weight"].stored_bytes < 0.36 * 50 * 64 * 4
    again = fewbit.load(tmp_path / "m", _Tied())
    ids = torch.arange(5)[None]
    assert torch.equal(again(ids), model(ids)) and again.head.weight is again.table.weight


def test_codes_of_a_quantized_model_come_back(tmp_path):
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    with torch.no_grad():
        model[0].weight.copy_(_sparse(0.8, (64, 64)))
    small = fewbit.compress_weights(model, mode="int8_sym")
    fewbit.export(small, tmp_path / "m", compact=True)
    x = torch.randn(3, 64)
    assert torch.equal(fewbit.load(tmp_path / "m", model, freeze=True)(x), small(x))
    kept = contents(tmp_path / "m" / "fewbit.compact.safetensors")["0.weight_packed"]
    assert kept.stored_bytes < 0.36 * kept.dense_bytes
    path = tmp_path / "m" / "fewbit.compact.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="inside of this tensor"):
        fewbit.load(tmp_path / "m", model)
