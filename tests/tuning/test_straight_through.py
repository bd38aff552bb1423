# SPDX-License-Identifier: Apache-2.0
"""Gradients through rounding, against a slow formula element by element and against finite differences."""

from __future__ import annotations

import math

import pytest
import torch

from fewbit.numerics.blocks import Blocks, QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams, from_range
from fewbit.numerics.quantize import fake_quantize
from fewbit.numerics.scales import ScaleType
from fewbit.tuning.straight_through import ends, is_inside, lsq_share, on_grid, stretched
from quantized_models import GRIDS, numbers

_NAMES = [name for name in GRIDS if "int16" not in name and name not in ("float16", "bfloat16", "float32")]

# Scales that are rounded may be a little narrow, and a full range reaches one code less far on one side.
_MAY_CLIP = ("full range", "mxfp4", "mxint8", "nvfp4")


def _qparams(x: torch.Tensor, grid: Grid, tighten: float = 1.0) -> QParams:
    blocks = Blocks(tuple(x.shape), grid.weight_block(tuple(x.shape)))
    rows = blocks.rows(x.detach().float())
    low, high = (end.reshape(blocks.counts) * tighten for end in (rows.amin(1), rows.amax(1)))
    return from_range(low, high, grid, blocks.block)


@pytest.mark.parametrize("name", _NAMES)
def test_forward_is_that_of_the_codes_and_the_whole_range_has_a_gradient(name):
    x = numbers(10, 35).requires_grad_()
    qparams = _qparams(x, GRIDS[name])
    y = on_grid(x, qparams)
    assert torch.equal(y, fake_quantize(x, qparams))
    y.sum().backward()
    if name not in _MAY_CLIP and not name.startswith("scale"):
        # Ranges that come from a block's own extremes clip nothing, those extremes included.
        assert bool((x.grad == 1).all())


@pytest.mark.parametrize("name", _NAMES)
def test_what_is_clipped_has_no_gradient(name):
    x = numbers(10, 35).requires_grad_()
    qparams = _qparams(x, GRIDS[name], tighten=0.5)
    on_grid(x, qparams).sum().backward()
    # Clipped is what lies farther from its value than rounding ever does: where a step more changes nothing.
    blocks = Blocks(tuple(x.shape), qparams.block)
    step = blocks.over(qparams.step.abs()).expand_as(blocks.lay(x.detach())).reshape(x.shape)
    farther = x.detach() * (1 + 1e-6) + x.detach().sign() * 64 * step
    saturated = fake_quantize(x.detach(), qparams) == fake_quantize(farther, qparams)
    assert bool((x.grad[~saturated] == 1).all())
    assert 0 < int((x.grad == 0).sum()) <= int(saturated.sum())


def _slow_lsq(x, scale, zero, low, high, grad):
    """LSQ's equation 3, one element at a time."""
    total, to_x = 0.0, []
    for value, g in zip(x.tolist(), grad.tolist()):
        units = value / scale + zero
        if units < low - 0.5:
            total += g * (low - zero)
            to_x.append(0.0)
        elif units > high + 0.5:
            total += g * (high - zero)
            to_x.append(0.0)
        else:
            code = min(max(round(value / scale) + zero, low), high)
            total += g * ((code - zero) - value / scale)
            to_x.append(g)
    return to_x, total


@pytest.mark.parametrize(("dtype", "symmetric"), [(Dtype.int4, True), (Dtype.int8, True), (Dtype.uint4, False)])
def test_scale_gradient_is_lsq(dtype, symmetric):
    grid = Grid(dtype, QSchemeType.per_channel, symmetric=symmetric)
    x, grad = numbers(3, 40).requires_grad_(), numbers(3, 41)[:, :40]
    qparams = _qparams(x, grid, tighten=0.6)
    scale = qparams.scale.clone().requires_grad_()
    on_grid(x, qparams, scale, share=0.25).backward(grad)
    for row in range(3):
        zero = 0 if qparams.zero_point is None else int(qparams.zero_point[row, 0])
        to_x, to_scale = _slow_lsq(
            x[row].detach().double(), scale[row, 0].item(), zero, dtype.lowest, dtype.highest, grad[row].double()
        )
        torch.testing.assert_close(x.grad[row], torch.tensor(to_x), rtol=1e-6, atol=1e-7)
        assert float(scale.grad[row, 0]) == pytest.approx(0.25 * to_scale, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("dtype", [Dtype.int4, Dtype.fp4, Dtype.nf4, Dtype.fp8_e4m3])
def test_scale_gradient_by_finite_differences(dtype):
    """What the straight-through estimate says of the scale: between jumps the output moves as v, not as v - x/s.

    The difference quotient of the rounded value at fixed codes is v; the estimate takes x/s off where x is not clipped,
    which is the slope of what rounding adds, x̂ - x. Both are compared with numbers.
    """
    x = numbers(1, 30)
    qparams = _qparams(x, Grid(dtype), tighten=0.5)
    inside = is_inside(x, qparams)
    scale = qparams.scale.clone().requires_grad_()
    on_grid(x.requires_grad_(), qparams, scale).sum().backward()
    by = 1e-4
    values = fake_quantize(x.detach(), qparams) / qparams.scale
    # fixed codes: x̂(s) = v s, and x = u s moves along where it is inside
    up, down = ((values * s).sum() - ((x.detach() / qparams.scale) * s)[inside].sum()
                for s in (qparams.scale + by, qparams.scale - by))  # fmt: skip
    assert float(scale.grad) == pytest.approx(float(up - down) / (2 * by), rel=1e-2, abs=1e-2)


def test_clipped_elements_move_with_the_scale():
    """Outside the range the output is a constant times the scale: here the estimate is the true derivative."""
    x = torch.full((1, 8), 100.0).requires_grad_()
    scale = torch.tensor([[0.5]], dtype=torch.float32).requires_grad_()
    grid, by = Grid(Dtype.int4), 1e-2
    on_grid(x, QParams(grid, (1, 8), scale.detach()), scale).sum().backward()
    both = [fake_quantize(x, QParams(grid, (1, 8), torch.tensor([[0.5 + d]]))).sum() for d in (by, -by)]
    assert float(scale.grad) == pytest.approx(float(both[0] - both[1]) / (2 * by), rel=1e-4)
    assert bool((x.grad == 0).all())


def test_stretch_is_a_logarithm_and_stays_on_the_scales_type():
    scale = torch.tensor([0.5, -2.0])
    stretch = torch.zeros(2, requires_grad=True)
    assert torch.equal(stretched(scale, stretch, ScaleType.float32), scale)
    stretched(scale, stretch, ScaleType.float32).sum().backward()
    torch.testing.assert_close(stretch.grad, scale)
    power = stretched(scale, torch.full((2,), 0.3), ScaleType.pof2)
    assert power.tolist() == [0.5, -2.0]
    assert stretched(scale, torch.full((2,), 0.4), ScaleType.pof2).tolist() == [1.0, -4.0]


def test_ends_lie_half_a_gap_beyond_the_last_value():
    assert ends(Dtype.uint8)[1] == pytest.approx(255.5, rel=1e-5) and ends(Dtype.uint8)[0] == pytest.approx(
        -0.5, rel=1e-5
    )
    assert ends(Dtype.fp8_e4m3)[1] == pytest.approx(448 + 16, rel=1e-5)
    assert ends(Dtype.nf4)[1] == pytest.approx(1 + (1 - 0.7229568362236023) / 2, rel=1e-5)
    assert lsq_share(16, Dtype.int8) == pytest.approx(1 / math.sqrt(16 * 127))
