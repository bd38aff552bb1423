# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.ao.quantization.observer import MinMaxObserver

from fewbit.numerics.blocks import Blocks, QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams, from_range
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import fake_quantize, quantize
from fewbit.numerics.scales import ScaleMode, ScaleType, has_sign, load_scale, store_scale

FLOAT32_MAX = float(np.finfo(np.float32).max)
ENDS = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)
INTEGERS = [d for d in Dtype if d.is_integer and d is not Dtype.int32]


def pinned(low, high, grid, block=(1,)):
    return from_range(torch.tensor([low]), torch.tensor([high]), grid, block)


@given(st.sampled_from(INTEGERS), ENDS, ENDS)
def test_asymmetric_scales_and_zero_points_follow_the_formula_in_float32(dtype, one, other):
    low, high = np.float32(min(one, other, 0.0)), np.float32(max(one, other, 0.0))
    qparams = pinned(float(low), float(high), Grid(dtype, symmetric=False))
    levels = np.float32(dtype.highest - dtype.lowest)
    scale = max((high - low) / levels, np.float32(2.0**-126)) if high > low else np.float32(1)
    zero = np.clip(dtype.lowest - np.rint(low / scale), dtype.lowest, dtype.highest)
    assert qparams.scale.item() == scale
    assert qparams.zero_point.item() == zero


@given(st.sampled_from(INTEGERS), ENDS, ENDS)
def test_symmetric_scales_follow_the_formula_and_unsigned_types_have_zero_in_the_middle(dtype, one, other):
    amax = np.float32(max(abs(one), abs(other)))
    qparams = pinned(min(one, other), max(one, other), Grid(dtype))
    half = np.float32((2**dtype.bits - 1) / 2)
    assert qparams.scale.item() == (max(amax / half, np.float32(2.0**-126)) if amax else 1)
    assert qparams.zero_point is None if dtype.signed else qparams.zero_point.item() == 2 ** (dtype.bits - 1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", [Dtype.int8, Dtype.uint8], ids=lambda d: d.name)
def test_eight_bit_scales_are_those_of_torchs_observer(dtype, symmetric):
    theirs = {Dtype.int8: torch.qint8, Dtype.uint8: torch.quint8}[dtype]
    scheme = torch.per_tensor_symmetric if symmetric else torch.per_tensor_affine
    for seed in range(50):
        x = torch.randn(20, generator=torch.Generator().manual_seed(seed)) * 10.0 ** (seed % 7 - 3) + seed % 3
        observer = MinMaxObserver(dtype=theirs, qscheme=scheme)
        observer(x)
        scale, zero = observer.calculate_qparams()
        ours = from_range(x.min().reshape(1), x.max().reshape(1), Grid(dtype, symmetric=symmetric), (20,))
        assert ours.scale.item() == scale.item()
        assert (0 if ours.zero_point is None else ours.zero_point.item()) == zero.item()


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8), st.data())
def test_zero_is_exact_and_no_value_ever_overflows(numbers, data):
    dtype = data.draw(st.sampled_from([d for d in Dtype if d is not Dtype.int32]))
    symmetric = data.draw(st.booleans())
    kind = data.draw(st.sampled_from(ScaleType))
    full = data.draw(st.booleans()) and has_sign(kind)
    grid = Grid(dtype, symmetric=symmetric, scale_type=kind, full_range=full)
    x = torch.tensor([*numbers, 0.0])
    qparams = from_range(x.min().reshape(1), x.max().reshape(1), grid, (len(x),))
    assert (qparams.scale.abs() >= 2.0**-126).all() and qparams.scale.isfinite().all()
    assert torch.equal(load_scale(store_scale(qparams.scale, kind), kind), qparams.scale)
    values = fake_quantize(x, qparams)
    assert values.isfinite().all() and values[-1] == 0


@pytest.mark.parametrize("kind", list(ScaleType))
@pytest.mark.parametrize("dtype", list(Dtype), ids=lambda d: d.name)
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_block_of_zeros_has_scale_one_and_stays_zero(dtype, kind, symmetric):
    grid = Grid(dtype, symmetric=symmetric, scale_type=kind)
    qparams = pinned(0.0, 0.0, grid, (3,))
    assert qparams.scale.item() == 1 and qparams.step.item() == 1
    assert torch.equal(fake_quantize(torch.zeros(3), qparams), torch.zeros(3))


