# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.numerics.blocks import Blocks, QSchemeType
from fewbit.numerics.dtypes import Dtype, Integer, Table
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams, from_range
from fewbit.numerics.quantize import dequantize, fake_quantize, quantize
from fewbit.numerics.rounding import RoundType
from fewbit.numerics.scales import ScaleType
from numerics.pinning import pin

INTEGERS = [d for d in Dtype if isinstance(d.value, Integer) and d is not Dtype.int32]
NEAREST = [RoundType.half_even, RoundType.round]
LARGEST = torch.finfo(torch.float32).max
NUMBERS = st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=24)


def every_code(dtype):
    """All codes that stand for a number."""
    if dtype.is_integer:
        return torch.arange(dtype.lowest, dtype.highest + 1).to(dtype.storage)
    if dtype.bits == 16:
        codes = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype.storage)
        return codes[codes.isfinite()]
    codes = torch.arange(2**dtype.bits, dtype=torch.uint8).view(dtype.storage)
    return codes[codes.float().isfinite()] if dtype.bits == 8 else codes


def raw(codes):
    return (
        codes.int()
        if codes.dtype is torch.uint16
        else codes.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[codes.element_size()])
    )


@pytest.mark.parametrize("mode", NEAREST)
@pytest.mark.parametrize("dtype", [d for d in Dtype if d.bits < 32], ids=lambda d: d.name)
def test_every_code_of_every_type_comes_back(dtype, mode):
    codes = every_code(dtype)
    zeros = [dtype.lowest, dtype.highest, 1] if dtype.is_integer else [None]
    for scale in (1.0, 0.1, 3.3e-5, 7.7e7) if dtype is not Dtype.bfloat16 else (1.0, 0.25):
        for zero in zeros:
            grid = Grid(dtype, symmetric=zero is None, rounding=mode)
            point = None if zero is None else torch.tensor([float(zero)])
            qparams = QParams(grid, tuple(codes.shape), torch.tensor([scale]), point)
            assert torch.equal(raw(quantize(dequantize(codes, qparams), qparams)), raw(codes))


@pytest.mark.parametrize("mode", list(RoundType))
@pytest.mark.parametrize("dtype", [d for d in Dtype if d.bits <= 8], ids=lambda d: d.name)
def test_with_a_power_of_two_as_scale_codes_come_back_in_every_mode(dtype, mode):
    codes = every_code(dtype)
    qparams = QParams(Grid(dtype, rounding=mode), tuple(codes.shape), torch.tensor([0.125]))
    assert torch.equal(raw(quantize(dequantize(codes, qparams), qparams)), raw(codes))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_integer_codes_are_those_of_numpy_in_float32(dtype, symmetric):
    x = torch.randn(500, generator=torch.Generator().manual_seed(dtype.bits)) * 3 + 1
    qparams = pin(x, Grid(dtype, symmetric=symmetric))
    scale = np.float32(qparams.scale.item())
    zero = 0 if qparams.zero_point is None else int(qparams.zero_point.item())
    expected = np.clip(np.rint(x.numpy() / scale).astype(np.int64) + zero, dtype.lowest, dtype.highest)
    codes = quantize(x, qparams)
    assert codes.dtype is dtype.storage
    assert np.array_equal(codes.numpy().astype(np.int64), expected)
    assert np.array_equal(dequantize(codes, qparams).numpy(), (expected - zero).astype(np.float32) * scale)


@given(NUMBERS, st.sampled_from(INTEGERS), st.booleans(), st.sampled_from(list(RoundType)))
def test_inside_the_range_nothing_moves_farther_than_its_mode_allows(numbers, dtype, symmetric, mode):
    x = torch.tensor(numbers)
    qparams = pin(x, Grid(dtype, symmetric=symmetric, rounding=mode))
    step = qparams.step.double().item()
    zero = 0 if qparams.zero_point is None else qparams.zero_point.double().item()
    ends = ((dtype.lowest - zero) * step, (dtype.highest - zero) * step)
    inside = x.double().clamp(*ends)
    moved = inside - fake_quantize(x, qparams).double()
    slack = 2.0**-21 * max(map(abs, ends))  # of float32 arithmetic
    farthest = step * (0.5 if mode in NEAREST else 1) + slack
    assert (moved.abs() <= farthest).all()
    if mode is RoundType.floor:
        assert (moved >= -slack).all()


