# SPDX-License-Identifier: Apache-2.0
import ml_dtypes
import numpy as np
import pytest
import torch

from fewbit.numerics.dtypes import Dtype, Float
from numerics.oracle import FLOATS

INTEGERS = [dtype for dtype in Dtype if dtype.is_integer]
ML_INTEGERS = {"int2": ml_dtypes.int2, "uint2": ml_dtypes.uint2, "int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4}


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_integers_have_the_range_their_name_says(dtype):
    bits = int(dtype.name.removeprefix("u").removeprefix("int"))
    assert dtype.bits == bits and dtype.signed == (not dtype.name.startswith("u"))
    assert (dtype.lowest, dtype.highest) == (
        (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if dtype.signed else (0, 2**bits - 1)
    )
    kept = torch.iinfo(dtype.storage)
    assert kept.min <= dtype.lowest and dtype.highest <= kept.max
    if dtype.name in ML_INTEGERS:
        info = ml_dtypes.iinfo(ML_INTEGERS[dtype.name])
        assert (info.min, info.max) == (dtype.lowest, dtype.highest)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_floats_have_the_extremes_of_ml_dtypes(dtype):
    info = ml_dtypes.finfo(FLOATS[dtype])
    number = dtype.value
    assert (dtype.highest, dtype.lowest, dtype.bits) == (float(info.max), float(info.min), info.bits)
    assert 2.0**number.smallest_exponent == float(info.smallest_normal)
    assert number.mantissa == info.nmant
    assert number.largest_exponent == np.floor(np.log2(float(info.max)))


def test_nf4_holds_the_sixteen_ascending_values_of_its_paper():
    values = torch.tensor(Dtype.nf4.value.values)
    assert len(values) == 16 and (values.diff() > 0).all()
    assert (values[0], values[7], values[-1]) == (-1, 0, 1)
    # Means of neighbouring quantiles of a normal, 8 levels below zero and 9 above it, scaled to end at 1.
    normal = torch.distributions.Normal(0.0, 1.0)
    offset = 0.9677083
    above = normal.icdf(torch.linspace(offset, 0.5, 9)[:-1]).flip(0)
    below = -normal.icdf(torch.linspace(offset, 0.5, 8)[:-1])
    expected = torch.cat([below, torch.zeros(1), above]) / above[-1]
    assert torch.allclose(values, expected, atol=2e-4)


def test_unsigned_floats_begin_at_zero():
    assert Float(5, 3, 114688.0, signed=False).bits == 8
    assert [Dtype.fp4.signed, Dtype.nf4.signed, Dtype.uint4.signed] == [True, True, False]
    assert [d.has_nan for d in (Dtype.fp8_e4m3, Dtype.bfloat16, Dtype.fp4, Dtype.int8)] == [True, True, False, False]


def test_casts_are_the_wide_floats_alone():
    assert [dtype for dtype in Dtype if dtype.is_cast] == [Dtype.float16, Dtype.bfloat16, Dtype.float32]
