# SPDX-License-Identifier: Apache-2.0
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.numerics import quantize as module
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import BlockShape, QSchemeType
from fewbit.numerics.quantize import QParams, QuantizationGrid, chunks, dequantize, fake_quantize, quantize
from fewbit.numerics.rounding import RoundType
from fewbit.numerics.scales import ScaleType
from numerics_reference import FLOAT32_MAX, LIBRARIES, fit, host, normal, same_bits, to_bytes

INTEGERS = [dtype for dtype in Dtype if dtype.is_integer and dtype is not Dtype.int32]
NEAREST = [RoundType.half_even, RoundType.round]
NUMBERS = st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=24)
libraries = st.sampled_from(list(LIBRARIES.values()))
quickly = settings(max_examples=80, deadline=None)
by_name = {"ids": lambda member: member.name}


def floats(*values):
    return np.array(values, np.float32)


def every_quantized_value(dtype):
    """All that stand for a finite number."""
    if dtype.is_integer:
        return np.arange(dtype.lowest, dtype.highest + 1).astype(dtype.storage)
    patterns = np.arange(2**dtype.bits).astype(dtype.storage)
    return patterns[np.isfinite(dequantize(patterns, QParams(QuantizationGrid(dtype), patterns.shape, floats(1))))]


@pytest.mark.parametrize("mode", NEAREST, **by_name)
@pytest.mark.parametrize("dtype", [dtype for dtype in Dtype if dtype.bits < 32], **by_name)
def test_every_quantized_value_comes_back(dtype, mode, array):
    quantized = every_quantized_value(dtype)
    zeros = [dtype.lowest, dtype.highest, 1] if dtype.is_integer else [None]
    for scale in (1.0, 0.1, 3.3e-5, 7.7e7) if dtype is not Dtype.bfloat16 else (1.0, 0.25):
        for zero in zeros:
            grid = QuantizationGrid(dtype, symmetric=zero is None, rounding=mode)
            point = None if zero is None else array(floats(zero))
            qparams = QParams(grid, quantized.shape, array(floats(scale)), point)
            assert to_bytes(quantize(dequantize(array(quantized), qparams), qparams)) == to_bytes(quantized)


@pytest.mark.parametrize("mode", list(RoundType), **by_name)
@pytest.mark.parametrize("dtype", [dtype for dtype in Dtype if dtype.bits <= 8], **by_name)
def test_with_a_power_of_two_as_scale_they_come_back_in_every_mode(dtype, mode, array):
    """Not with other scales in `floor`: (q * step) / step may be just below q."""
    quantized = every_quantized_value(dtype)
    qparams = QParams(QuantizationGrid(dtype, rounding=mode), quantized.shape, array(floats(0.125)))
    assert to_bytes(quantize(dequantize(array(quantized), qparams), qparams)) == to_bytes(quantized)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", INTEGERS, **by_name)
def test_integers_are_those_of_the_textbook_in_float32(dtype, symmetric, array):
    x = normal(500, dtype.bits) * 3 + 1
    qparams = fit(array(x), QuantizationGrid(dtype, symmetric=symmetric))
    scale = np.float32(host(qparams.scale).item())
    zero = 0 if qparams.zero_point is None else int(host(qparams.zero_point).item())
    expected = np.clip(np.rint(x / scale).astype(np.int64) + zero, dtype.lowest, dtype.highest)
    quantized = quantize(array(x), qparams)
    assert np.array_equal(host(quantized).astype(np.int64), expected)
    assert same_bits(dequantize(quantized, qparams), (expected - zero).astype(np.float32) * scale)


def test_it_is_a_division_and_no_product_with_the_reciprocal(array):
    """The product ends on the other side of a half for some numbers: they are looked for."""
    scale = np.float32(0.037)
    x = (np.arange(-100, 100) + np.float32(0.5)) * scale
    x = x.astype(np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(-np.inf))])
    quotient, product = np.rint(x / scale), np.rint(x * (np.float32(1) / scale))
    assert (quotient != product).any()
    qparams = QParams(QuantizationGrid(Dtype.int8), x.shape, array(floats(scale)))
    assert np.array_equal(host(quantize(array(x), qparams)), quotient)