@pytest.mark.parametrize("value", [1.0, -3.7, 2.0**-140, 1e-30, 1e30])
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_constant_block_is_off_by_half_a_step_at_most(value, symmetric):
    for dtype in (Dtype.int8, Dtype.uint4, Dtype.int2):
        qparams = pinned(value, value, Grid(dtype, symmetric=symmetric), (4,))
        x = torch.full((4,), value)
        assert ((fake_quantize(x, qparams) - x).abs() <= qparams.step * 0.5001).all()


@pytest.mark.parametrize("value", [1.0, -3.7, 1e-30, 1e30, 123456.789, -0.0])
def test_a_constant_block_is_exact_with_a_free_zero(value):
    for dtype in (Dtype.int8, Dtype.uint4, Dtype.int2):
        x = torch.full((4,), value)
        qparams = from_range(
            x.min().reshape(1), x.max().reshape(1), Grid(dtype, symmetric=False, float_zero=True), (4,)
        )
        assert torch.equal(fake_quantize(x, qparams), x)


def test_a_free_zero_spends_every_code_on_the_data():
    x = torch.tensor([10.0, 10.1, 10.2, 10.3])
    grid = Grid(Dtype.uint2, symmetric=False, float_zero=True)
    qparams = from_range(x.min().reshape(1), x.max().reshape(1), grid, (4,))
    assert quantize(x, qparams).tolist() == [0, 1, 2, 3]
    assert torch.allclose(fake_quantize(x, qparams), x, atol=1e-5)
    assert Grid(Dtype.uint2, symmetric=True, float_zero=True).free_zero is False


@pytest.mark.parametrize(("low", "high", "zero"), [(2.0, 6.0, 0), (-6.0, -2.0, 255), (0.0, 1.0, 0), (-1.0, 0.0, 255)])
def test_one_sided_data_uses_the_whole_type(low, high, zero):
    qparams = pinned(low, high, Grid(Dtype.uint8, symmetric=False))
    assert qparams.zero_point.item() == zero
    assert qparams.scale.item() == np.float32(max(abs(low), abs(high))) / np.float32(255)


def test_denormal_ranges_get_the_smallest_scale():
    for grid in (Grid(Dtype.int8), Grid(Dtype.uint8, symmetric=False), Grid(Dtype.fp8_e4m3)):
        qparams = pinned(-(2.0**-140), 2.0**-139, grid, (2,))
        assert qparams.scale.item() == 2.0**-126
        assert torch.equal(fake_quantize(torch.tensor([-(2.0**-140), 2.0**-139]), qparams).abs(), torch.zeros(2))


def test_ranges_whose_width_overflows_float32_are_cut_at_two_to_the_127():
    grid = Grid(Dtype.uint8, symmetric=False)
    assert pinned(-(2.0**127), 2.0**127, grid).scale.item() == np.float32(2.0**127) / np.float32(127.5)
    for one in (grid, Grid(Dtype.int8), Grid(Dtype.fp8_e5m2), Grid(Dtype.int2, full_range=True)):
        wide = from_range(torch.tensor([-FLOAT32_MAX]), torch.tensor([FLOAT32_MAX]), one, (2,))
        cut = pinned(-(2.0**127), 2.0**127, one, (2,))
        assert torch.equal(wide.scale, cut.scale) and wide.scale.isfinite().all()
        assert fake_quantize(torch.tensor([-FLOAT32_MAX, FLOAT32_MAX]), wide).isfinite().all()


@pytest.mark.parametrize("mode", list(ScaleMode))
@pytest.mark.parametrize("kind", list(ScaleType), ids=lambda k: k.name)
def test_the_largest_floats_come_out_as_numbers(kind, mode):
    """The lowest code of int2 is twice the highest: with a scale of 2^127 it would be infinite."""
    ends = [(-3e38, 3e38), (1e38, 3e38), (-FLOAT32_MAX, -1e38), (-1e38, 3e38), (-3e38, 1e38)]
    for dtype in Dtype:
        for symmetric, full in ((True, False), (False, False), (True, has_sign(kind))):
            grid = Grid(dtype, symmetric=symmetric, full_range=full, scale_type=kind, scale_mode=mode)
            for low, high in ends:
                assert fake_quantize(torch.tensor([low, high]), pinned(low, high, grid, (2,))).isfinite().all()


