# SPDX-License-Identifier: Apache-2.0
"""GPTQ: against brute force, against the textbook loop, and what it promises."""

from itertools import product

import pytest
import torch

from fewbit.algorithms import gptq, rtn, scale_search
from fewbit.algorithms._base import Problem
from fewbit.algorithms._columns import Columns, factor, in_order
from fewbit.errors import UsageError
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.scales import ScaleType

GROUP = {"granularity": QSchemeType.per_group, "group_size": 8}
GRIDS = {
    "int4 full range": Grid(Dtype.int4, **GROUP, full_range=True),
    "uint4 asymmetric": Grid(Dtype.uint4, **GROUP, symmetric=False),
    "uint2 free zero": Grid(Dtype.uint2, **GROUP, symmetric=False, float_zero=True),
    "int3 by channel": Grid(Dtype.int3, QSchemeType.per_channel),
    "int4 blocks": Grid(Dtype.int4, QSchemeType.per_block, block_size=(4, 8)),
    "mxfp4": Grid(Dtype.fp4, **GROUP, scale_type=ScaleType.float8_e8m0fnu),
    "nf4": Grid(Dtype.nf4, **GROUP),
}


def inputs(seed, positions=256, features=24):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(positions, features, generator=draw) @ torch.randn(features, features, generator=draw)


def seen(x, wanted=None):
    found = {"gram": {"gram": x.T @ x, "count": torch.tensor(len(x))}}
    return found if wanted is None else found | {"wanted": {"wanted": wanted.T @ x}}


def problem(grid, weight, x, aside, wanted=None, wanted_aside=None):
    return Problem(
        weight,
        grid,
        grid.weight_block(tuple(weight.shape)),
        x.square().mean(0)[None],
        aside.square().mean(0)[None],
        seen(x, wanted),
        seen(aside, wanted_aside),
    )


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_answers_are_nearer_than_those_of_rounding(grid):
    weight = torch.randn(12, 24, generator=torch.Generator().manual_seed(1))
    x, aside = inputs(2), inputs(2)[:64] + 0.1
    case = problem(grid, weight, x, aside)
    found = gptq.solve(case)

    def off(values):
        return ((values - weight) @ aside.T).square().sum(1)

    ours, plain = (off(q) for q in (found.qtensor.dequantize(), rtn.solve(case).qtensor.dequantize()))
    assert ours.sum() < 0.8 * plain.sum()
    height = case.block[0]
    assert all(a.sum() <= b.sum() * (1 + 1e-5) for a, b in zip(ours.split(height), plain.split(height)))
    assert found.facts["held_out_output_error"] == pytest.approx(float(ours.sum() / off(0 * weight).sum()), rel=1e-3)
    assert sum(found.facts["won"].values()) == pytest.approx(1)


def test_the_wanted_answers_and_not_the_weight_are_what_counts():
    """A layer whose inputs are off by a known map can undo it."""
    weight = torch.randn(8, 24, generator=torch.Generator().manual_seed(3))
    grid = Grid(Dtype.int8, QSchemeType.per_channel)
    x, aside = inputs(4, 2048), inputs(5, 512)
    wanted, wanted_aside = (each @ (1.2 * weight).T for each in (x, aside))
    found = gptq.solve(problem(grid, weight, x, aside, wanted, wanted_aside), pull=1e-6)
    left = (aside @ found.qtensor.dequantize().T - wanted_aside).square().sum() / wanted_aside.square().sum()
    assert left < 1e-3  # the weight itself is off by 1/36
    assert found.facts["held_out_output_error_saved"] > 0.02
    assert found.facts["won"]["blend 1"] == 1


def test_it_finds_what_trying_all_codes_finds_nearly():
    """Of 4^5 choices a row, one within some per cent of the best, and the best with sweeps more often than without."""
    grid, hits = Grid(Dtype.int2, QSchemeType.per_channel), {0: 0, 4: 0}
    for seed in range(12):
        draw = torch.Generator().manual_seed(seed)
        weight, x = torch.randn(1, 5, generator=draw), inputs(seed, 64, 5)
        gram = x.T @ x / len(x)
        scales = scale_search.solve(Problem(weight, grid, (1, 5))).qtensor.qparams
        values = torch.tensor(list(product(range(-2, 2), repeat=5))) * scales.scale
        losses = (((values - weight) @ gram) * (values - weight)).sum(1)
        order = in_order(gram, 5)
        work = Columns(weight, scales, order, factor(gram, order, 1e-6)[0], 1e-6)
        codes = work.rounded()
        for sweeps in hits:
            mine = work.swept(codes, gram, sweeps) * scales.scale - weight
            loss = ((mine @ gram) * mine).sum()
            assert loss <= 40 * losses.min() + 1e-6
            hits[sweeps] += bool(loss <= losses.min() * 1.001 + 1e-9)
    assert hits[4] >= hits[0] and hits[4] >= 4


