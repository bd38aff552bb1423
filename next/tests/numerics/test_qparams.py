# SPDX-License-Identifier: Apache-2.0
"""Scales and zero points from ranges."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import QParams, QuantizationGrid, fake_quantize, qparams_from_min_max, quantize
from fewbit.numerics.scales import ScaleMode, ScaleType, load_scale, store_scale
from numerics_reference import FLOAT32_MAX, LIBRARIES, fit, host, normal

ENDS = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
INTEGERS = [dtype for dtype in Dtype if dtype.is_integer and dtype is not Dtype.int32]
libraries = st.sampled_from(list(LIBRARIES.values()))
quickly = settings(max_examples=60, deadline=None)
by_name = {"ids": lambda member: member.name}


def floats(*values):
    return np.array(values, np.float32)


def of_range(array, low, high, grid, block=(1,)):
    return qparams_from_min_max(array(floats(low)), array(floats(high)), grid, block)


def values(array, numbers, qparams):
    return host(fake_quantize(array(floats(*numbers)), qparams))


@quickly
@given(libraries, st.sampled_from(INTEGERS), ENDS, ENDS)
def test_asymmetric_scales_and_zero_points_follow_the_formula(array, dtype, one, other):
    low, high = np.float32(min(one, other, 0.0)), np.float32(max(one, other, 0.0))
    qparams = of_range(array, low, high, QuantizationGrid(dtype, symmetric=False))
    steps = np.float32(dtype.highest - dtype.lowest)
    scale = max((high - low) / steps, np.float32(2.0**-126)) if high > low else np.float32(1)
    zero = np.clip(dtype.lowest - np.rint(low / scale), dtype.lowest, dtype.highest)
    assert host(qparams.scale).item() == scale and host(qparams.zero_point).item() == zero


@quickly
@given(libraries, st.sampled_from(INTEGERS), ENDS, ENDS)
def test_symmetric_scales_follow_the_formula_and_unsigned_types_have_zero_in_the_middle(array, dtype, one, other):
    amax = np.float32(max(abs(one), abs(other)))
    qparams = of_range(array, min(one, other), max(one, other), QuantizationGrid(dtype))
    half = np.float32((2**dtype.bits - 1) / 2)
    assert host(qparams.scale).item() == (max(amax / half, np.float32(2.0**-126)) if amax else 1)
    if dtype.signed:
        assert qparams.zero_point is None
    else:
        assert host(qparams.zero_point).item() == 2 ** (dtype.bits - 1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", [Dtype.int8, Dtype.uint8], **by_name)
def test_eight_bit_scales_are_those_of_torchs_observer(dtype, symmetric):
    from torch.ao.quantization.observer import MinMaxObserver

    kind = {Dtype.int8: torch.qint8, Dtype.uint8: torch.quint8}[dtype]
    scheme = torch.per_tensor_symmetric if symmetric else torch.per_tensor_affine
    for seed in range(30):
        x = normal(20, seed) * np.float32(10.0 ** (seed % 7 - 3)) + np.float32(seed % 3)
        observer = MinMaxObserver(dtype=kind, qscheme=scheme)
        observer(torch.from_numpy(x))
        scale, zero = observer.calculate_qparams()
        ours = fit(x, QuantizationGrid(dtype, symmetric=symmetric))
        assert ours.scale.item() == scale.item()
        assert (0 if ours.zero_point is None else ours.zero_point.item()) == zero.item()


@quickly
@given(libraries, st.lists(FINITE, min_size=1, max_size=8), st.data())
def test_zero_is_exact_and_no_value_overflows(array, numbers, data):
    dtype = data.draw(st.sampled_from([dtype for dtype in Dtype if dtype is not Dtype.int32]))
    kind = data.draw(st.sampled_from(ScaleType))
    full = data.draw(st.booleans()) and kind.signed
    grid = QuantizationGrid(dtype, symmetric=data.draw(st.booleans()), scale_type=kind, full_range=full)
    x = array(floats(*numbers, 0.0))
    qparams = fit(x, grid)
    scale = host(qparams.scale)
    assert (np.abs(scale) >= 2.0**-126).all() and np.isfinite(scale).all()
    assert np.array_equal(host(load_scale(store_scale(qparams.scale, kind), kind)), scale)
    result = host(fake_quantize(x, qparams))
    assert np.isfinite(result).all() and result[-1] == 0


@pytest.mark.parametrize("kind", list(ScaleType), **by_name)
def test_a_block_of_zeros_has_scale_one_and_stays_zero(kind, array):
    for dtype in Dtype:
        for symmetric in (True, False):
            qparams = of_range(array, 0.0, 0.0, QuantizationGrid(dtype, symmetric=symmetric, scale_type=kind), (3,))
            assert host(qparams.scale).item() == 1 and host(qparams.step).item() == 1
            assert values(array, [0, 0, 0], qparams).tolist() == [0, 0, 0]


@pytest.mark.parametrize("value", [1.0, -3.7, 1e-30, 1e30, 123456.789, -0.0])
def test_a_constant_block_is_exact_with_a_float_zero_point_and_half_a_step_off_without(value, array):
    for dtype in (Dtype.int8, Dtype.uint4, Dtype.int2):
        x = [value] * 4
        free = of_range(array, value, value, QuantizationGrid(dtype, symmetric=False, float_zero=True), (4,))
        assert np.array_equal(values(array, x, free), floats(*x))
        for symmetric in (True, False):
            qparams = of_range(array, value, value, QuantizationGrid(dtype, symmetric=symmetric), (4,))
            assert (np.abs(values(array, x, qparams) - floats(*x)) <= host(qparams.step) * 0.5001).all()


def test_a_float_zero_point_spends_every_integer_on_the_data(array):
    x = array(floats(10.0, 10.1, 10.2, 10.3))
    grid = QuantizationGrid(Dtype.uint2, symmetric=False, float_zero=True)
    assert host(quantize(x, fit(x, grid))).tolist() == [0, 1, 2, 3]
    assert not QuantizationGrid(Dtype.uint2, symmetric=True, float_zero=True).free_zero
    short = array(np.concatenate([np.full(4, 10.0), [10.3, 10.1]]).astype(np.float32))
    low = host(fit(short, grid, (4,)).zero_point)
    assert low[1] < -90, "a short block is not padded with zeros, which would widen its range"


@pytest.mark.parametrize(("low", "high", "zero"), [(2.0, 6.0, 0), (-6.0, -2.0, 255), (0.0, 1.0, 0), (-1.0, 0.0, 255)])
def test_one_sided_data_uses_the_complete_type(low, high, zero, array):
    qparams = of_range(array, low, high, QuantizationGrid(Dtype.uint8, symmetric=False))
    assert host(qparams.zero_point).item() == zero
    assert host(qparams.scale).item() == np.float32(max(abs(low), abs(high))) / np.float32(255)


def test_subnormal_ranges_get_the_smallest_scale(array):
    for grid in (QuantizationGrid(Dtype.int8), QuantizationGrid(Dtype.uint8, symmetric=False)):
        qparams = of_range(array, -(2.0**-140), 2.0**-139, grid, (2,))
        assert host(qparams.scale).item() == 2.0**-126
        assert np.abs(values(array, [-(2.0**-140), 2.0**-139], qparams)).tolist() == [0, 0]


@pytest.mark.parametrize("kind", list(ScaleType), **by_name)
def test_the_largest_floats_come_out_finite(kind, array):
    """The lowest integer of int2 is twice the highest: with a scale of 2^127 it would be infinite."""
    ends = [(-3e38, 3e38), (1e38, 3e38), (-FLOAT32_MAX, -1e38), (-1e38, 3e38)]
    for mode in ScaleMode:
        for dtype in Dtype:
            for symmetric, full in ((True, False), (False, False), (True, kind.signed)):
                grid = QuantizationGrid(dtype, symmetric=symmetric, full_range=full, scale_type=kind, scale_mode=mode)
                for low, high in ends:
                    assert np.isfinite(values(array, [low, high], of_range(array, low, high, grid, (2,)))).all()
    wide = of_range(array, -FLOAT32_MAX, FLOAT32_MAX, QuantizationGrid(Dtype.uint8, symmetric=False))
    assert host(wide.scale).item() == np.float32(2.0**127) / np.float32(127.5), "ranges end at 2^127"


@pytest.mark.parametrize("kind", list(ScaleType), **by_name)
def test_nan_in_a_block_comes_out_as_nan(kind, array):
    x = array(np.array([[1.0, math.nan, -2.0], [1.0, 0.5, -2.0]], np.float32))
    for dtype in Dtype:
        for symmetric in (True, False):
            grid = QuantizationGrid(dtype, symmetric=symmetric, scale_type=kind)
            qparams = fit(x, grid, (1, 3))
            fake, stored = host(fake_quantize(x, qparams)), host(QTensor.encode(x, qparams).dequantize())
            assert np.isnan(fake[0]).any() and np.array_equal(np.isnan(fake), np.isnan(stored))
            assert grid.two_level or np.isfinite(fake[1]).all()


def test_scales_that_float16_cannot_hold_saturate_and_clip(array):
    grid = QuantizationGrid(Dtype.int8, scale_type=ScaleType.float16)
    qparams = of_range(array, -1e9, 1e9, grid, (3,))
    assert host(qparams.scale).item() == 65504
    assert host(quantize(array(floats(1e9, -1e9, 65504.0)), qparams)).tolist() == [127, -128, 1]
    assert host(of_range(array, -1e-9, 1e-9, grid).scale).item() == 2.0**-24


@pytest.mark.parametrize("kind", [ScaleType.float16, ScaleType.bfloat16, ScaleType.pof2, ScaleType.float8_e5m3])
def test_zero_points_fit_the_rounded_scale(kind, array):
    qparams = of_range(array, -0.3, 1.0, QuantizationGrid(Dtype.uint8, symmetric=False, scale_type=kind), (3,))
    step, zero = host(qparams.scale).item(), host(qparams.zero_point).item()
    assert zero == np.rint(np.float32(0.3) / np.float32(step))
    top = values(array, [-0.3, 0.0, 1.0], qparams)[2]
    assert abs(top - min(1.0, (255 - zero) * step)) <= step / 2 + 1e-6


def test_asymmetric_grids_with_e8m0_scales_take_the_nearest_power(array):
    for mode in ScaleMode:
        grid = QuantizationGrid(Dtype.uint8, symmetric=False, scale_type=ScaleType.float8_e8m0fnu, scale_mode=mode)
        qparams = of_range(array, -1.0, 2.0, grid)  # 3 / 255 is 1.51 * 2^-7, beyond the border at 1.41
        assert (host(qparams.scale).item(), host(qparams.zero_point).item()) == (2.0**-6, 64)
        assert host(of_range(array, -0.9, 1.8, grid).scale).item() == 2.0**-7


def test_the_zero_point_of_negative_int32_fits_its_type(array):
    x = array(floats(-3.0, -1.0))
    stored = QTensor.encode(x, fit(x, QuantizationGrid(Dtype.int32, symmetric=False)))
    assert host(stored.zero_point).item() == 2**31 - 128
    assert np.allclose(host(stored.dequantize()), [-3, -1], atol=1e-6)


@quickly
@given(libraries, ENDS.filter(bool), ENDS.filter(bool))
def test_full_range_gives_the_extreme_of_either_sign_the_lowest_integer(array, one, other):
    low, high = min(one, other, 0.0), max(one, other, 0.0)
    extreme = low if -low >= high else high
    for dtype in (Dtype.int2, Dtype.int4, Dtype.int8) if abs(extreme) >= 2.0**-100 else ():
        qparams = of_range(array, low, high, QuantizationGrid(dtype, full_range=True), (2,))
        assert host(quantize(array(floats(extreme, 0.0)), qparams)).tolist() == [dtype.lowest, 0]
        assert (host(qparams.scale).item() < 0) == (high > -low)
        assert math.isclose(values(array, [extreme, 0.0], qparams)[0], extreme, rel_tol=1e-6)


def test_full_range_means_nothing_to_unsigned_asymmetric_and_float_grids(array):
    assert host(of_range(array, -2.0, 2.0, QuantizationGrid(Dtype.int4, full_range=True)).scale).item() == 0.25
    others = (QuantizationGrid(Dtype.uint4), QuantizationGrid(Dtype.int4, symmetric=False), QuantizationGrid(Dtype.fp4))
    for grid in others:
        full = grid.replace(full_range=True)
        assert host(of_range(array, -1.0, 2.0, grid).scale) == host(of_range(array, -1.0, 2.0, full).scale)


@pytest.mark.parametrize("kind", list(ScaleType), **by_name)
def test_16_bit_floats_are_plain_casts(kind):
    x = torch.tensor([1e-3, -70000.0, 1 / 3])
    for dtype in (Dtype.float16, Dtype.bfloat16):
        qparams = fit(x, QuantizationGrid(dtype, scale_type=kind))
        native = x.clamp(dtype.lowest, dtype.highest).to(getattr(torch, dtype.native))
        assert qparams.step.item() == 1 and torch.equal(quantize(x, qparams), native.view(torch.uint16))


def test_other_float_types_give_float32_scales():
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        qparams = fit(torch.tensor([-1.0, 0.5], dtype=dtype), QuantizationGrid(Dtype.int8))
        assert qparams.scale.dtype is torch.float32 and qparams.scale.item() == np.float32(1) / np.float32(127.5)


@pytest.mark.parametrize("dtype", [Dtype.fp4, Dtype.int4, Dtype.uint4, Dtype.nf4], **by_name)
@pytest.mark.parametrize("symmetric", [True, False])
def test_two_levels_of_scales(dtype, symmetric, array):
    fields = {"group_size": 16, "symmetric": symmetric}
    grid = QuantizationGrid(dtype, QSchemeType.per_group, **fields, scale_type=ScaleType.float8_e4m3fn)
    x = array(normal((8, 64)) * np.float32(1e-3))
    qparams, free = fit(x, grid), host(fit(x, grid.replace(scale_type=ScaleType.float32)).scale)
    assert qparams.global_scale.shape == () and host(qparams.scale).max() == 448
    # Three bits of mantissa: a sixteenth of a binade at most.
    assert (np.abs(host(qparams.step) - free) <= free * 2.0**-4).all()
    double = qparams_from_min_max(array(-free), array(free), grid, (1, 16), global_scale=qparams.global_scale * 2)
    assert host(double.global_scale) == host(qparams.global_scale) * 2
    plain = of_range(array, -1.0, 1.0, QuantizationGrid(Dtype.int8))
    assert plain.global_scale is None


def test_two_levels_of_tiny_values_never_multiply_to_zero(array):
    grid = QuantizationGrid(Dtype.fp4, scale_type=ScaleType.float8_e4m3fn)
    low = array(floats(-(2.0**-149), 0.0, -(2.0**-120)))
    assert (host(qparams_from_min_max(low, low * 0, grid, (1,)).step) >= 2.0**-126).all()


def test_empty_tensors_have_empty_scales(array):
    nothing = array(np.empty((0, 2), np.float32))
    for kind in ScaleType:
        qparams = qparams_from_min_max(nothing, nothing, QuantizationGrid(Dtype.fp4, scale_type=kind), (1, 16))
        empty = array(np.empty((0, 32), np.float32))
        assert qparams.scale.shape == (0, 2) and quantize(empty, qparams).shape == (0, 32)
        assert fake_quantize(empty, qparams).shape == QTensor.encode(empty, qparams).dequantize().shape == (0, 32)


def test_parts_and_other_shapes_of_the_same_scales(array):
    scale = np.arange(6, dtype=np.float32).reshape(3, 2)
    qparams = QParams(QuantizationGrid(Dtype.uint4, symmetric=False), (1, 4), array(scale), array(scale + 10))
    part, flat = qparams.part(slice(1, 2)), qparams.reshape((4,), (6,))
    assert host(part.scale).tolist() == [[2, 3]] and host(part.zero_point).tolist() == [[12, 13]]
    assert flat.block == (4,) and host(flat.zero_point).tolist() == [10, 11, 12, 13, 14, 15]
