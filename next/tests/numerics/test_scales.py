# SPDX-License-Identifier: Apache-2.0
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.scales import ScaleMode, ScaleType, load_scale, mx_scale, round_scale, store_scale, stored_dtype
from numerics_reference import LIBRARIES, host

KINDS = list(ScaleType)
SIZES = st.floats(min_value=2.0**-149, max_value=2.0**127, width=32)
BYTES = np.arange(256, dtype=np.uint8)
libraries = st.sampled_from(list(LIBRARIES.values()))
by_name = {"ids": lambda member: member.name}


def floats(*values):
    return np.array(values, np.float32)


def e5m3(pattern):
    """Five exponent bits with bias 15, three of mantissa, no sign, no infinity; all bits set is NaN."""
    exponent, fraction = divmod(pattern, 8)
    return math.ldexp(fraction, -17) if exponent == 0 else math.ldexp(8 + fraction, exponent - 18)


def test_every_stored_byte_reads_as_its_definition(array):
    theirs = BYTES.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    for kind in (ScaleType.float8_e8m0fnu, ScaleType.pof2):
        assert np.array_equal(host(load_scale(array(BYTES), kind)), theirs, equal_nan=True)
        assert np.array_equal(host(store_scale(load_scale(array(BYTES[:-1]), kind), kind)), BYTES[:-1])
    values = load_scale(array(BYTES), ScaleType.float8_e5m3)
    assert host(values)[:-1].tolist() == [e5m3(pattern) for pattern in range(255)] and np.isnan(host(values)[-1])
    assert np.array_equal(host(store_scale(values, ScaleType.float8_e5m3)), BYTES)


@settings(max_examples=60, deadline=None)
@given(libraries, st.sampled_from(KINDS), st.lists(SIZES, min_size=1, max_size=20), st.booleans())
def test_rounded_scales_are_stored_exactly_and_are_never_zero(array, kind, sizes, negative):
    scale = floats(*sizes) * np.float32(-1 if negative and kind.signed else 1)
    rounded = round_scale(array(scale), kind)
    assert np.array_equal(host(load_scale(store_scale(rounded, kind), kind)), host(rounded))
    assert (host(rounded) != 0).all() and np.isfinite(host(rounded)).all()
    assert np.array_equal(np.sign(host(rounded)), np.sign(scale))
    assert np.array_equal(host(round_scale(rounded, kind)), host(rounded))


@pytest.mark.parametrize("kind", KINDS, **by_name)
def test_extremes_and_nan_stay_usable(kind, array):
    """NaN as a number would make a block that holds one into zeros, silently."""
    smallest, largest = host(round_scale(array(floats(0.0, math.inf)), kind)).tolist()
    ends = {
        "float32": (2.0**-126, float(np.finfo(np.float32).max)),
        "float16": (2.0**-24, 65504.0),
        "bfloat16": (2.0**-126, 3.3895313892515355e38),
        "pof2": (2.0**-126, 2.0**127),
        "float8_e8m0fnu": (2.0**-126, 2.0**127),
        "float8_e4m3fn": (2.0**-9, 448.0),
        "float8_e5m3": (2.0**-17, 114688.0),
    }
    assert (smallest, largest) == ends[kind.name]
    rounded = round_scale(array(floats(math.nan, -math.nan, 1.0)), kind)
    assert np.isnan(host(rounded)).tolist() == [True, True, False]
    assert np.isnan(host(load_scale(store_scale(rounded, kind), kind))).tolist() == [True, True, False]