@quickly
@given(libraries, NUMBERS, st.floats(2.0**-20, 2.0**20, width=32))
def test_rounding_is_that_of_exact_fractions(array, numbers, scale):
    """The float32 quotient is rounded, so only numbers whose exact quotient is no near tie are compared."""
    qparams = QParams(QuantizationGrid(Dtype.int16), (len(numbers),), array(floats(scale)))
    for number, quantized in zip(numbers, host(quantize(array(floats(*numbers)), qparams)).tolist()):
        exact = Fraction(number) / Fraction(scale)
        expected = max(min(round(exact), 32767), -32768)
        near_tie = abs(abs(exact - math.floor(exact)) - Fraction(1, 2)) < Fraction(1, 100)
        assert near_tie or quantized == expected


@quickly
@given(libraries, NUMBERS, st.sampled_from(INTEGERS), st.booleans(), st.sampled_from(list(RoundType)))
def test_inside_the_range_nothing_moves_farther_than_its_mode_allows(array, numbers, dtype, symmetric, mode):
    x = floats(*numbers)
    qparams = fit(array(x), QuantizationGrid(dtype, symmetric=symmetric, rounding=mode))
    step = float(host(qparams.step).item())
    zero = 0 if qparams.zero_point is None else host(qparams.zero_point).item()
    ends = ((dtype.lowest - zero) * step, (dtype.highest - zero) * step)
    moved = np.clip(x.astype(np.float64), *ends) - host(fake_quantize(array(x), qparams)).astype(np.float64)
    slack = 2.0**-21 * max(map(abs, ends))  # of float32 arithmetic
    assert (np.abs(moved) <= step * (0.5 if mode in NEAREST else 1) + slack).all()
    assert mode is not RoundType.floor or (moved >= -slack).all()


@quickly
@given(libraries, NUMBERS, st.sampled_from(list(Dtype)), st.booleans(), st.sampled_from(NEAREST))
def test_monotone_and_idempotent(array, numbers, dtype, symmetric, mode):
    x = array(floats(*sorted(numbers)))
    qparams = fit(x, QuantizationGrid(dtype, symmetric=symmetric, rounding=mode))
    values = fake_quantize(x, qparams)
    assert (np.diff(host(values)) >= 0).all()
    assert same_bits(fake_quantize(values, qparams), values)
    assert same_bits(dequantize(quantize(x, qparams), qparams), values)


@pytest.mark.parametrize("dtype", list(Dtype), **by_name)
def test_fake_quantize_has_the_bits_of_quantize_and_dequantize(dtype, array):
    x = normal((7, 40), 1)
    clean = array(x.copy())
    x[0, :4] = [math.inf, -math.inf, math.nan, -1e-30]
    for mode in RoundType:
        for symmetric in (True, False):
            for block in ((7, 40), (1, 16), (4, 16), (7, 1)):
                qparams = fit(clean, QuantizationGrid(dtype, symmetric=symmetric, rounding=mode), block)
                fake = host(fake_quantize(array(x), qparams))
                real = host(dequantize(quantize(array(x), qparams), qparams))
                assert np.array_equal(np.isnan(fake), np.isnan(real))
                assert same_bits(fake[~np.isnan(fake)], real[~np.isnan(real)])


def test_nan_and_infinity(array):
    for dtype in Dtype:
        for symmetric in (True, False):
            qparams = fit(array(floats(-1, 1)), QuantizationGrid(dtype, symmetric=symmetric))
            qparams = QParams(qparams.grid, (5,), qparams.scale, qparams.zero_point)
            x = floats(math.inf, -math.inf, FLOAT32_MAX, -FLOAT32_MAX, math.nan)
            values = host(fake_quantize(array(x), qparams))
            assert np.array_equal(values[:2], values[2:4])
            assert np.isnan(values[4]) if dtype.has_nan else values[4] == 0