def test_the_loop_is_the_textbook_one():
    """Column after column, each time solving for the best of all columns left, without a factorization."""
    weight, x = torch.randn(6, 10, generator=torch.Generator().manual_seed(7)).double(), inputs(8, 100, 10).double()
    gram = x.T @ x / len(x)
    damped = gram + 0.05 * gram.diagonal().mean() * torch.eye(10)
    scales = scale_search.solve(Problem(weight.float(), Grid(Dtype.int4, **GROUP), (1, 8))).qtensor.qparams
    step = scales.scale.repeat_interleave(8, 1)[:, :10].double()
    order, left, done = in_order(gram.float(), 8), weight.clone(), torch.zeros_like(weight)
    for place, at in enumerate(order.tolist()):
        done[:, at] = (left[:, at] / step[:, at]).round().clamp(-8, 7) * step[:, at]
        rest, gone = order[place + 1 :], order[: place + 1]
        lost = weight[:, gone] - done[:, gone]
        left[:, rest] = weight[:, rest] + lost @ damped[gone][:, rest] @ torch.linalg.inv(damped[rest][:, rest])
    found = Columns(weight.float(), scales, order, factor(gram.float(), order, 0.05)[0], 0.05).rounded()
    assert torch.equal(found.double(), (done / step).round())


def test_features_that_are_dead_or_alike_are_no_trouble():
    weight = torch.randn(4, 24, generator=torch.Generator().manual_seed(9))
    x = inputs(10)
    x[:, 5] = 0
    x[:, 7] = x[:, 6]
    for given in (x, torch.zeros_like(x), x[:3]):
        case = problem(GRIDS["int4 full range"], weight, given, given)
        assert gptq.solve(case).qtensor.dequantize().isfinite().all()


def test_order_and_factor():
    gram = torch.diag(torch.tensor([1.0, 5.0, 2.0, 9.0, 0.0]))
    assert in_order(gram, 2).tolist() == [3, 2, 1, 0, 4]
    x = inputs(1, 50, 6)
    gram = x.T @ x
    feedback, damping = factor(gram, torch.arange(6), 0.1)
    damped = gram.double() + 0.1 * gram.diagonal().mean().double() * torch.eye(6)
    assert damping == 0.1 and torch.equal(feedback, feedback.triu(1))
    whole = feedback.double() + torch.eye(6)
    middle = torch.linalg.solve(whole, torch.linalg.solve(whole, damped).T)  # (I + F)⁻¹ H (I + F)⁻ᵀ
    assert torch.allclose(middle, torch.diag(middle.diagonal()), atol=1e-3) and (middle.diagonal() > 0).all()


def test_a_moment_that_is_none_raises_the_damping():
    upper, damping = factor(torch.tensor([[1.0, 5.0], [5.0, 1.0]]), torch.arange(2), 0.01)
    assert 1 < damping < float("inf") and upper.isfinite().all()


def test_parameters_are_checked():
    case = problem(GRIDS["nf4"], torch.randn(2, 24), inputs(1), inputs(2))
    for wrong in ({"damping": 0.0}, {"pull": -1.0}, {"damping": float("nan")}):
        with pytest.raises(UsageError, match="above zero"):
            gptq.solve(case, **wrong)


@pytest.mark.parametrize(
    ("shape", "dtype", "says"),
    [((4, 3, 3, 3), Dtype.int4, "more places"), ((4, 12), Dtype.int4, "reads 24"), ((4, 24), Dtype.int16, "so fine")],
)
def test_what_it_cannot_help_is_searched(shape, dtype, says):
    grid, x = Grid(dtype, QSchemeType.per_channel), inputs(1)
    case = Problem(torch.randn(shape), grid, grid.weight_block(shape), statistics=seen(x))
    found = gptq.solve(case)
    assert says in found.facts["fallback"]
    assert torch.equal(found.qtensor.packed, scale_search.solve(case).qtensor.packed)
