# SPDX-License-Identifier: Apache-2.0
"""A weight that can be turned: it begins as its codes, steps are those of the straight-through estimator."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.algorithms import rtn
from fewbit.algorithms._averaged_sign import AveragedSign
from fewbit.algorithms._base import Problem
from fewbit.algorithms._turning import Turning, is_tunable
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType, round_scale

GROUP = {"granularity": QSchemeType.per_group, "group_size": 8}
GRIDS = {
    "int2": Grid(Dtype.int2, **GROUP, full_range=True, scale_type=ScaleType.bfloat16),
    "int3": Grid(Dtype.int3, **GROUP),
    "uint4": Grid(Dtype.uint4, **GROUP, symmetric=False),
    "free zero": Grid(Dtype.uint2, **GROUP, symmetric=False, float_zero=True),
    "int8": Grid(Dtype.int8, QSchemeType.per_channel),
    "blocks": Grid(Dtype.int4, QSchemeType.per_block, block_size=(4, 8)),
    "mxfp4": Grid(Dtype.fp4, **GROUP, scale_type=ScaleType.float8_e8m0fnu),
    "nvfp4": Grid(Dtype.fp4, **GROUP, scale_type=ScaleType.float8_e4m3fn),
    "fp8": Grid(Dtype.fp8_e4m3, QSchemeType.per_channel),
    "nf4": Grid(Dtype.nf4, **GROUP),
}


def started(grid, shape=(6, 20), seed=0, moved=1.5):
    """A weight, and codes that are not those nearest to it, as an algorithm that lets errors cancel gives."""
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(shape, generator=draw)
    params = rtn.qparams(Problem(weight, grid, grid.weight_block(shape)))
    blocks = Problem(weight, grid, params.block).blocks
    step = (blocks.lay(torch.ones(shape)) * blocks.over(params.step)).reshape(shape)
    noise = moved * step * torch.randn(shape, generator=draw)
    return weight, QTensor.encode(weight + noise, params)


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@given(seed=st.integers(0, 1000), moved=st.sampled_from([0.0, 0.3, 3.0]))
def test_it_begins_as_its_codes(grid, seed, moved):
    weight, start = started(grid, seed=seed, moved=moved)
    one = Turning(weight, start)
    assert torch.equal(one.values(), start.dequantize())
    found = one.result()
    assert torch.equal(found.dequantize(), start.dequantize())
    assert torch.equal(found.scale.view(torch.uint8), start.scale.view(torch.uint8))


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_what_it_ends_with_is_what_it_stood_for(grid):
    weight, start = started(grid)
    one = Turning(weight, start)
    draw = torch.Generator().manual_seed(1)
    for _ in range(12):
        one.turn(torch.randn(weight.shape, generator=draw).abs() * weight.sign(), 0.06)
    one.keep(torch.tensor(True))
    now, found = one.values(), one.result()
    one.turn(torch.ones_like(weight), 0.1)
    one.keep(torch.tensor(False))
    assert torch.equal(found.dequantize(), now) and torch.equal(one.result().dequantize(), now)
    assert not torch.equal(now, start.dequantize())
    scale = found.qparams.scale
    assert torch.equal(round_scale(scale, grid.scale_type), scale)  # it can be stored
    fixed = grid.scale_type is ScaleType.float8_e8m0fnu
    assert torch.equal(scale, start.qparams.scale) == fixed


@pytest.mark.parametrize("name", ["int3", "int2", "uint4", "free zero", "blocks"])
def test_slopes_are_those_of_a_straight_through_estimator(name):
    grid = GRIDS[name].replace(scale_type=ScaleType.float32)
    weight, start = started(grid)
    target = torch.randn(weight.shape, generator=torch.Generator().manual_seed(3))

    def loss(values):
        return ((values - target) * torch.arange(1, 21)).square().sum()

    values = Turning(weight, start).values().requires_grad_()
    found = Turning(weight, start).slopes(torch.autograd.grad(loss(values), values)[0])

    # One element at a time, in float64, with rounding whose slope is one.
    params, block = start.qparams, start.block
    shift = start.codes().double().requires_grad_()
    factor = torch.ones_like(params.scale, dtype=torch.float64).requires_grad_()
    rows = []
    for i in range(weight.shape[0]):
        row = []
        for j in range(weight.shape[1]):
            at = i // block[0], j // block[1]
            zero = 0.0 if params.zero_point is None else params.zero_point[at].double()
            code = shift[i, j] + (shift[i, j].round() - shift[i, j]).detach()
            row.append((code - zero) * params.step[at].double() * factor[at])
        rows.append(torch.stack(row))
    by_element, by_factor = torch.autograd.grad(loss(torch.stack(rows)), (shift, factor))
    torch.testing.assert_close(found[0].reshape(weight.shape).double(), by_element, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[1].double(), by_factor, rtol=1e-4, atol=1e-3)


def test_near_misses_turn_first():
    weight = torch.tensor([[0.45, 0.1, 0.6, 1.9]])
    params = QParams(Grid(Dtype.int4, scale_type=ScaleType.pof2), (1, 4), torch.ones(1, 1))
    one = Turning(weight, QTensor.from_codes(torch.tensor([[0, 0, 0, 0]], dtype=torch.int8), params))
    turned = []
    for _ in range(30):
        one.turn(torch.full((1, 4), -1.0), 0.02)
        turned.append(one.values().clone())
    first = [next(step for step, values in enumerate(turned) if values[0, at] > 0) for at in range(4)]
    assert first[0] < first[2] < first[1] < first[3]
    assert float(turned[-1].max()) == 1  # never farther than the neighbour


def test_what_is_not_finite_says_nothing():
    sign = AveragedSign(torch.zeros(3))
    assert torch.equal(sign.after(torch.tensor([torch.nan, torch.inf, 2.0])), torch.tensor([0.0, 0.0, 1.0]))


def test_what_is_worth_tuning():
    assert [name for name in ("int2", "fp4", "nf4", "int8", "int16", "float16") if is_tunable(Dtype[name])] == [
        "int2", "fp4", "nf4", "int8",
    ]  # fmt: skip