@settings(max_examples=30, deadline=None)
@given(libraries, st.lists(SIZES, min_size=1, max_size=30))
def test_small_float_scales_are_the_nearest_there_are(array, sizes):
    e4m3 = np.arange(1, 127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(float).tolist()
    tables = {ScaleType.float8_e5m3: [e5m3(pattern) for pattern in range(1, 255)], ScaleType.float8_e4m3fn: e4m3}
    scales = floats(*sizes)
    for kind, values in tables.items():
        for scale, rounded in zip(scales.tolist(), host(round_scale(array(scales), kind)).tolist()):
            assert abs(rounded - scale) == min(abs(value - scale) for value in values)


def nearest_power(x):
    """Nearest in the logarithm, in exact arithmetic: 2^k with 2^(2k-1) < x^2 <= 2^(2k+1)."""
    k = math.frexp(x)[1] - 1
    return k + 1 if Fraction(x) ** 2 > Fraction(2) ** (2 * k + 1) else k


@settings(max_examples=50, deadline=None)
@given(libraries, st.floats(min_value=2.0**-126, max_value=2.0**126, width=32))
def test_powers_of_two_are_nearest_in_the_logarithm(array, x):
    root = np.float32(math.sqrt(2))
    for value in (x, *(float(np.nextafter(root, np.float32(end))) for end in (0, 2)), float(root)):
        assert host(round_scale(array(floats(value)), ScaleType.pof2)).item() == 2.0 ** nearest_power(value)


ELEMENTS = [Dtype[name] for name in ("fp4", "fp6_e2m3", "fp6_e3m2", "fp8_e4m3", "fp8_e5m2", "int8", "int4", "int2")]
TOP_EXPONENTS = {"fp4": 2, "fp6_e2m3": 2, "fp6_e3m2": 4, "fp8_e4m3": 8, "fp8_e5m2": 15}  # of the specification


@settings(max_examples=100, deadline=None)
@given(libraries, st.sampled_from(ELEMENTS), st.floats(min_value=2.0**-100, max_value=2.0**126, width=32))
def test_the_three_modes_of_shared_exponents(array, dtype, amax):
    modes = (ScaleMode.floor, ScaleMode.ceil, ScaleMode.even)
    floor, ceil, even = (host(mx_scale(array(floats(amax)), dtype, mode)).item() for mode in modes)
    exponent = math.frexp(amax)[1] - 1
    assert floor == 2.0 ** (exponent - TOP_EXPONENTS.get(dtype.name, dtype.bits - 2))
    assert ceil * dtype.highest >= amax > ceil / 2 * dtype.highest
    mantissa = dtype.bits - 2 if dtype.is_integer else dtype.value.mantissa_bits
    # Rounded half up to the mantissa of the element; a tie at the top of a binade has an even number above it.
    units = math.floor(Fraction(amax) / Fraction(2) ** (exponent - mantissa) + Fraction(1, 2))
    assert even == floor * (2 if units == 2 ** (mantissa + 1) else 1)


@pytest.mark.parametrize("mode", list(ScaleMode), **by_name)
def test_shared_exponents_of_extreme_maxima_stay_in_range(mode, array):
    amax = array(floats(0.0, 2.0**-149, 2.0**-126, 2.0**127, float(np.finfo(np.float32).max), math.nan))
    for dtype in Dtype:
        scale = host(mx_scale(amax, dtype, mode))
        assert (scale[:-1] >= 2.0**-126).all() and (scale[:-1] <= 2.0**127).all() and np.isnan(scale[-1])


def test_codebooks_end_at_one(array):
    amax = array(floats(1.0, 1.4, 1.6, 3.9))
    powers = {mode: host(mx_scale(amax, Dtype.nf4, mode)).tolist() for mode in ScaleMode}
    assert powers == {ScaleMode.floor: [1, 1, 1, 2], ScaleMode.even: [1, 1, 2, 4], ScaleMode.ceil: [1, 2, 2, 4]}


def test_names():
    assert ScaleType["float"] is ScaleType.float32
    assert [kind.name for kind in KINDS if not kind.signed] == ["pof2", "float8_e8m0fnu", "float8_e5m3"]
    assert stored_dtype(ScaleType.float8_e8m0fnu) == "float8_e8m0fnu" and stored_dtype(ScaleType.float32) == "float32"
