# SPDX-License-Identifier: Apache-2.0
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.numerics import floats
from fewbit.numerics.dtypes import Dtype, Table
from fewbit.numerics.floats import decode, encode, float_codes, power_below, round_to_float, round_to_table
from fewbit.numerics.rounding import RoundType
from numerics.oracle import FINITE_HALVES, FLOATS, HALVES, SMALL, around, magnitudes, settle

NEAREST = [RoundType.half_even, RoundType.round, RoundType.floor]
PATTERNS = [Dtype.fp4, Dtype.fp6_e2m3, Dtype.fp6_e3m2]
TORCH = {
    Dtype.fp8_e4m3: torch.float8_e4m3fn,
    Dtype.fp8_e5m2: torch.float8_e5m2,
    Dtype.float16: torch.float16,
    Dtype.bfloat16: torch.bfloat16,
}


def same_bits(left, right):
    return np.array_equal(np.asarray(left, np.float32).view(np.uint32), np.asarray(right, np.float32).view(np.uint32))


@pytest.fixture(params=[True, False], ids=["casts", "own way"])
def both_ways(request, monkeypatch):
    """With torch's casts where they round as we do, and without."""
    if not request.param:
        monkeypatch.setattr(floats, "_cast_rounds", lambda mode: False)


@pytest.mark.parametrize("mode", NEAREST)
@pytest.mark.parametrize("dtype", SMALL, ids=lambda d: d.name)
def test_every_float16_goes_to_the_value_of_an_exact_search(dtype, mode):
    rounded = round_to_float(torch.from_numpy(FINITE_HALVES), dtype.value, mode)
    assert same_bits(rounded, settle(FINITE_HALVES, dtype, mode))


@pytest.mark.parametrize("dtype", SMALL, ids=lambda d: d.name)
def test_every_float16_gets_the_code_of_ml_dtypes(dtype, both_ways):
    held = np.clip(FINITE_HALVES, dtype.lowest, dtype.highest)
    expected = held.astype(FLOATS[dtype]).view(np.uint8)
    codes = float_codes(torch.from_numpy(FINITE_HALVES), dtype)
    assert codes.dtype is dtype.storage
    assert np.array_equal(codes.view(torch.uint8).numpy(), expected)


@pytest.mark.parametrize("mode", NEAREST)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_every_value_every_middle_and_their_neighbours(dtype, mode, both_ways):
    sizes = around(magnitudes(dtype))
    x = np.concatenate([sizes, -sizes])
    x = x[np.isfinite(x)]
    # The unsigned neighbours of zero are subnormal float32 numbers: they round too.
    assert same_bits(round_to_float(torch.from_numpy(x), dtype.value, mode), settle(x, dtype, mode))


@pytest.mark.parametrize("dtype", TORCH, ids=lambda d: d.name)
def test_inside_the_range_codes_are_torchs_own_casts(dtype, both_ways):
    sizes = around(magnitudes(dtype))
    x = torch.from_numpy(np.concatenate([sizes, -sizes, HALVES]))
    x = x[x.abs() <= dtype.highest]
    whole = torch.uint8 if dtype.bits == 8 else torch.int16
    assert torch.equal(float_codes(x, dtype).view(whole), x.to(TORCH[dtype]).view(whole))


@pytest.mark.parametrize("dtype", PATTERNS, ids=lambda d: d.name)
def test_every_bit_pattern_decodes_and_comes_back(dtype):
    codes = torch.arange(2**dtype.bits, dtype=torch.uint8)
    values = torch.from_numpy(codes.numpy().view(FLOATS[dtype]).astype(np.float32))  # both zeros among them
    assert same_bits(decode(codes, dtype), values)
    assert torch.equal(encode(values, dtype), codes)


@pytest.mark.parametrize("dtype", [Dtype.fp8_e4m3, Dtype.fp8_e5m2], ids=lambda d: d.name)
def test_every_float8_decodes_as_torch_does_also_nan_and_infinity(dtype):
    codes = torch.arange(256, dtype=torch.uint8).view(TORCH[dtype])
    values, expected = decode(codes, dtype), codes.float()
    assert torch.equal(values.isnan(), expected.isnan())
    assert same_bits(values[~values.isnan()], expected[~values.isnan()])


@pytest.mark.parametrize("dtype", [Dtype.float16, Dtype.bfloat16], ids=lambda d: d.name)
def test_every_sixteen_bit_float_is_its_own_code(dtype):
    codes = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(TORCH[dtype])
    finite = codes[codes.isfinite()]
    assert same_bits(decode(finite, dtype), finite.float())
    assert torch.equal(float_codes(finite.float(), dtype).view(torch.int16), finite.view(torch.int16))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("mode", list(RoundType))
