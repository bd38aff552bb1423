# SPDX-License-Identifier: Apache-2.0
"""The block formats against their definitions, written once more in numpy.

OCP Microscaling Formats (MX) v1.0, section 6.3: X = 2^(floor(log2(max|V|)) - emax), P_i = V_i / X in the element type.
"""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleMode, ScaleType
from numerics.oracle import FLOATS
from numerics.pinning import pin

MX_FLOATS = [Dtype.fp4, Dtype.fp6_e2m3, Dtype.fp6_e3m2, Dtype.fp8_e4m3, Dtype.fp8_e5m2]
EMAX = {Dtype.fp4: 2, Dtype.fp6_e2m3: 2, Dtype.fp6_e3m2: 4, Dtype.fp8_e4m3: 8, Dtype.fp8_e5m2: 15}
BINADES = st.integers(-60, 60)


def arrays(*sides):
    """Numbers of very different sizes, zeros and equal ones among them."""
    numbers = st.floats(-2.0, 2.0, width=16)
    return hnp.arrays(
        np.float32, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=3), elements=numbers
    ).flatmap(lambda lead: hnp.arrays(np.float32, (len(lead), *sides), elements=numbers))


def encode(x, grid):
    x = torch.from_numpy(x)
    return QTensor.encode(x, pin(x, grid))


def floor_log2(x):
    return np.frexp(x)[1] - 1


def mx(dtype, group=32, mode=ScaleMode.floor):
    return Grid(dtype, QSchemeType.per_group, group_size=group, scale_type=ScaleType.float8_e8m0fnu, scale_mode=mode)


@settings(max_examples=200)
@given(st.sampled_from(MX_FLOATS), arrays(64), BINADES)
def test_mx_floats_are_those_of_the_specification(dtype, x, binade):
    x = np.ldexp(x, binade)
    groups = x.reshape(-1, 32)
    amax = np.abs(groups).max(1, keepdims=True)
    shared = np.where(amax > 0, floor_log2(amax) - EMAX[dtype], 0)
    scaled = np.ldexp(groups, -shared)
    elements = np.clip(scaled, dtype.lowest, dtype.highest).astype(FLOATS[dtype])
    ours = encode(x, mx(dtype))
    assert np.array_equal(ours.scale.numpy().reshape(-1, 1), shared + 127)
    assert np.array_equal(ours.codes().view(torch.uint8).numpy().reshape(-1, 32), elements.view(np.uint8))
    assert np.array_equal(ours.dequantize().numpy().reshape(-1, 32), np.ldexp(elements.astype(np.float32), shared))


@given(arrays(64), BINADES)
def test_mxint8_is_that_of_the_specification(x, binade):
    x = np.ldexp(x, binade)
    groups = x.reshape(-1, 32)
    amax = np.abs(groups).max(1, keepdims=True)
    shared = np.where(amax > 0, floor_log2(amax), 6)
    codes = np.clip(np.rint(np.ldexp(groups, 6 - shared)), -128, 127)  # elements are 64ths
    ours = encode(x, mx(Dtype.int8))
    assert np.array_equal(ours.codes().numpy().reshape(-1, 32), codes)
    assert np.array_equal(ours.scale.numpy().reshape(-1, 1), shared - 6 + 127)
    assert np.array_equal(ours.dequantize().numpy().reshape(-1, 32), np.ldexp(codes / 64, shared))


def bfp16(groups):
    """Blocks of eight, int8 mantissas, one exponent; one more if any mantissa would round to 128."""
    amax = np.abs(groups).max(1, keepdims=True)
    shared = np.where(amax > 0, floor_log2(amax) - 6, 0)
    bumped = np.abs(np.rint(np.ldexp(groups, -shared))).max(1, keepdims=True) >= 128
    shared = shared + bumped
    return np.rint(np.ldexp(groups, -shared)), shared


@given(arrays(24), BINADES)
def test_bfp16_with_mode_even_bumps_the_exponent_just_where_something_rounds_to_128(x, binade):
    x = np.ldexp(x, binade)
    codes, shared = bfp16(x.reshape(-1, 8))
    ours = encode(x, mx(Dtype.int8, group=8, mode=ScaleMode.even))
    assert np.array_equal(ours.codes().numpy().reshape(-1, 8), codes)
    assert np.array_equal(ours.scale.numpy().reshape(-1, 1), shared + 127)


def test_bfp16_at_every_maximum_around_the_bump():
    # Every float32 from 127.4 to 127.6, as the largest of a block: the bump is at 127.5 exactly.
    start, stop = np.array([127.499, 127.501], dtype=np.float32).view(np.int32)
    amax = np.arange(start, stop, dtype=np.int32).view(np.float32)
    groups = np.stack([amax, -amax / 3, *np.zeros((6, len(amax)), np.float32)], axis=1)
    for sign in (1, -1):
        codes, shared = bfp16(sign * groups)
        ours = encode(sign * groups, mx(Dtype.int8, group=8, mode=ScaleMode.even))
        assert np.array_equal(ours.codes().numpy(), codes) and np.array_equal(ours.scale.numpy(), shared + 127)
    assert shared.min() == 0 and shared.max() == 1


@given(arrays(48), BINADES)
def test_nvfp4_has_e4m3_scales_under_one_float32_scale(x, binade):
    x = np.ldexp(x, binade)
    groups = x.reshape(-1, 16)
    amax = np.abs(groups).max(1, keepdims=True)
    super_scale = amax.max() / np.float32(6 * 448) if amax.any() else np.float32(1)
    raw = amax / np.float32(6) / super_scale
    scale = np.clip(raw, 2.0**-9, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    scale = np.where(amax == 0, np.float32(1), scale)
    step = scale * super_scale
    elements = np.clip(groups / step, -6, 6).astype(ml_dtypes.float4_e2m1fn)
    grid = Grid(Dtype.fp4, QSchemeType.per_group, group_size=16, scale_type=ScaleType.float8_e4m3fn)
    ours = encode(x, grid)
    assert ours.super_scale.item() == super_scale
    assert ours.scale.dtype is torch.float8_e4m3fn
    assert np.array_equal(ours.scale.float().numpy().reshape(-1, 1), scale)
    assert np.array_equal(ours.codes().numpy().reshape(-1, 16), elements.view(np.uint8))
    assert np.array_equal(ours.dequantize().numpy().reshape(-1, 16), elements.astype(np.float32) * step)


@pytest.mark.parametrize("mode", list(ScaleMode))
@pytest.mark.parametrize("dtype", [*MX_FLOATS, Dtype.int8], ids=lambda d: d.name)
def test_block_formats_at_the_ends_of_float32(dtype, mode):
    sizes = np.array([2.0**-149, 2.0**-126, 2.0**-110, 2.0**126, 2.0**127, np.finfo(np.float32).max], dtype=np.float32)
    x = np.repeat(sizes[:, None], 32, axis=1) * np.where(np.arange(32) % 2, 1, -1).astype(np.float32)
    values = encode(x, mx(dtype, mode=mode)).dequantize().numpy()
    assert np.isfinite(values).all()
    normal = (sizes >= 2.0**-110) & (sizes <= 2.0**127)
    assert (np.abs(values - x)[normal] <= np.abs(x)[normal] * 0.26).all()


def test_a_group_that_does_not_divide_has_a_short_last_block():
    x = np.ones((2, 40), dtype=np.float32)
    x[:, 32:] = 2.0**-9
    ours = encode(x, mx(Dtype.fp4))
    assert ours.scale.shape == (2, 2) and ours.packed.shape == (2, 20)
    assert np.array_equal(ours.dequantize().numpy(), x)