def test_modes_are_respected_at_every_granularity(array):
    x = array(np.array([[0.5, 1.5, -0.5, -1.5], [2.5, -2.5, 0.25, 3.75]], np.float32))
    expected = {
        RoundType.half_even: [[0, 2, 0, -2], [2, -2, 0, 4]],
        RoundType.round: [[1, 2, -1, -2], [3, -3, 0, 4]],
        RoundType.floor: [[0, 1, -1, -2], [2, -3, 0, 3]],
    }
    for mode, integers in expected.items():
        for block in ((2, 4), (1, 4), (2, 1), (1, 2), (1, 3), (2, 2)):
            ones = array(np.ones(BlockShape((2, 4), block).counts, np.float32))
            assert (
                host(quantize(x, QParams(QuantizationGrid(Dtype.int8, rounding=mode), block, ones))).tolist()
                == integers
            )


@pytest.mark.parametrize("block", [(6, 35), (1, 35), (6, 1), (1, 8), (4, 1), (4, 16), (1, 1)])
@pytest.mark.parametrize("dtype", [Dtype.int8, Dtype.uint4, Dtype.fp4, Dtype.nf4, Dtype.fp8_e5m2], **by_name)
def test_every_element_is_scaled_by_its_own_block(dtype, block, array):
    x = normal((6, 35), 3)
    qparams = fit(array(x), QuantizationGrid(dtype, symmetric=False), block)
    quantized = host(quantize(array(x), qparams))
    owner = tuple(np.indices((6, 35)) // np.array(block)[:, None, None])
    scale = host(qparams.scale)[owner].reshape(-1)
    zero = None if qparams.zero_point is None else host(qparams.zero_point)[owner].reshape(-1)
    alone = quantize(x.reshape(-1), QParams(qparams.grid, (1,), scale, zero))
    assert np.array_equal(quantized.reshape(-1), alone)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:torch.quantize_per_channel")
def test_integers_and_values_are_those_of_torch():
    x = torch.randn(4, 300, generator=torch.Generator().manual_seed(0)) * 4
    scale, zero = torch.tensor([0.5, 0.25, 0.125, 2.0**-5]), torch.tensor([0, 3, -7, 100])
    grid = QuantizationGrid(Dtype.int8, QSchemeType.per_channel, symmetric=False)
    qparams = QParams(grid, (1, 300), scale[:, None], zero[:, None].float())
    theirs = torch.fake_quantize_per_channel_affine(x, scale, zero.int(), 0, -128, 127)
    assert torch.equal(fake_quantize(x, qparams), theirs)
    row = QParams(grid, (300,), scale[:1], torch.tensor([3.0]))
    assert torch.equal(fake_quantize(x[0], row), torch.fake_quantize_per_tensor_affine(x[0], 0.5, 3, -128, 127))


def test_symmetric_unsigned_types_hold_negative_values(array):
    x = floats(-1.0, -0.5, 0.0, 0.5, 1.0)
    for dtype in (Dtype.uint2, Dtype.uint4, Dtype.uint8, Dtype.uint16):
        qparams = fit(array(x), QuantizationGrid(dtype))
        assert host(quantize(array(x), qparams))[2] == 2 ** (dtype.bits - 1)
        assert (np.abs(host(fake_quantize(array(x), qparams)) - x) <= host(qparams.step) * 0.51).all()


def test_uint16_uses_all_of_its_integers(array):
    x = array(np.linspace(0, 1, 65536, dtype=np.float32))
    quantized = host(quantize(x, fit(x, QuantizationGrid(Dtype.uint16, symmetric=False))))
    assert quantized.dtype == np.uint16 and np.array_equal(quantized, np.arange(65536))


def test_int32_is_exact_to_the_last_unit(array):
    quantized = np.array([2**31 - 1, -(2**31), 123456789, -1, 0], np.int32)
    qparams = QParams(QuantizationGrid(Dtype.int32), (5,), array(floats(2.0**-20)))
    values = quantized.astype(np.float64) * 2.0**-20
    assert np.array_equal(host(quantize(array(values), qparams)), quantized)
    assert np.array_equal(host(dequantize(array(quantized), qparams, "float64")), values)
    large = QParams(QuantizationGrid(Dtype.int32), (2,), array(floats(1)))
    assert host(quantize(array(floats(1e30, -1e30)), large)).tolist() == [2**31 - 1, -(2**31)]


def test_other_dtypes_come_back_in_their_own():
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    qparams = fit(x, QuantizationGrid(Dtype.int8))
    assert fake_quantize(x, qparams).dtype is torch.bfloat16
    assert dequantize(quantize(x, qparams), qparams, torch.float16).dtype is torch.float16
    assert dequantize(quantize(x, qparams), qparams, "bfloat16").dtype is torch.bfloat16
    assert not fake_quantize(
        torch.ones(2, requires_grad=True), fit(torch.ones(2), QuantizationGrid(Dtype.int8))
    ).requires_grad


@pytest.mark.parametrize("block", [(60, 50), (1, 50), (60, 1), (1, 16), (7, 16), (1, 10)])
@pytest.mark.parametrize("dtype", [Dtype.uint4, Dtype.fp8_e4m3, Dtype.fp4, Dtype.nf4, Dtype.int32], **by_name)
def test_chunks_change_nothing(dtype, block, array, monkeypatch):
    x = array(normal((60, 50)))
    qparams = fit(x, QuantizationGrid(dtype, symmetric=False), block)
    whole = [to_bytes(y) for y in (quantize(x, qparams), fake_quantize(x, qparams))]
    monkeypatch.setattr(module, "NUMPY_CHUNK", 170)
    monkeypatch.setattr(module, "TORCH_CHUNK", 170)
    assert [to_bytes(y) for y in (quantize(x, qparams), fake_quantize(x, qparams))] == whole
    transposed = fit(x.T, QuantizationGrid(dtype, symmetric=False), block[::-1])
    assert to_bytes(quantize(x.T, transposed)) == to_bytes(host(quantize(x, qparams)).T)


def test_stochastic_rounding_belongs_to_positions_in_the_complete_tensor(array, monkeypatch):
    x = array(normal((60, 50)))
    qparams = fit(x, QuantizationGrid(Dtype.int4, rounding=RoundType.stochastic, seed=3))
    expected = to_bytes(quantize(x, qparams))
    monkeypatch.setattr(module, "NUMPY_CHUNK", 170)
    monkeypatch.setattr(module, "TORCH_CHUNK", 170)
    assert to_bytes(quantize(x, qparams)) == expected


@given(st.lists(st.tuples(st.integers(1, 7), st.integers(1, 9)), min_size=1, max_size=3), st.integers(1, 40))
def test_chunks_cover_everything_once(sides, size):
    blocks = BlockShape(tuple(side for side, _ in sides), tuple(width for _, width in sides))
    scales = np.arange(np.prod(blocks.counts)).reshape(blocks.counts)
    expected = (blocks.view(np.zeros(blocks.shape)) + blocks.broadcast(scales)).reshape(blocks.shape)
    seen = np.full(blocks.shape, -1.0)
    for elements, part, block in chunks(blocks, size):
        piece = BlockShape(seen[elements].shape, block)
        seen[elements] = (piece.view(np.zeros(piece.shape)) + piece.broadcast(scales[part])).reshape(piece.shape)
    assert np.array_equal(seen, expected)


def test_power_of_two_scales_at_every_granularity(array):
    x = array(normal((8, 48)))
    for block in ((8, 48), (1, 48), (1, 20), (4, 16)):
        qparams = fit(x, QuantizationGrid(Dtype.int8, symmetric=False, scale_type=ScaleType.pof2), block)
        assert np.array_equal(np.log2(host(qparams.scale)), np.rint(np.log2(host(qparams.scale))))
        blocks = BlockShape((8, 48), block)
        steps = host(blocks.view(fake_quantize(x, qparams)) / blocks.broadcast(qparams.scale))
        assert np.array_equal(steps, np.rint(steps))
