# SPDX-License-Identifier: Apache-2.0
"""AdaRound against all roundings there are, and never worse than nearest rounding."""

import itertools

import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.algorithms import _relaxation, adaround, rtn, scale_search
from fewbit.algorithms._base import Problem
from fewbit.algorithms._relaxation import Choice
from fewbit.errors import UsageError
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType

BY_CHANNEL = {"granularity": QSchemeType.per_channel}
GRIDS = {
    "int4 by channel": Grid(Dtype.int4, **BY_CHANNEL),
    "int3 full range": Grid(Dtype.int3, **BY_CHANNEL, full_range=True),
    "uint4 asymmetric": Grid(Dtype.uint4, **BY_CHANNEL, symmetric=False),
    "uint2 free zero": Grid(Dtype.uint2, **BY_CHANNEL, symmetric=False, float_zero=True),
    "int8 by tensor": Grid(Dtype.int8),
    "int4 groups": Grid(Dtype.int4, QSchemeType.per_group, group_size=5),
    "int4 blocks": Grid(Dtype.int4, QSchemeType.per_block, block_size=(4, 6)),
    "int4 power of two": Grid(Dtype.int4, **BY_CHANNEL, scale_type=ScaleType.pof2),
    "int4 two levels": Grid(Dtype.int4, QSchemeType.per_group, group_size=4, scale_type=ScaleType.float8_e4m3fn),
}


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs(rows, width, seed=0):
    """Features that go together: fewer causes than features, and a little noise."""
    causes = draw(rows, max(1, width // 3), seed=seed)
    return causes @ draw(max(1, width // 3), width, seed=100) + 0.2 * draw(rows, width, seed=seed + 1)


def gram(x):
    return {"gram": {"gram": x.double().T @ x.double(), "count": torch.tensor(len(x))}}


def problem(weight, grid, x=None, aside=None):
    statistics = {} if x is None else {"statistics": gram(x)}
    if aside is not None:
        statistics["held_out_statistics"] = gram(aside)
    importance = None if x is None or weight.ndim != 2 else x.square().mean(0, keepdim=True)
    return Problem(weight, grid, grid.weight_block(tuple(weight.shape)), importance, **statistics)


def off(weight, qtensor, x):
    """The mean squared error of every output channel on the data itself."""
    return (x.double() @ (weight - qtensor.dequantize()).double().T).square().mean(0)


def banded(errors, case):
    """The sums over rows that share a scale: these are held against plain rounding together."""
    return torch.stack([rows.sum() for rows in errors.split(case.block[0])])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("width", "share", "most"), [(4, 0.95, 1.02), (6, 0.75, 1.15), (10, 0.3, 1.6)])
def test_against_all_roundings(width, share, most, seed):
    """Every combination of up and down: nothing found is below the best, and much of it is the best."""
    x, step = inputs(60, width, seed), 0.5 + draw(40, 1, seed=seed).abs().expand(40, width)
    choice = Choice(torch.rand(40, width, generator=torch.Generator().manual_seed(seed)) * step, step)
    h = x.T @ x / 60
    every = torch.tensor(list(itertools.product((0.0, 1.0), repeat=width)))
    least = torch.stack([choice.error(up.expand(40, width), h) for up in every]).amin(0)
    near = choice.start / step > 0.5
    found = choice.error(_relaxation.best(choice, near, h, 300), h)
    assert (found >= least * (1 - 1e-5)).all() and (found <= choice.error(near, h) * (1 + 1e-5)).all()
    assert (found <= least * 1.001).float().mean() > share
    assert found.sum() < most * least.sum() < 0.8 * choice.error(near, h).sum()


def test_the_relaxation_learns():
    """By itself, without the descent: most of what nearest rounding loses is won."""
    x = inputs(2000, 64)
    step = torch.ones(32, 64)
    choice, h = Choice(torch.rand(32, 64, generator=torch.Generator().manual_seed(1)), step), x.T @ x / 2000
    near, learned = choice.start > 0.5, _relaxation.learn(choice, h, 300)
    assert choice.error(learned, h).sum() < 0.4 * choice.error(near, h).sum()
    done = _relaxation.descend(learned, choice, h)
    assert (choice.error(done, h) <= choice.error(learned, h) * (1 + 1e-5)).all()


def test_the_descent_ends_where_no_turn_and_no_pair_helps():
    x, choice = inputs(60, 6), Choice(torch.rand(20, 6, generator=torch.Generator().manual_seed(2)), torch.ones(20, 6))
    h = x.T @ x / 60
    done = _relaxation.descend(choice.start > 0.5, choice, h)
    error = choice.error(done, h)
    for turned in itertools.chain(*(itertools.combinations(range(6), count) for count in (1, 2))):
        other = done.clone()
        other[:, turned] ^= True
        assert (choice.error(other, h) >= error * (1 - 1e-4)).all()


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("aside", [False, True], ids=["no judge", "judge"])
def test_never_worse_row_by_row(grid, aside):
    weight, x, other = draw(10, 17), inputs(200, 17), inputs(50, 17, seed=9)
    case = problem(weight, grid, x, other if aside else None)
    found = adaround.solve(case, steps=100)
    assert found.qtensor.grid == grid and found.qtensor.block == case.block
    searched, plain = scale_search.solve(case).qtensor, QTensor.encode(weight, rtn.qparams(case))
    for data in (x, other) if aside else (x,):
        ours, rounded = (banded(off(weight, each, data), case) for each in (found.qtensor, plain))
        assert (ours <= rounded * (1 + 1e-9)).all()
    won, searched, rounded = (off(weight, each, x).sum() for each in (found.qtensor, searched, plain))
    assert won < 0.8 * rounded and won < searched


def test_facts():
    weight, x, other = draw(10, 17), inputs(200, 17), inputs(50, 17, seed=9)
    found = adaround.solve(problem(weight, GRIDS["int4 by channel"], x, other))
    facts = found.facts
    orjson.dumps(facts)
    size = (x.double() @ weight.double().T).square().mean(0).sum()
    assert facts["output_error"] == pytest.approx((off(weight, found.qtensor, x).sum() / size).item(), rel=1e-6)
    assert facts["output_error"] < facts["output_error_search"] and facts["output_error"] < facts["output_error_rtn"]
    assert facts["held_out_output_error"] <= facts["held_out_output_error_rtn"]
    assert 0 < facts["turned"] < 0.6 and facts["error"] > 0


def test_a_judge_who_sees_the_opposite():
    """What cancels in calibration adds up on the items kept aside: nothing is learned from it that costs there."""
    weight, cause = draw(10, 16), draw(100, 1)
    seen, aside = cause.expand(100, 16), cause * torch.tensor([1.0, -1.0] * 8)
    alone, judged = (problem(weight, GRIDS["int4 by channel"], seen, other) for other in (None, aside))
    plain = QTensor.encode(weight, rtn.qparams(judged))
    assert (off(weight, adaround.solve(alone).qtensor, aside) > off(weight, plain, aside)).any()
    for data in (seen, aside):
        assert (off(weight, adaround.solve(judged).qtensor, data) <= off(weight, plain, data) * (1 + 1e-9)).all()


def test_groups_read_their_own_features():
    """A grouped 1x1 convolution is as many small layers."""
    grid, weight, x = GRIDS["int4 by channel"], draw(8, 6, 1, 1), inputs(200, 12)
    whole = adaround.solve(problem(weight, grid, x))
    for group in range(2):
        rows, columns = slice(4 * group, 4 * group + 4), slice(6 * group, 6 * group + 6)
        alone = adaround.solve(problem(weight[rows], grid, x[:, columns]))
        assert torch.equal(whole.qtensor.codes()[rows], alone.qtensor.codes())


@pytest.mark.parametrize(
    ("weight", "grid", "x", "reason"),
    [
        (draw(4, 6), GRIDS["int4 by channel"], None, "no second moment"),
        (draw(4, 6, 3, 3), GRIDS["int4 by channel"], inputs(20, 6), "by feature"),
        (draw(4, 6), GRIDS["int4 by channel"], inputs(20, 7), "reads 7 features"),
        (draw(4, 6), Grid(Dtype.fp4, **BY_CHANNEL), inputs(20, 6), "fp4"),
        (draw(4, 6), Grid(Dtype.int16, **BY_CHANNEL), inputs(20, 6), "int16"),
        (draw(6), Grid(Dtype.int4), inputs(20, 6), "by feature"),
    ],
    ids=["no data", "kernel", "other features", "float", "wide", "vector"],
)
def test_where_there_is_nothing_to_learn(weight, grid, x, reason):
    case = Problem(weight, grid, grid.weight_block(tuple(weight.shape)), statistics={} if x is None else gram(x))
    found, searched = adaround.solve(case), scale_search.solve(case)
    assert reason in found.facts["fallback"]
    assert torch.equal(found.qtensor.packed, searched.qtensor.packed)
    assert {key: value for key, value in found.facts.items() if key != "fallback"} == searched.facts


def test_silence():
    """Inputs that are all zero say nothing: nearest rounding."""
    case = problem(draw(4, 6), GRIDS["int4 by channel"], torch.zeros(20, 6))
    assert torch.equal(adaround.solve(case).qtensor.codes(), QTensor.encode(case.weight, rtn.qparams(case)).codes())


def test_steps_below_zero():
    with pytest.raises(UsageError, match="steps=-1"):
        adaround.solve(problem(draw(4, 6), GRIDS["int4 by channel"]), steps=-1)


def test_the_same_whatever_the_number_of_threads(threads, monkeypatch):
    monkeypatch.setattr(adaround, "_ELEMENTS", 300)
    case = problem(draw(24, 40), GRIDS["int4 by channel"], inputs(100, 40))
    state = torch.get_rng_state()
    codes = threads(lambda: adaround.solve(case, steps=50).qtensor.codes())
    monkeypatch.undo()
    assert torch.equal(codes, adaround.solve(case, steps=50).qtensor.codes())
    assert torch.equal(state, torch.get_rng_state())


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6), rows=st.integers(1, 5), width=st.integers(1, 9), samples=st.integers(1, 6),
    size=st.sampled_from([1e-20, 1e-3, 1.0, 1e15]), grid=st.sampled_from(list(GRIDS.values())),
)  # fmt: skip
def test_never_worse(seed, rows, width, samples, size, grid):
    """Few samples, odd sizes, rows of zeros: not above plain rounding, on the data and on what was kept aside."""
    weight, x = draw(rows, width, seed=seed) * size, draw(samples, width, seed=seed + 1)
    weight[0] *= draw(width, seed=seed) > 0
    case = problem(weight, grid, x, other := inputs(4, width, seed + 2))
    found, plain = adaround.solve(case, steps=10).qtensor, QTensor.encode(weight, rtn.qparams(case))
    for data in (x, other):
        ours, rounded = (banded(off(weight, each, data), case) for each in (found, plain))
        # Errors that cancel to nothing are still so much of the output, as float64 rounds.
        assert (ours <= rounded * (1 + 1e-6) + 1e-12 * size**2).all()