@given(NUMBERS, st.sampled_from(list(Dtype)), st.booleans(), st.sampled_from(NEAREST))
def test_codes_are_monotone_and_a_second_pass_changes_nothing(numbers, dtype, symmetric, mode):
    x = torch.tensor(sorted(numbers))
    qparams = pin(x, Grid(dtype, symmetric=symmetric, rounding=mode))
    values = fake_quantize(x, qparams)
    assert (values.diff() >= 0).all()
    assert torch.equal(fake_quantize(values, qparams), values)
    assert torch.equal(dequantize(quantize(x, qparams), qparams), values)


@pytest.mark.parametrize("mode", list(RoundType))
@pytest.mark.parametrize("dtype", list(Dtype), ids=lambda d: d.name)
def test_fake_quantize_has_the_bits_of_quantize_and_dequantize(dtype, mode):
    x = torch.randn(7, 40, generator=torch.Generator().manual_seed(1))
    x[0, :4] = torch.tensor([math.inf, -math.inf, math.nan, -1e-30])
    clean = x.nan_to_num(0, 3, -3)
    for symmetric in (True, False):
        for block in ((7, 40), (1, 40), (1, 16), (4, 16), (7, 1)):
            qparams = pin(clean, Grid(dtype, symmetric=symmetric, rounding=mode), block)
            for kind in (torch.float32, torch.bfloat16):
                fake, real = (
                    fake_quantize(x.to(kind), qparams),
                    dequantize(quantize(x.to(kind), qparams), qparams, kind),
                )
                assert torch.equal(fake.isnan(), real.isnan())
                assert torch.equal(fake.nan_to_num(), real.nan_to_num())
                assert torch.equal(fake.nan_to_num().signbit(), real.nan_to_num().signbit())


def test_what_becomes_of_nan_and_infinity():
    x = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    for dtype in Dtype:
        for symmetric in (True, False):
            grid = Grid(dtype, symmetric=symmetric)
            values = fake_quantize(x, from_range(torch.tensor([-1.0]), torch.tensor([1.0]), grid, (4,)))
            ends = fake_quantize(
                torch.tensor([LARGEST, -LARGEST]), from_range(torch.tensor([-1.0]), torch.tensor([1.0]), grid, (2,))
            )
            assert torch.equal(values[1:3], ends)
            assert values[0].isnan() if dtype.has_nan else values[0] == 0


@pytest.mark.parametrize("mode", list(RoundType))
def test_round_modes_are_honoured_at_every_granularity(mode):
    x = torch.tensor([[0.5, 1.5, -0.5, -1.5], [2.5, -2.5, 0.25, 3.75]])
    expected = {
        RoundType.half_even: [[0, 2, 0, -2], [2, -2, 0, 4]],
        RoundType.round: [[1, 2, -1, -2], [3, -3, 0, 4]],
        RoundType.floor: [[0, 1, -1, -2], [2, -3, 0, 3]],
    }
    for block in ((2, 4), (1, 4), (2, 1), (1, 2), (1, 3), (2, 2)):
        counts = Blocks((2, 4), block).counts
        codes = quantize(x, QParams(Grid(Dtype.int8, rounding=mode), block, torch.ones(counts)))
        if mode is RoundType.stochastic:
            assert ((codes - x).abs() < 1).all()
        else:
            assert codes.tolist() == expected[mode]


