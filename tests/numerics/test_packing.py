# SPDX-License-Identifier: Apache-2.0
import math

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.numerics import packing
from fewbit.numerics.dtypes import Dtype, Integer
from fewbit.numerics.packing import is_packed, pack, unpack
from fewbit.numerics.tiles import TILE

PACKED = [dtype for dtype in Dtype if is_packed(dtype)]
CODES = {d: (d.lowest, d.highest) if isinstance(d.value, Integer) else (0, 2**d.bits - 1) for d in PACKED}


def random_codes(dtype, shape, seed=0):
    low, high = CODES[dtype]
    drawn = torch.randint(int(low), int(high) + 1, shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(dtype.storage)


def by_strings(codes, bits):
    """The definition, bit by bit: element 0 lowest, bytes filled from their lowest bit."""
    stream = "".join(format(code & (2**bits - 1), f"0{bits}b")[::-1] for code in codes)
    return [int(stream[i : i + 8][::-1], 2) for i in range(0, len(stream), 8)]


@pytest.fixture(params=["words", "shifts"])
def both_ways(request, monkeypatch):
    if request.param == "shifts":
        monkeypatch.setattr(packing, "_pack_by_words", lambda codes, bits: shifts(codes, bits))
        monkeypatch.setattr(packing, "_unpack_by_words", packing._unpack_by_shifts)

    def shifts(codes, bits):
        count, _ = packing._group(bits)
        return packing._pack_by_shifts(codes.reshape(*codes.shape[:-1], -1, count), bits)


@pytest.mark.parametrize("dtype", PACKED, ids=lambda d: d.name)
def test_packing_is_that_of_a_string_of_bits(dtype, both_ways):
    for n in (1, 2, 3, 5, 7, 8, 9, 16, 31):
        codes = random_codes(dtype, (n,), seed=n)
        packed = pack(codes, dtype)
        assert packed.tolist() == by_strings(codes.tolist(), dtype.bits)
        assert packed.dtype is torch.uint8
        back = unpack(packed, dtype, n)
        assert back.dtype is dtype.storage and back.tolist() == codes.tolist()


@pytest.mark.parametrize("dtype", [d for d in PACKED if d.bits < 8], ids=lambda d: d.name)
def test_every_pair_of_codes_survives(dtype, both_ways):
    low, high = CODES[dtype]
    every = torch.arange(low, high + 1)
    pairs = torch.cartesian_prod(every, every).to(dtype.storage)
    assert torch.equal(unpack(pack(pairs, dtype), dtype, 2), pairs)
    flat = pairs.flatten()
    assert torch.equal(unpack(pack(flat, dtype), dtype, flat.numel()), flat)


@given(
    dtype=st.sampled_from(PACKED),
    lead=st.lists(st.integers(0, 3), max_size=3),
    n=st.integers(0, 40),
    seed=st.integers(0, 9),
)
def test_any_shape_comes_back(dtype, lead, n, seed):
    codes = random_codes(dtype, (*lead, n), seed)
    packed = pack(codes, dtype)
    assert packed.shape == (*lead, math.ceil(n * dtype.bits / 8))
    assert unpack(packed, dtype, n).tolist() == codes.tolist()


@pytest.mark.parametrize("n", [512, 512 + 3, TILE * 2])
@pytest.mark.parametrize(
    "dtype", [Dtype.int4, Dtype.uint2, Dtype.int3, Dtype.fp6_e2m3, Dtype.uint12], ids=lambda d: d.name
)
def test_large_tensors_are_packed_piece_by_piece_with_the_same_bytes(dtype, n):
    codes = random_codes(dtype, (TILE * 2 // n + 1, n))
    packed = pack(codes, dtype)
    rows = [0, len(codes) // 2, -1]
    assert torch.equal(packed[rows], torch.stack([pack(codes[row], dtype) for row in rows]))
    assert torch.equal(unpack(packed, dtype, n).int(), codes.int())


def test_codes_at_odd_addresses_and_strides_and_of_wider_types():
    codes = random_codes(Dtype.int4, (5, 33))
    for view in (codes[:, 1:], codes.T, codes[::2, ::3], codes[1:, 3:19]):
        assert torch.equal(pack(view, Dtype.int4), pack(view.clone(memory_format=torch.contiguous_format), Dtype.int4))
    assert torch.equal(pack(codes.long(), Dtype.int4), pack(codes, Dtype.int4))
    packed = pack(codes, Dtype.int4)
    assert torch.equal(unpack(packed.T.contiguous().T, Dtype.int4, 33), codes)


def test_whole_bytes_come_back_as_they_are():
    for dtype in (Dtype.int8, Dtype.uint16, Dtype.fp8_e4m3, Dtype.bfloat16, Dtype.int32):
        codes = torch.zeros(3, dtype=dtype.storage)
        assert pack(codes, dtype) is codes and unpack(codes, dtype, 3) is codes


@pytest.mark.parametrize("name", ["int2", "uint2", "int4", "uint4"])
def test_signs_are_those_of_ml_dtypes(name):
    dtype, theirs = Dtype[name], getattr(ml_dtypes, name)
    bytes_ = torch.arange(256, dtype=torch.uint8)
    count = 8 // dtype.bits
    ours = unpack(bytes_, dtype, 256 * count).numpy()
    fields = (bytes_.numpy()[:, None] >> (dtype.bits * np.arange(count))) & (2**dtype.bits - 1)
    assert np.array_equal(ours, fields.flatten().astype(theirs).astype(np.int8))


@pytest.mark.parametrize("dtype", [Dtype.int2, Dtype.int3, Dtype.int4])
def test_a_row_that_was_a_column_is_packed(dtype):
    """Turned round, one column has strides of one along both axes, and still counts as contiguous."""
    column = torch.tensor([[1], [-1], [0], [1], [-2], [1], [0], [-1]], dtype=torch.int8)
    assert torch.equal(pack(column.T, dtype), pack(column.T.clone(memory_format=torch.contiguous_format) + 0, dtype))
    assert torch.equal(unpack(pack(column.T, dtype), dtype, 8), column.T)
