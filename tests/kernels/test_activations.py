# SPDX-License-Identifier: Apache-2.0
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.kernels._activations import encoder, not_int8, one_scale
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.quantize import quantize
from fewbit.numerics.rounding import RoundType
from fewbit.numerics.scales import ScaleType
from frozen_layers import DEVICES, quantizer

GRIDS = [
    Grid(dtype, granularity, symmetric=symmetric, **more)
    for dtype, granularity, symmetric, more in product(
        (Dtype.int8, Dtype.uint8, Dtype.int4, Dtype.uint5),
        (QSchemeType.per_tensor, QSchemeType.per_token),
        (True, False),
        ({}, {"rounding": RoundType.round}, {"scale_type": ScaleType.pof2}, {"scale_type": ScaleType.float16}),
    )
] + [Grid(Dtype.int8, QSchemeType.per_token, full_range=True), Grid(Dtype.int8, rounding=RoundType.stochastic, seed=3)]
SPANS = [None, (-1.5, 3.25), (0.0, 6.0)]
NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def same(grid, span, x):
    """The codes, and what they stand for, are those of `numerics.quantize`."""
    how = quantizer(grid, span).to(x.device)
    qparams = how.qparams(x)
    right = quantize(x, qparams)
    codes, scale, zero = encoder(how)(x)
    moved = 0 if grid.dtype.signed else 128
    assert codes.dtype is torch.int8
    assert torch.equal(codes.int() + moved, right.int())
    where = (x != 0).any(-1, keepdim=True) if scale.numel() > 1 else (x != 0).any()
    assert torch.equal((scale * where).expand(qparams.step.shape), (qparams.step * where).expand(qparams.step.shape))
    if qparams.zero_point is None:
        assert zero is None
    else:
        assert torch.equal((zero + moved).expand(qparams.zero_point.shape), qparams.zero_point)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("span", SPANS, ids=str)
@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: f"{g.dtype.name}-{g.granularity.value}-{g.symmetric}")
def test_codes_are_those_of_the_definition(grid, span, device):
    x = torch.randn(7, 24, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 3, 7)[:, None]
    x[3] = 0.0
    same(grid, span, x.to(device))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("granularity", [QSchemeType.per_tensor, QSchemeType.per_token])
@given(rows=st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=4))
def test_any_numbers(granularity, symmetric, rows):
    same(Grid(Dtype.int8, granularity, symmetric=symmetric), None, torch.tensor(rows))


def test_halves_go_to_the_even_code():
    how = quantizer(Grid(Dtype.int8), (-127.5, 127.5))  # a step of 1
    x = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, -127.5, -128.5]])
    assert encoder(how)(x).codes.tolist() == [[0, 2, 2, 0, -2, 126, 127, -128, -128]]


def test_infinities_go_to_the_ends_and_nan_to_zero():
    x = torch.tensor([[float("inf"), -float("inf"), float("nan"), 1.0]])
    assert encoder(quantizer(Grid(Dtype.int8), (-1.0, 1.0)))(x).codes.tolist() == [[127, -128, 0, 127]]
    codes, _, zero = encoder(quantizer(Grid(Dtype.int8, symmetric=False), (-1.0, 3.0)))(x)
    assert codes.tolist() == [[127, -128, int(zero), 0]]


def test_a_nan_spoils_its_token_and_no_other():
    x = torch.tensor([[float("nan"), 1.0], [2.0, 1.0]])
    scale = encoder(quantizer(Grid(Dtype.int8, QSchemeType.per_token)))(x).scale
    assert scale.isnan().tolist() == [[True], [False]]


@pytest.mark.parametrize(
    ("grid", "why"),
    [
        (Grid(Dtype.fp8_e4m3), "fp8_e4m3"),
        (Grid(Dtype.int16), "int16"),
        (Grid(Dtype.uint8, symmetric=False, float_zero=True), "no integers"),
        (Grid(Dtype.int8, QSchemeType.per_group, group_size=4), "per_group"),
    ],
)
def test_what_cannot_be_bytes_is_refused_in_words(grid, why):
    assert why in not_int8(quantizer(grid))


def test_one_scale():
    token = Grid(Dtype.int8, QSchemeType.per_token)
    assert not one_scale(quantizer(token))
    assert one_scale(quantizer(token, (-1.0, 1.0)))
    assert one_scale(quantizer(Grid(Dtype.int8)))