@pytest.mark.parametrize("block", [(6, 35), (1, 35), (6, 1), (1, 8), (4, 1), (4, 16), (1, 1)])
@pytest.mark.parametrize("dtype", [Dtype.int8, Dtype.uint4, Dtype.fp4, Dtype.nf4, Dtype.fp8_e5m2], ids=lambda d: d.name)
def test_every_element_is_settled_by_the_scale_of_its_own_block(dtype, block):
    x = torch.randn(6, 35, generator=torch.Generator().manual_seed(3))
    grid = Grid(dtype, symmetric=False)
    qparams = pin(x, grid, block)
    codes = quantize(x, qparams)
    for i in range(6):
        for j in range(35):
            at = (i // block[0], j // block[1])
            zero = None if qparams.zero_point is None else qparams.zero_point[at].reshape(1)
            alone = QParams(grid, (1,), qparams.scale[at].reshape(1), zero)
            assert raw(quantize(x[i, j].reshape(1), alone)).item() == raw(codes)[i, j].item()


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("zero", [-6, 0, 18])  # torch rounds after adding it, so an odd one would turn ties round
@pytest.mark.parametrize("scale", [0.25, 2.0**-7, 0.1, 0.037])
def test_eight_bit_codes_are_torchs_own(scale, zero):
    x = torch.cat(
        [torch.randn(5000, generator=torch.Generator().manual_seed(0)) * 8, torch.arange(-200, 200) * scale / 2]
    )
    grid = Grid(Dtype.int8, symmetric=False)
    ours = quantize(x, QParams(grid, (5400,), torch.tensor([scale]), torch.tensor([float(zero)])))
    theirs = torch.quantize_per_tensor(x, scale, zero, torch.qint8).int_repr()
    quotient = x.double() / torch.tensor(scale).double()
    # torch multiplies by the reciprocal: exact for powers of two, and elsewhere the same but next to a half.
    halfway = ((quotient - quotient.floor()) - 0.5).abs() < 1e-4
    differ = ours != theirs
    assert not differ.any() if math.log2(scale).is_integer() else not (differ & ~halfway).any()


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_per_channel_codes_and_fake_values_are_torchs_own():
    x = torch.randn(4, 300, generator=torch.Generator().manual_seed(0)) * 4
    scale, zero = torch.tensor([0.5, 0.25, 0.125, 2.0**-5]), torch.tensor([0, 3, -7, 100])
    qparams = QParams(
        Grid(Dtype.int8, QSchemeType.per_channel, symmetric=False), (1, 300), scale[:, None], zero[:, None].float()
    )
    theirs = torch.quantize_per_channel(x, scale, zero, 0, torch.qint8)
    assert torch.equal(quantize(x, qparams), theirs.int_repr())
    assert torch.equal(fake_quantize(x, qparams), theirs.dequantize())
    assert torch.equal(
        fake_quantize(x, qparams), torch.fake_quantize_per_channel_affine(x, scale, zero.int(), 0, -128, 127)
    )
    row = QParams(Grid(Dtype.int8, symmetric=False), (300,), scale[:1], torch.tensor([3.0]))
    assert torch.equal(fake_quantize(x[0], row), torch.fake_quantize_per_tensor_affine(x[0], 0.5, 3, -128, 127))


def test_symmetric_unsigned_types_keep_negative_values():
    x = torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0])
    for dtype in (Dtype.uint2, Dtype.uint4, Dtype.uint8, Dtype.uint16):
        qparams = pin(x, Grid(dtype))
        assert quantize(x, qparams)[2] == 2 ** (dtype.bits - 1)
        assert ((fake_quantize(x, qparams) - x).abs() <= qparams.step * 0.51).all()


def test_uint16_uses_all_of_its_codes():
    x = torch.linspace(0, 1, 65536)
    codes = quantize(x, pin(x, Grid(Dtype.uint16, symmetric=False)))
    assert codes.dtype is torch.uint16 and torch.equal(codes.int(), torch.arange(65536, dtype=torch.int32))