def test_infinities_saturate_and_nan_stays(dtype, mode, both_ways):
    x = torch.tensor([math.inf, -math.inf, math.nan, 3.4e38, -3.4e38])
    rounded = round_to_float(x, dtype.value, mode)
    top = dtype.highest
    assert rounded[[0, 1, 3, 4]].tolist() == [top, -top, top, -top]
    assert rounded[2].isnan()


@pytest.mark.parametrize("dtype", SMALL, ids=lambda d: d.name)
def test_stochastic_rounding_takes_the_neighbours_in_proportion(dtype):
    grid = magnitudes(dtype)
    low, high = grid[-3], grid[-2]
    for share in (0.25, 0.8):
        x = torch.full((40_000,), low + share * (high - low))
        for sign in (1, -1):
            rounded = round_to_float(sign * x, dtype.value, RoundType.stochastic, seed=5)
            assert rounded.abs().unique().tolist() == [low, high]
            mean = ((rounded.abs() - low) / (high - low)).mean().item()
            exact = (x[0].item() - low) / (high - low)
            assert abs(mean - exact) < 5 * math.sqrt(share * (1 - share) / x.numel())


@given(
    dtype=st.sampled_from(list(FLOATS)),
    x=st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=30),
    mode=st.sampled_from(NEAREST),
)
def test_rounding_is_monotone_and_does_nothing_the_second_time(dtype, x, mode):
    rounded = round_to_float(torch.tensor(sorted(x)), dtype.value, mode)
    assert (rounded.diff() >= 0).all()
    assert same_bits(round_to_float(rounded, dtype.value, mode), rounded)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False), min_size=1))
def test_the_power_below_is_that_of_frexp(numbers):
    for x, power in zip(numbers, power_below(torch.tensor(numbers)).tolist()):
        assert power == (math.ldexp(0.5, math.frexp(x)[1]) if x else 0)


def nearest_index(x, values, mode):
    """By exact distances, one number at a time."""
    gaps = [abs(Fraction(x) - Fraction(value)) for value in values]
    best = [i for i, gap in enumerate(gaps) if gap == min(gaps)]
    if mode is RoundType.floor:
        return max([i for i, value in enumerate(values) if value <= x], default=0)
    if len(best) == 1:
        return best[0]
    return next(i for i in best if i % 2 == 0) if mode is RoundType.half_even else best[int(x > 0)]


# The second one has ties that float32 can hold, one of them at zero.
@pytest.mark.parametrize("number", [Dtype.nf4.value, Table(2, (-1.0, -0.25, 0.25, 1.0))], ids=["nf4", "ties"])
@pytest.mark.parametrize("mode", NEAREST)
def test_tables_settle_by_exact_distance(number, mode):
    values = np.array(number.values)
    x = np.concatenate(
        [around(values), np.linspace(-1.2, 1.2, 500, dtype=np.float32), [-0.0, 0.0, math.inf, -math.inf]]
    )
    x = x.astype(np.float32)
    expected = [nearest_index(value, number.values, mode) for value in np.clip(x, -1, 1).tolist()]
    assert round_to_table(torch.from_numpy(x), number, mode).tolist() == expected


def test_tables_round_stochastically_in_proportion_and_keep_their_own_values():
    number = Dtype.nf4.value
    own = torch.tensor(number.values).repeat(500)
    assert torch.equal(
        round_to_table(own, number, RoundType.stochastic, seed=2), torch.arange(16, dtype=torch.uint8).repeat(500)
    )
    low, high = number.values[9:11]
    index = round_to_table(torch.full((40_000,), 0.7 * low + 0.3 * high), number, RoundType.stochastic, seed=2)
    assert index.unique().tolist() == [9, 10]
    assert abs(index.float().mean().item() - 9.3) < 5 * math.sqrt(0.21 / 40_000)


def test_the_values_of_a_table_stay_at_the_largest_random_number_too(monkeypatch):
    monkeypatch.setattr(floats, "uniform", lambda shape, seed, device: torch.full(shape, 1 - 2.0**-24))
    own = torch.tensor(Dtype.nf4.value.values)
    assert round_to_table(own, Dtype.nf4.value, RoundType.stochastic).tolist() == list(range(16))


def test_table_codes_decode_to_their_values():
    codes = torch.arange(16, dtype=torch.uint8).reshape(2, 8)
    assert torch.equal(decode(codes, Dtype.nf4), torch.tensor(Dtype.nf4.value.values).reshape(2, 8))
