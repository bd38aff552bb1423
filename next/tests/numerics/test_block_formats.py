# SPDX-License-Identifier: Apache-2.0
"""Block formats against their definitions, written once more in numpy.

OCP Microscaling Formats (MX) v1.0, section 6.3: X = 2^(floor(log2(max|V|)) - emax), P_i = V_i / X in the element type.
"""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleMode, ScaleType
from numerics_reference import LIBRARIES, ML_DTYPES, fit, host

MX_FLOATS = [Dtype.fp4, Dtype.fp6_e2m3, Dtype.fp6_e3m2, Dtype.fp8_e4m3, Dtype.fp8_e5m2]
EMAX = {Dtype.fp4: 2, Dtype.fp6_e2m3: 2, Dtype.fp6_e3m2: 4, Dtype.fp8_e4m3: 8, Dtype.fp8_e5m2: 15}
BINADES = st.integers(-60, 60)
libraries = st.sampled_from(list(LIBRARIES.values()))
quickly = settings(max_examples=60, deadline=None)


def arrays(width):
    """Numbers of very different sizes, zeros and equal ones among them."""
    elements = st.floats(-2.0, 2.0, width=16)
    return st.integers(1, 3).flatmap(lambda rows: hnp.arrays(np.float32, (rows, width), elements=elements))


def encode(array, x, grid):
    return QTensor.encode(array(x), fit(array(x), grid))


def floor_log2(x):
    return np.frexp(x)[1] - 1


def mx(dtype, group=32, mode=ScaleMode.floor):
    fields = {"scale_type": ScaleType.float8_e8m0fnu, "scale_mode": mode}
    return QuantizationGrid(dtype, QSchemeType.per_group, group_size=group, **fields)


@quickly
@given(libraries, st.sampled_from(MX_FLOATS), arrays(64), BINADES)
def test_mx_floats_are_those_of_the_specification(array, dtype, x, binade):
    x = np.ldexp(x, binade)
    groups = x.reshape(-1, 32)
    amax = np.abs(groups).max(1, keepdims=True)
    shared = np.where(amax > 0, floor_log2(amax) - EMAX[dtype], 0)
    elements = np.clip(np.ldexp(groups, -shared), dtype.lowest, dtype.highest).astype(ML_DTYPES[dtype])
    ours = encode(array, x, mx(dtype))
    assert np.array_equal(host(ours.scale).reshape(-1, 1), shared + 127)
    assert np.array_equal(host(ours.codes()).reshape(-1, 32), elements.view(np.uint8))
    assert np.array_equal(host(ours.dequantize()).reshape(-1, 32), np.ldexp(elements.astype(np.float32), shared))


@quickly
@given(libraries, arrays(64), BINADES)
def test_mxint8_is_that_of_the_specification(array, x, binade):
    x = np.ldexp(x, binade)
    groups = x.reshape(-1, 32)
    amax = np.abs(groups).max(1, keepdims=True)
    shared = np.where(amax > 0, floor_log2(amax), 6)
    integers = np.clip(np.rint(np.ldexp(groups, 6 - shared)), -128, 127)  # elements are 64ths
    ours = encode(array, x, mx(Dtype.int8))
    assert np.array_equal(host(ours.codes()).reshape(-1, 32), integers)
    assert np.array_equal(host(ours.scale).reshape(-1, 1), shared - 6 + 127)
    assert np.array_equal(host(ours.dequantize()).reshape(-1, 32), np.ldexp(integers / 64, shared))


def bfp16(groups):
    """Blocks of eight, int8 mantissas, one exponent; one more if a mantissa would round to 128."""
    amax = np.abs(groups).max(1, keepdims=True)
    shared = np.where(amax > 0, floor_log2(amax) - 6, 0)
    shared = shared + (np.abs(np.rint(np.ldexp(groups, -shared))).max(1, keepdims=True) >= 128)
    return np.rint(np.ldexp(groups, -shared)), shared


@quickly
@given(libraries, arrays(24), BINADES)
def test_bfp16_steps_the_exponent_up_exactly_if_something_rounds_to_128(array, x, binade):
    x = np.ldexp(x, binade)
    integers, shared = bfp16(x.reshape(-1, 8))
    ours = encode(array, x, mx(Dtype.int8, group=8, mode=ScaleMode.even))
    assert np.array_equal(host(ours.codes()).reshape(-1, 8), integers)
    assert np.array_equal(host(ours.scale).reshape(-1, 1), shared + 127)


def test_bfp16_at_every_maximum_around_the_step(array):
    start, stop = np.array([127.499, 127.501], dtype=np.float32).view(np.int32)
    amax = np.arange(start, stop, dtype=np.int32).view(np.float32)
    groups = np.stack([amax, -amax / 3, *np.zeros((6, len(amax)), np.float32)], axis=1)
    for sign in (1, -1):
        integers, shared = bfp16(sign * groups)
        ours = encode(array, sign * groups, mx(Dtype.int8, group=8, mode=ScaleMode.even))
        assert np.array_equal(host(ours.codes()), integers) and np.array_equal(host(ours.scale), shared + 127)
    assert shared.min() == 0 and shared.max() == 1


@quickly
@given(libraries, arrays(48), BINADES)
def test_nvfp4_has_e4m3_scales_under_one_float32(array, x, binade):
    x = np.ldexp(x, binade)
    groups = x.reshape(-1, 16)
    amax = np.abs(groups).max(1, keepdims=True)
    global_scale = amax.max() / np.float32(6 * 448) if amax.any() else np.float32(1)
    raw = amax / np.float32(6) / global_scale
    scale = np.clip(raw, 2.0**-9, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    scale = np.where(amax == 0, np.float32(1), scale)
    elements = np.clip(groups / (scale * global_scale), -6, 6).astype(ml_dtypes.float4_e2m1fn)
    grid = QuantizationGrid(Dtype.fp4, QSchemeType.per_group, group_size=16, scale_type=ScaleType.float8_e4m3fn)
    ours = encode(array, x, grid)
    assert host(ours.global_scale) == global_scale
    stored = host(ours.scale).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.array_equal(stored.reshape(-1, 1), scale)
    assert np.array_equal(host(ours.codes()).reshape(-1, 16), elements.view(np.uint8))
    values = elements.astype(np.float32) * (scale * global_scale)
    assert np.array_equal(host(ours.dequantize()).reshape(-1, 16), values)


@pytest.mark.parametrize("mode", list(ScaleMode))
@pytest.mark.parametrize("dtype", [*MX_FLOATS, Dtype.int8], ids=lambda dtype: dtype.name)
def test_block_formats_at_the_ends_of_float32(dtype, mode, array):
    sizes = np.array([2.0**-149, 2.0**-126, 2.0**-110, 2.0**126, 2.0**127, np.finfo(np.float32).max], dtype=np.float32)
    x = np.repeat(sizes[:, None], 32, axis=1) * np.where(np.arange(32) % 2, 1, -1).astype(np.float32)
    values = host(encode(array, x, mx(dtype, mode=mode)).dequantize())
    assert np.isfinite(values).all()
    normal = (sizes >= 2.0**-110) & (sizes <= 2.0**127)
    assert (np.abs(values - x)[normal] <= np.abs(x)[normal] * 0.26).all()


def test_a_group_that_does_not_divide_has_a_short_last_block(array):
    x = np.ones((2, 40), dtype=np.float32)
    x[:, 32:] = 2.0**-9
    ours = encode(array, x, mx(Dtype.fp4))
    assert ours.scale.shape == (2, 2) and ours.packed.shape == (2, 20)
    assert np.array_equal(host(ours.dequantize()), x)
