# SPDX-License-Identifier: Apache-2.0
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.scales import (
    ScaleMode,
    ScaleType,
    has_sign,
    load_scale,
    power_from_maximum,
    round_scale,
    store_scale,
)

KINDS = list(ScaleType)
SIZES = st.floats(min_value=2.0**-149, max_value=2.0**127, width=32)
BYTES = torch.arange(256, dtype=torch.uint8)


def e5m3(code):
    """Five exponent bits with bias 15, three of mantissa, no sign, no infinity; all ones is no number."""
    exponent, fraction = divmod(code, 8)
    return math.ldexp(fraction, -17) if exponent == 0 else math.ldexp(8 + fraction, exponent - 18)


def test_every_e8m0_byte_reads_as_ml_dtypes_does():
    theirs = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    for kind in (ScaleType.float8_e8m0fnu, ScaleType.pof2):
        assert np.array_equal(load_scale(BYTES, kind).numpy(), theirs, equal_nan=True)
        assert torch.equal(store_scale(load_scale(BYTES[:-1], kind), kind), BYTES[:-1])


def test_every_e5m3_byte_reads_as_its_definition_says():
    values = load_scale(BYTES, ScaleType.float8_e5m3)
    assert values[:-1].tolist() == [e5m3(code) for code in range(255)]
    assert values[-1].isnan()
    assert torch.equal(store_scale(values[:-1], ScaleType.float8_e5m3), BYTES[:-1])


@settings(max_examples=200)
@given(st.sampled_from(KINDS), st.lists(SIZES, min_size=1, max_size=20), st.booleans())
def test_rounded_scales_are_kept_exactly_and_are_never_zero(kind, sizes, negative):
    scale = torch.tensor(sizes) * (-1 if negative and has_sign(kind) else 1)
    rounded = round_scale(scale, kind)
    assert torch.equal(load_scale(store_scale(rounded, kind), kind), rounded)
    assert (rounded != 0).all() and rounded.isfinite().all() and torch.equal(rounded.sign(), scale.sign())
    assert torch.equal(round_scale(rounded, kind), rounded)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_extremes_stay_usable(kind):
    smallest, largest = round_scale(torch.tensor([0.0, math.inf]), kind).tolist()
    assert smallest > 0 and math.isfinite(largest)
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


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_nan_stays_nan_in_every_type_and_in_its_bytes(kind):
    """As a number it would turn a block that holds one into zeros, without a word."""
    given = torch.tensor([math.nan, -math.nan, 1.0])
    rounded = round_scale(given, kind)
    assert rounded.isnan().tolist() == [True, True, False]
    assert load_scale(store_scale(rounded, kind), kind).isnan().tolist() == [True, True, False]


@pytest.mark.parametrize("mode", list(ScaleMode))
def test_the_shared_exponent_of_nan_is_nan(mode):
    for dtype in Dtype:
        assert power_from_maximum(torch.tensor([math.nan, 1.0]), dtype, mode).isnan().tolist() == [True, False]


@given(st.lists(SIZES, min_size=1, max_size=30))
def test_small_float_scales_are_the_nearest_there_are(sizes):
    scales = torch.tensor(sizes)
    tables = {
        ScaleType.float8_e5m3: [e5m3(code) for code in range(1, 255)],
        ScaleType.float8_e4m3fn: np.arange(1, 127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(float).tolist(),
    }
    for kind, values in tables.items():
        for scale, rounded in zip(scales.tolist(), round_scale(scales, kind).tolist()):
            assert abs(rounded - scale) == min(abs(value - scale) for value in values)


def nearest_power(x):
    """The power of two nearest in the logarithm, in exact arithmetic: 2^k with 2^(2k-1) < x^2 <= 2^(2k+1)."""
    k = math.frexp(x)[1] - 1
    return k + 1 if Fraction(x) ** 2 > Fraction(2) ** (2 * k + 1) else k


@given(st.floats(min_value=2.0**-126, max_value=2.0**126, width=32))
def test_powers_of_two_are_nearest_in_the_logarithm(x):
    assert round_scale(torch.tensor([x]), ScaleType.pof2).item() == 2.0 ** nearest_power(x)


def test_the_border_between_two_powers_is_sharp():
    root = np.float32(math.sqrt(2))
    for x in (np.nextafter(root, np.float32(0)), root, np.nextafter(root, np.float32(2))):
        assert round_scale(torch.tensor([float(x)]), ScaleType.pof2).item() == 2.0 ** nearest_power(float(x))


ELEMENTS = [
    d for d in Dtype if d.name in ("fp4", "fp6_e2m3", "fp6_e3m2", "fp8_e4m3", "fp8_e5m2", "int8", "int4", "int2")
]
MODES = (ScaleMode.floor, ScaleMode.ceil, ScaleMode.even)
MAXIMA = st.floats(min_value=2.0**-100, max_value=2.0**126, width=32)


def top_exponent(dtype):
    """Of the largest element, which is below 2^(bits-1) for an integer: the table of the specification, section 5.3."""
    known = {"fp4": 2, "fp6_e2m3": 2, "fp6_e3m2": 4, "fp8_e4m3": 8, "fp8_e5m2": 15}
    return known.get(dtype.name, dtype.bits - 2)


@settings(max_examples=300)
@given(st.sampled_from(ELEMENTS), MAXIMA)
def test_the_three_modes_of_shared_exponents(dtype, amax):
    floor, ceil, even = (power_from_maximum(torch.tensor([amax]), dtype, mode).item() for mode in MODES)
    exponent = math.frexp(amax)[1] - 1
    assert floor == 2.0 ** (exponent - top_exponent(dtype))
    assert ceil * dtype.highest >= amax > ceil / 2 * dtype.highest
    mantissa = dtype.bits - 2 if dtype.is_integer else dtype.value.mantissa
    # Rounded half up to the element's mantissa; a tie at the top of the binade is a tie with an even number above it.
    units = math.floor(Fraction(amax) / Fraction(2) ** (exponent - mantissa) + Fraction(1, 2))
    assert even == floor * (2 if units == 2 ** (mantissa + 1) else 1)


@pytest.mark.parametrize("mode", list(ScaleMode))
def test_shared_exponents_of_extreme_maxima_stay_in_range(mode):
    amax = torch.tensor([0.0, 2.0**-149, 2.0**-126, 2.0**127, float(np.finfo(np.float32).max)])
    for dtype in (*ELEMENTS, Dtype.int16, Dtype.int32, Dtype.bfloat16, Dtype.nf4):
        scale = power_from_maximum(amax, dtype, mode)
        assert (scale >= 2.0**-126).all() and (scale <= 2.0**127).all()
        assert torch.equal(scale, load_scale(store_scale(scale, ScaleType.float8_e8m0fnu), ScaleType.float8_e8m0fnu))


def test_tables_end_at_one():
    amax = torch.tensor([1.0, 1.4, 1.6, 3.9])
    powers = {mode: power_from_maximum(amax, Dtype.nf4, mode).tolist() for mode in ScaleMode}
    assert powers == {ScaleMode.floor: [1, 1, 1, 2], ScaleMode.even: [1, 1, 2, 4], ScaleMode.ceil: [1, 2, 2, 4]}


def test_the_older_name_of_float32_scales():
    assert ScaleType["float"] is ScaleType.float32
