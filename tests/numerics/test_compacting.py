# SPDX-License-Identifier: Apache-2.0
"""Bytes without zeros: the same bits come back, and the size is what the docstring says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fewbit.numerics.compacting import Compact, compacted, read_compact, restored


def _round_trip(content, itemsize, signed):
    kept = compacted(content, itemsize, signed=signed)
    again = read_compact(kept.facts(), kept.pieces)
    assert restored(again, content.nbytes, itemsize).tobytes() == content.tobytes()
    assert kept.nbytes <= content.nbytes
    return kept


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([1, 2, 4, 8, 16]).flatmap(
        lambda size: st.tuples(
            st.just(size),
            arrays.arrays(
                np.uint8,
                st.integers(0, 60).map(lambda n: n * size),
                elements=st.sampled_from([0, 0, 0, 0, 128, 255, 7, 16]),
            ),
        )
    ),
    st.booleans(),
)
def test_the_same_bytes_come_back(case, signed):
    itemsize, content = case
    _round_trip(content, itemsize, signed)


@pytest.mark.parametrize("share", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("kind", ["f4", "f2"])
def test_floats_take_what_is_kept_and_a_bit_an_element(share, kind):
    rng = np.random.default_rng(0)
    values = rng.normal(size=50_000).astype(kind)
    values[rng.permutation(len(values))[: int(share * len(values))]] = 0
    kept = _round_trip(values.view(np.uint8), values.itemsize, True)
    bound = (1 - share) * values.nbytes + len(values) / 8
    assert 0.6 * bound < kept.nbytes <= bound + 8


def test_two_of_four_take_less_than_a_bit_an_element():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(20_000, 4)).astype("f2")
    for row in values:
        row[rng.choice(4, 2, replace=False)] = 0
    kept = _round_trip(values.view(np.uint8).reshape(-1), 2, True)
    assert kept.unit == 16
    assert kept.pieces["mask"].nbytes * 8 / values.size < 0.68  # six choices of four places: 0.646 bits each


def test_negative_zeros_cost_a_bit_each_and_stay_negative():
    rng = np.random.default_rng(2)
    values = rng.normal(size=40_000).astype("f4")
    values *= rng.random(values.shape) < 0.3  # as a mask that is multiplied makes them
    assert np.signbit(values[values == 0]).mean() > 0.4
    kept = _round_trip(values.view(np.uint8), 4, True)
    assert kept.nbytes <= 0.31 * values.nbytes + 2 * len(values) / 8 + 16


def test_one_negative_zero_costs_no_more_than_a_value():
    values = np.random.default_rng(6).normal(size=200_000).astype("f2")
    values[::2] = 0
    plain = _round_trip(values.view(np.uint8), 2, True).nbytes
    values[0] = -0.0
    assert _round_trip(values.view(np.uint8), 2, True).nbytes < plain + 1000  # a bit for each zero would be 12,500


def test_payloads_of_nan_stay():
    values = np.zeros(1000, "u4")
    values[:3] = [0x7FC00001, 0xFF800123, 0x80000000]
    _round_trip(values.view(np.uint8), 4, True)


@pytest.mark.parametrize("zero_point", [0, 128, 119])
def test_codes_leave_out_their_zero_point(zero_point):
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 256, 64_000).astype(np.uint8)
    codes[rng.permutation(len(codes))[:32_000]] = zero_point
    kept = _round_trip(codes, 1, False)
    assert (kept.unit, kept.fill) == (8, zero_point)
    assert kept.nbytes < 0.64 * len(codes)


def test_codes_that_share_a_byte_take_little_more_than_their_entropy():
    rng = np.random.default_rng(4)
    codes = rng.integers(0, 16, 64_000).astype(np.uint8)
    codes[rng.permutation(len(codes))[:48_000]] = 8
    packed = codes[::2] | codes[1::2] << 4
    kept = _round_trip(packed, 1, False)
    shares = np.bincount(codes) / len(codes)
    entropy = -(shares * np.log2(shares)).sum() / 8 * len(codes)
    assert kept.nbytes < 1.1 * entropy < 0.6 * len(packed)


def test_what_contradicts_itself_is_refused():
    rng = np.random.default_rng(5)
    content = rng.normal(size=2000).astype("f4")
    content[rng.random(2000) < 0.7] = 0
    content = content.view(np.uint8)
    kept = compacted(content, 4, signed=True)
    assert kept.unit == 32
    bad_mask = kept.pieces | {"mask": np.packbits(np.ones(2000, bool))}
    for broken, words in [
        (Compact(kept.unit, 0, bad_mask, {k: v for k, v in kept.squeezed.items() if k != "mask"}), "values"),
        (Compact(16, 0, kept.pieces, kept.squeezed), "16 bits"),
        (Compact(32, 1 << 40, kept.pieces, kept.squeezed), "fill"),
        (Compact(32, 0, {"mask": kept.pieces["mask"]}, kept.squeezed), "pieces"),
        (Compact(0, 0, kept.pieces, kept.squeezed), "pieces"),
        (Compact(32, 0, kept.pieces | {"mask": kept.pieces["mask"][:-3]}, kept.squeezed), "mask"),
        (Compact(32, 0, kept.pieces, kept.squeezed | {"values": 7}), "values"),
    ]:
        with pytest.raises(ValueError, match=words):
            restored(broken, 8000, 4)
    with pytest.raises(ValueError, match="mask"):
        restored(kept, 16_000, 4)
    with pytest.raises(ValueError, match="description"):
        read_compact({"unit": "8"}, kept.pieces)


def test_a_large_piece_does_not_shrink_to_nothing():
    kept = compacted(np.zeros(64 << 20, np.uint8), 8, signed=False)
    assert kept.nbytes * 1000 > 64 << 20