@pytest.mark.parametrize("kind", list(ScaleType), ids=lambda k: k.name)
@pytest.mark.parametrize("symmetric", [True, False])
def test_nan_in_a_block_comes_out_as_nan(kind, symmetric):
    """Activations whose scales are found in each call meet them first here."""
    x = torch.tensor([[1.0, math.nan, -2.0], [1.0, 0.5, -2.0]])
    for dtype in Dtype:
        grid = Grid(dtype, symmetric=symmetric, scale_type=kind)
        qparams = from_range(x.amin(1, keepdim=True), x.amax(1, keepdim=True), grid, (1, 3))
        values, kept = fake_quantize(x, qparams), QTensor.encode(x, qparams).dequantize()
        assert values[0].isnan().any() and torch.equal(values.isnan(), kept.isnan())
        assert grid.two_level or values[1].isfinite().all()


def test_scales_that_float16_cannot_hold_saturate_and_clip():
    qparams = pinned(-1e9, 1e9, Grid(Dtype.int8, scale_type=ScaleType.float16), (3,))
    assert qparams.scale.item() == 65504
    assert quantize(torch.tensor([1e9, -1e9, 65504.0]), qparams).tolist() == [127, -128, 1]
    assert pinned(-1e-9, 1e-9, Grid(Dtype.int8, scale_type=ScaleType.float16)).scale.item() == 2.0**-24


@pytest.mark.parametrize("kind", [ScaleType.float16, ScaleType.bfloat16, ScaleType.pof2, ScaleType.float8_e5m3])
def test_a_scale_that_rounds_down_clips_and_zero_points_fit_the_rounded_scale(kind):
    low, high = -0.3, 1.0
    qparams = pinned(low, high, Grid(Dtype.uint8, symmetric=False, scale_type=kind), (3,))
    step = qparams.scale.item()
    assert qparams.zero_point.item() == np.rint(np.float32(0.3) / np.float32(step))
    reached = (255 - qparams.zero_point.item()) * step
    top = fake_quantize(torch.tensor([low, 0.0, high]), qparams)[2].item()
    assert abs(top - min(high, reached)) <= step / 2 + 1e-6


def test_asymmetric_grids_with_e8m0_scales_take_the_nearest_power():
    for mode in ScaleMode:
        grid = Grid(Dtype.uint8, symmetric=False, scale_type=ScaleType.float8_e8m0fnu, scale_mode=mode)
        qparams = pinned(-1.0, 2.0, grid)  # 3 / 255 is 1.51 * 2^-7, beyond the border at 1.41
        assert (qparams.scale.item(), qparams.zero_point.item()) == (2.0**-6, 64)
        assert pinned(-0.9, 1.8, grid).scale.item() == 2.0**-7


def test_the_zero_point_of_negative_int32_codes_fits_its_type():
    x = torch.tensor([-3.0, -1.0])
    kept = QTensor.encode(x, pinned(-3.0, -1.0, Grid(Dtype.int32, symmetric=False), (2,)))
    assert kept.zero_point.item() > 2**31 - 1000
    assert torch.allclose(kept.dequantize(), x, atol=1e-6)


@given(ENDS.filter(bool), ENDS.filter(bool))
def test_full_range_gives_the_extreme_of_either_sign_the_lowest_code(one, other):
    low, high = min(one, other, 0.0), max(one, other, 0.0)
    for dtype in (Dtype.int2, Dtype.int4, Dtype.int8):
        qparams = pinned(low, high, Grid(dtype, full_range=True), (2,))
        extreme = low if -low >= high else high
        if abs(extreme) < 2.0**-100:
            continue
        assert quantize(torch.tensor([extreme, 0.0]), qparams).tolist() == [dtype.lowest, 0]
        assert (qparams.scale.item() < 0) == (high > -low)
        assert math.isclose(fake_quantize(torch.tensor([extreme, 0.0]), qparams)[0], extreme, rel_tol=1e-6)


def test_full_range_of_a_symmetric_block_keeps_a_positive_scale():
    assert pinned(-2.0, 2.0, Grid(Dtype.int4, full_range=True)).scale.item() == 0.25


