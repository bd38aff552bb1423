# SPDX-License-Identifier: Apache-2.0
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from fewbit.numerics import floats
from fewbit.numerics.dtypes import CodebookFormat, Dtype, value_table
from fewbit.numerics.floats import (
    float_bits,
    float_values,
    power_below,
    quantize_to_codebook,
    quantize_to_float,
    round_to_float,
)
from fewbit.numerics.rounding import RoundType
from numerics_reference import (
    FINITE_FLOAT16,
    ML_DTYPES,
    SMALL_FLOATS,
    around,
    host,
    magnitudes,
    nearest_values,
    same_bits,
)

DETERMINISTIC = [RoundType.half_even, RoundType.round, RoundType.floor]
by_name = {"ids": lambda member: member.name}


@pytest.fixture(params=[True, False], ids=["native casts", "own arithmetic"])
def natively(request, monkeypatch):
    """With the library's casts, and as a traced graph computes."""
    if not request.param:
        monkeypatch.setattr(floats, "is_compiling", lambda x: True)


@pytest.mark.parametrize("mode", DETERMINISTIC, **by_name)
@pytest.mark.parametrize("dtype", ML_DTYPES, **by_name)
def test_values_and_middles_and_their_neighbors_are_rounded_by_exact_distance(dtype, mode, array):
    sizes = around(magnitudes(dtype)[:: 1 if dtype.bits <= 8 else 7])
    x = np.concatenate([sizes, -sizes, FINITE_FLOAT16[::5]])
    x = x[np.isfinite(x)]
    expected = nearest_values(x, dtype, mode)
    assert same_bits(round_to_float(array(x), dtype.value, mode), expected)
    patterns = quantize_to_float(array(x), dtype, mode)
    assert str(patterns.dtype).removeprefix("torch.") == dtype.storage
    assert same_bits(float_values(patterns, dtype.value), expected)


@pytest.mark.parametrize("dtype", ML_DTYPES, **by_name)
def test_bit_patterns_are_those_of_ml_dtypes(dtype, array, natively):
    sizes = around(magnitudes(dtype)[:: 1 if dtype.bits <= 8 else 7])
    x = np.concatenate([sizes, -sizes, FINITE_FLOAT16])
    random = np.random.default_rng(0).integers(0, 1 << 32, 20_000, dtype=np.uint32).view(np.float32)
    x = np.concatenate([x[np.isfinite(x)], random[np.isfinite(random)], np.float32([0.0, -0.0])])
    with np.errstate(all="ignore"):
        expected = np.clip(x, dtype.lowest, dtype.highest).astype(ML_DTYPES[dtype])
    patterns = host(quantize_to_float(array(x), dtype))
    assert np.array_equal(patterns, expected.view(patterns.dtype))


@pytest.mark.parametrize("dtype", SMALL_FLOATS, **by_name)
def test_every_bit_pattern_has_the_value_of_ml_dtypes_and_encodes_to_itself(dtype, array):
    patterns = np.arange(2**dtype.bits, dtype=np.uint8)
    with np.errstate(invalid="ignore"):
        expected = patterns.view(ML_DTYPES[dtype]).astype(np.float32)
    values = host(float_values(array(patterns), dtype.value))
    assert np.array_equal(np.isnan(values), np.isnan(expected))
    assert same_bits(values[~np.isnan(values)], expected[~np.isnan(values)])
    finite = np.isfinite(expected)
    assert np.array_equal(host(float_bits(array(expected[finite]), dtype.value)), patterns[finite])
    table = np.array(value_table(dtype.value), np.float32)
    assert np.array_equal(table, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [Dtype.float16, Dtype.bfloat16], **by_name)
def test_every_16_bit_float_is_its_own_pattern(dtype, array):
    patterns = np.arange(1 << 16, dtype=np.uint16)
    expected = patterns.view(ML_DTYPES[dtype]).astype(np.float32)
    finite = np.isfinite(expected)
    assert same_bits(host(float_values(array(patterns[finite]), dtype.value)), expected[finite])
    assert np.array_equal(host(quantize_to_float(array(expected[finite]), dtype)), patterns[finite])