def test_power_of_two_scales_are_honoured_at_every_granularity():
    x = torch.randn(8, 48, generator=torch.Generator().manual_seed(0))
    for block in ((8, 48), (1, 48), (1, 20), (4, 16)):
        for symmetric in (True, False):
            qparams = pin(x, Grid(Dtype.int8, symmetric=symmetric, scale_type=ScaleType.pof2), block)
            assert torch.equal(qparams.scale.log2(), qparams.scale.log2().round())
            blocks = Blocks((8, 48), block)
            steps = blocks.lay(fake_quantize(x, qparams)) / blocks.over(qparams.scale)
            assert torch.equal(steps, steps.round())


def test_int32_codes_are_exact_to_the_last_unit():
    codes = torch.tensor([2**31 - 1, -(2**31), 123456789, -1, 0], dtype=torch.int32)
    qparams = QParams(Grid(Dtype.int32), (5,), torch.tensor([2.0**-20]))
    values = codes.double() * 2.0**-20
    assert torch.equal(quantize(values, qparams), codes)
    assert torch.equal(dequantize(codes, qparams, torch.float64), values)
    assert quantize(torch.tensor([1e30, -1e30]), QParams(Grid(Dtype.int32), (2,), torch.ones(1))).tolist() == [
        2**31 - 1,
        -(2**31),
    ]
    x = torch.tensor([0.3, -0.7, 1.0])
    shifted = pin(x, Grid(Dtype.int32, symmetric=False))
    assert torch.allclose(fake_quantize(x, shifted), x, atol=1e-6) and fake_quantize(torch.zeros(3), shifted).any() == 0


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types_are_computed_in_float32(kind):
    x = (torch.randn(9, 33, generator=torch.Generator().manual_seed(0)) * 5).to(kind)
    for dtype in (Dtype.int8, Dtype.uint4, Dtype.fp4, Dtype.fp8_e4m3, Dtype.nf4):
        qparams = pin(x, Grid(dtype, symmetric=False), (1, 8))
        assert torch.equal(raw(quantize(x, qparams)), raw(quantize(x.float(), qparams)))
        fake = fake_quantize(x, qparams)
        assert fake.dtype is kind and torch.equal(fake, fake_quantize(x.float(), qparams).to(kind))


def test_scalars_and_single_elements():
    for dtype in Dtype:
        grid = Grid(dtype)
        qparams = from_range(torch.tensor(-2.0), torch.tensor(2.0), grid, ())
        assert quantize(torch.tensor(2.0), qparams).shape == ()
        assert fake_quantize(torch.tensor(0.0), qparams) == 0
        lonely = pin(torch.tensor([3.0, -5.0]), grid, (1,))
        assert torch.allclose(fake_quantize(torch.tensor([3.0, -5.0]), lonely), torch.tensor([3.0, -5.0]), rtol=0.35)


def test_the_input_is_never_changed_and_gradients_reach_the_scale():
    x = torch.randn(4, 40, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    for dtype in Dtype:
        qparams = pin(x, Grid(dtype, symmetric=False), (1, 16))
        codes = quantize(x, qparams)
        kept = codes.clone()
        dequantize(codes, qparams)
        fake_quantize(x, qparams)
        assert torch.equal(x, before)
        assert torch.equal(raw(codes), raw(kept)) if dtype is not Dtype.int32 else torch.equal(codes, kept)
    scale = torch.full((1, 1), 0.25, requires_grad=True)
    learned = QParams(Grid(Dtype.int8), (4, 40), scale)
    codes = quantize(x.clone().requires_grad_(), learned)
    dequantize(codes, learned).sum().backward()
    assert scale.grad.item() == codes.float().sum().item()


def test_tables_and_floats_have_no_zero_point():
    x = torch.randn(64, generator=torch.Generator().manual_seed(0))
    for dtype in Dtype:
        if not dtype.is_integer:
            assert pin(x, Grid(dtype, symmetric=False)).zero_point is None
            assert isinstance(dtype.value, Table) or dtype.signed