def test_full_range_says_nothing_to_unsigned_asymmetric_and_float_grids():
    for grid in (Grid(Dtype.uint4), Grid(Dtype.int4, symmetric=False), Grid(Dtype.fp8_e4m3)):
        plain, full = pinned(-1.0, 2.0, grid), pinned(-1.0, 2.0, grid.replace(full_range=True))
        assert torch.equal(plain.scale, full.scale)


@pytest.mark.parametrize("kind", list(ScaleType))
def test_sixteen_bit_floats_are_plain_casts(kind):
    x = torch.tensor([1e-3, -70000.0, 1 / 3])
    for dtype, cast in ((Dtype.float16, torch.float16), (Dtype.bfloat16, torch.bfloat16)):
        qparams = from_range(x.min().reshape(1), x.max().reshape(1), Grid(dtype, scale_type=kind), (3,))
        assert qparams.step.item() == 1
        assert torch.equal(quantize(x, qparams), x.clamp(dtype.lowest, dtype.highest).to(cast))


def test_low_precision_inputs_give_float32_scales():
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        low, high = torch.tensor([-1.0], dtype=dtype), torch.tensor([0.5], dtype=dtype)
        qparams = from_range(low, high, Grid(Dtype.int8), (3,))
        assert qparams.scale.dtype is torch.float32 and qparams.scale.item() == np.float32(1) / np.float32(127.5)


@pytest.mark.parametrize("dtype", [Dtype.fp4, Dtype.int4, Dtype.uint4, Dtype.nf4], ids=lambda d: d.name)
@pytest.mark.parametrize("symmetric", [True, False])
def test_two_levels_of_scales_for_every_kind_of_type(dtype, symmetric):
    grid = Grid(dtype, QSchemeType.per_group, group_size=16, symmetric=symmetric, scale_type=ScaleType.float8_e4m3fn)
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0)) * 1e-3
    blocks = Blocks((8, 64), (1, 16))
    rows = blocks.rows(x)
    low, high = rows.amin(1).reshape(8, 4), rows.amax(1).reshape(8, 4)
    qparams = from_range(low, high, grid, (1, 16))
    assert qparams.super_scale.shape == () and qparams.scale.max() == 448
    free = from_range(low, high, grid.replace(scale_type=ScaleType.float32), (1, 16))
    # Three bits of mantissa: a sixteenth of a binade at most.
    assert ((qparams.step - free.scale).abs() <= free.scale * 2.0**-4).all()
    given_one = from_range(low, high, grid, (1, 16), super_scale=qparams.super_scale * 2)
    assert torch.equal(given_one.super_scale, qparams.super_scale * 2)
    assert ((given_one.step - free.scale).abs() <= free.scale * 2.0**-4).all()


def test_a_super_scale_means_nothing_to_a_grid_of_one_level():
    qparams = from_range(torch.tensor([-1.0]), torch.ones(1), Grid(Dtype.int8), (1,), super_scale=torch.tensor(9.0))
    assert qparams.super_scale is None and qparams.scale.item() == np.float32(1) / np.float32(127.5)


def test_two_levels_of_tiny_values_never_multiply_to_zero():
    grid = Grid(Dtype.fp4, scale_type=ScaleType.float8_e4m3fn)
    low = torch.tensor([-(2.0**-149), 0.0, -(2.0**-120)])
    qparams = from_range(low, torch.zeros(3), grid, (1,))
    assert (qparams.step >= 2.0**-126).all()


def test_empty_tensors_have_empty_scales():
    for kind in ScaleType:
        qparams = from_range(torch.empty(0, 2), torch.empty(0, 2), Grid(Dtype.fp4, scale_type=kind), (1, 16))
        assert qparams.scale.shape == (0, 2)
        assert quantize(torch.empty(0, 32), qparams).shape == (0, 32)
        assert fake_quantize(torch.empty(0, 32), qparams).shape == (0, 32)


def test_parts_and_other_shapes_of_the_same_scales():
    scale, zero = torch.arange(6.0).reshape(3, 2), torch.arange(6.0).reshape(3, 2) + 10
    qparams = QParams(Grid(Dtype.uint4, symmetric=False), (1, 4), scale, zero)
    assert qparams.part(slice(1, 2)).scale.tolist() == [[2, 3]] and qparams.part(slice(1, 2)).zero_point.tolist() == [
        [12, 13]
    ]
    flat = qparams.reshape((4,), (6,))
    assert flat.block == (4,) and flat.zero_point.tolist() == [10, 11, 12, 13, 14, 15]
