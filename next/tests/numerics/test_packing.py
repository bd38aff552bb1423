# SPDX-License-Identifier: Apache-2.0
import math

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.numerics import packing
from fewbit.numerics.packing import pack, unpack
from numerics_reference import LIBRARIES, host

WIDTHS = range(1, 8)


def integers(bits, shape, signed, seed=0):
    low = -(1 << (bits - 1)) if signed else 0
    drawn = np.random.default_rng(seed).integers(low, low + (1 << bits), shape)
    return drawn.astype(np.int8 if signed else np.uint8)


def by_strings(values, bits):
    """The definition, bit by bit: element 0 lowest, bytes filled from their lowest bit."""
    stream = "".join(format(value & (2**bits - 1), f"0{bits}b")[::-1] for value in values)
    return [int(stream[index : index + 8][::-1], 2) for index in range(0, len(stream), 8)]


@pytest.fixture(params=["words", "shifts"])
def both_ways(request, monkeypatch):
    if request.param == "shifts":
        monkeypatch.setattr(packing, "_by_shifts", lambda x: True)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("bits", WIDTHS)
def test_packing_is_a_string_of_bits(bits, signed, array, both_ways):
    for n in (1, 2, 3, 5, 7, 8, 9, 16, 31):
        values = integers(bits, (n,), signed, seed=n)
        packed = pack(array(values), bits)
        assert host(packed).tolist() == by_strings(values.tolist(), bits) and host(packed).dtype == np.uint8
        back = host(unpack(packed, bits, n, signed=signed))
        assert back.dtype == values.dtype and np.array_equal(back, values)


@pytest.mark.parametrize("bits", WIDTHS)
def test_every_pair_survives(bits, array, both_ways):
    every = np.arange(1 << bits, dtype=np.uint8)
    pairs = np.stack(np.meshgrid(every, every), -1).reshape(-1, 2)
    assert np.array_equal(host(unpack(pack(array(pairs), bits), bits, 2, signed=False)), pairs)
    flat = pairs.reshape(-1)
    assert np.array_equal(host(unpack(pack(array(flat), bits), bits, flat.size, signed=False)), flat)


@settings(max_examples=60, deadline=None)
@given(
    array=st.sampled_from(list(LIBRARIES.values())),
    bits=st.sampled_from(WIDTHS),
    lead=st.lists(st.integers(0, 3), max_size=3),
    n=st.integers(0, 40),
    signed=st.booleans(),
)
def test_any_shape_comes_back(array, bits, lead, n, signed):
    values = integers(bits, (*lead, n), signed)
    packed = pack(array(values), bits)
    assert tuple(packed.shape) == (*lead, math.ceil(n * bits / 8))
    assert np.array_equal(host(unpack(packed, bits, n, signed=signed)), values)


def test_four_bits_are_those_of_ml_dtypes_and_onnx(array):
    values = integers(4, (64,), signed=True)
    nibbles = values.astype(ml_dtypes.int4).view(np.uint8) & 15
    assert np.array_equal(host(pack(array(values), 4)), nibbles[::2] | nibbles[1::2] << 4)


@pytest.mark.parametrize("bits", [2, 3, 4, 5])
@pytest.mark.parametrize("width", [64, 61])
def test_large_arrays_are_packed_in_pieces_with_the_same_bytes(bits, width, array, monkeypatch):
    values = integers(bits, (50, width), signed=True)
    expected = host(pack(array(values), bits))
    monkeypatch.setattr(packing, "_CHUNK", 200)
    packed = pack(array(values), bits)
    assert np.array_equal(host(packed), expected)
    assert np.array_equal(host(unpack(packed, bits, width, signed=True)), values)


def test_views_are_packed_like_copies(array):
    values = integers(4, (9, 33), signed=False)
    views = [array(values)[1:, 1:], array(values).T, array(values)[::2, ::3], array(values)[:, 5:6]]
    for view in views:
        copy = array(np.ascontiguousarray(host(view)))
        assert np.array_equal(host(pack(view, 4)), host(pack(copy, 4)))
    packed = pack(array(values), 4)
    assert np.array_equal(host(unpack(packed[3:], 4, 33, signed=False)), values[3:])
    odd_strides = torch.as_strided(torch.arange(8, dtype=torch.uint8), (8, 1), (1, 3))
    assert torch.equal(pack(odd_strides, 4), pack(odd_strides.clone(), 4))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint16", "int32"])
def test_complete_bytes_are_left_alone(dtype, array):
    values = array(np.arange(6, dtype=dtype))
    bits = np.dtype(dtype).itemsize * 8
    assert pack(values, bits) is values and unpack(values, bits, 6, signed=True) is values


def test_wide_integers_give_their_lowest_bits(array):
    values = np.arange(-8, 8, dtype=np.int32)
    assert np.array_equal(host(pack(array(values), 4)), host(pack(array(values.astype(np.int8)), 4)))