@pytest.mark.parametrize("mode", list(RoundType), **by_name)
@pytest.mark.parametrize("dtype", ML_DTYPES, **by_name)
def test_infinities_saturate_and_nan_stays(dtype, mode, array, natively):
    x = array(np.array([math.inf, -math.inf, 3.4e38, -3.4e38, math.nan], np.float32))
    ends = [dtype.highest, -dtype.highest] * 2
    rounded = host(round_to_float(x, dtype.value, mode))
    assert rounded[:4].tolist() == ends and np.isnan(rounded[4])
    if dtype.has_nan:
        values = host(float_values(quantize_to_float(x, dtype, mode), dtype.value))
        assert values[:4].tolist() == ends and np.isnan(values[4])


@pytest.mark.parametrize("dtype", SMALL_FLOATS, **by_name)
def test_stochastic_rounding_takes_the_neighbors_in_proportion(dtype, array):
    low, high = magnitudes(dtype)[-3:-1]
    for share in (0.25, 0.8):
        x = np.full(40_000, low + share * (high - low), np.float32)
        rounded = np.abs(host(round_to_float(array(-x), dtype.value, RoundType.stochastic, seed=5)))
        assert np.unique(rounded).tolist() == [low, high]
        mean, exact = ((rounded - low) / (high - low)).mean(), (float(x[0]) - low) / (high - low)
        assert abs(mean - exact) < 5 * math.sqrt(share * (1 - share) / x.size)


def test_the_power_below_is_that_of_frexp(array):
    x = np.random.default_rng(1).integers(0, 1 << 32, 2000, dtype=np.uint32).view(np.float32)
    x = x[np.isfinite(x) & (np.abs(x) >= 2.0**-126)]
    expected = [math.ldexp(0.5, math.frexp(value)[1]) for value in x.tolist()]
    assert host(power_below(array(x))).tolist() == expected
    assert host(power_below(array(np.float32([0.0, -0.0])))).tolist() == [0, 0]


def nearest_index(x, values, mode):
    """By exact distances."""
    distances = [abs(Fraction(x) - Fraction(value)) for value in values]
    best = [index for index, distance in enumerate(distances) if distance == min(distances)]
    if mode is RoundType.floor:
        return max([index for index, value in enumerate(values) if value <= x], default=0)
    if len(best) == 1:
        return best[0]
    return next(index for index in best if index % 2 == 0) if mode is RoundType.half_even else best[int(x > 0)]


# The second one has ties that float32 can hold, one of them at zero.
@pytest.mark.parametrize("number", [Dtype.nf4.value, CodebookFormat(2, (-1.0, -0.25, 0.25, 1.0))], ids=["nf4", "ties"])
@pytest.mark.parametrize("mode", DETERMINISTIC, **by_name)
def test_codebooks_round_by_exact_distance(number, mode, array):
    special = [-0.0, 0.0, math.inf, -math.inf]
    x = np.concatenate([around(np.array(number.values)), np.linspace(-1.2, 1.2, 500), special]).astype(np.float32)
    expected = [nearest_index(value, number.values, mode) for value in np.clip(x, -1, 1).tolist()]
    assert host(quantize_to_codebook(array(x), number, mode)).tolist() == expected


def test_codebooks_round_stochastically_in_proportion_and_hold_their_own_values(array, monkeypatch):
    number = Dtype.nf4.value
    low, high = number.values[9:11]
    x = array(np.full(40_000, 0.7 * low + 0.3 * high, np.float32))
    index = host(quantize_to_codebook(x, number, RoundType.stochastic, seed=2))
    assert np.unique(index).tolist() == [9, 10] and abs(index.mean() - 9.3) < 5 * math.sqrt(0.21 / 40_000)
    own = array(np.array(number.values, np.float32))
    assert host(quantize_to_codebook(own, number, RoundType.stochastic, seed=2)).tolist() == list(range(16))
    monkeypatch.setattr(floats, "uniform", lambda shape, seed, x: x * 0 + (1 - 2.0**-24))
    assert host(quantize_to_codebook(own, number, RoundType.stochastic)).tolist() == list(range(16))


def test_torch_casts_agree():
    x = torch.from_numpy(FINITE_FLOAT16)
    for dtype in (Dtype.fp8_e4m3, Dtype.fp8_e5m2):
        inside = x[x.abs() <= dtype.highest]
        native = inside.to(getattr(torch, dtype.native)).view(torch.uint8)
        assert torch.equal(quantize_to_float(inside, dtype), native)
