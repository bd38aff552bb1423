# SPDX-License-Identifier: Apache-2.0
"""AWQ: the formulas, the choice against all candidates rounded by other code, and that it never costs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.algorithms import awq, rtn
from fewbit.algorithms._base import Activation, LinkProblem, Operand
from fewbit.algorithms._link_rounding import RoundedError, thinned
from fewbit.errors import UsageError
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid

INT4 = Grid(Dtype.int4, QSchemeType.per_group, group_size=8)
BY_TENSOR = Grid(Dtype.int4)


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def salient(width=16, size=30.0):
    """E[x²] of channels two of which carry much."""
    square = draw(width, seed=5).exp()
    square[[3, 11]] *= size**2
    return square


def link_of(square, *weights, grid=INT4, channels=None, producer=None):
    seen = Activation(mean_square=square, grid=None)
    return LinkProblem([Operand(w, grid) for w in weights], channels or range(len(square)), producer, seen)


def nearest(weight, group):
    """Symmetric int4, 15 steps from end to end, without any of fewbit's own rounding."""
    rows = weight.double().reshape(-1, group)
    step = rows.abs().amax(1, keepdim=True) * 2 / 15
    return ((rows / step.clamp(min=1e-300)).round().clamp(-8, 7) * step).reshape(weight.shape)


def lost(weight, square, by, group):
    """The share of the output's energy that Q(W s) / s loses, as sums over elements."""
    back = nearest(weight * by, group) / by
    wide = weight.double()
    return float(((back - wide).square() * square).sum() / (wide.square() * square).sum())


def formulas(square, weight):
    """All candidates, as the paper has them."""
    x, w = square.double().sqrt(), weight.double().abs().mean(0)
    x = x.clamp(min=0.1 * x.median())
    for over in (torch.ones_like(w), w):
        for step in range(21):
            s = x ** (step / 20) / over ** (1 - step / 20)
            yield s / (s.max() * s.min()).sqrt()


@pytest.mark.parametrize("grid", [INT4, BY_TENSOR], ids=["groups", "by tensor"])
def test_the_error_is_that_of_the_rounded_weight(grid):
    weight, square = draw(6, 16), salient()
    for by in (torch.ones(16), draw(16, seed=3).exp()):
        measured = RoundedError(link_of(square, weight, grid=grid), rtn.qparams)(by)
        group = 8 if grid is INT4 else weight.numel()
        assert measured == pytest.approx(lost(weight, square.double(), by.double(), group), rel=1e-4)


def test_the_choice_is_the_best_of_all(monkeypatch):
    """With plain rounding in the place of the search, candidates can be rounded by a formula of our own."""
    for name in ("_searched", "_searched_quickly"):
        monkeypatch.setattr(awq, name, rtn.qparams)
    for seed in range(4):
        weight, square = draw(6, 16, seed=seed) * draw(16, seed=seed + 9).exp(), salient()
        found = awq.solve(link_of(square, weight))
        errors = {lost(weight, square.double(), s, 8): s for s in formulas(square, weight)}
        best = min(errors)
        assert found.facts["error"] == pytest.approx(best, rel=1e-4)
        assert found.facts["error_unscaled"] == pytest.approx(lost(weight, square.double(), 1.0, 8), rel=1e-4)
        torch.testing.assert_close(found.factors.double(), errors[best], rtol=1e-4, atol=0)


def test_several_consumers_share_the_factors():
    square, weights = salient(), [draw(6, 16), draw(10, 16, seed=1) * 3]
    both = awq.solve(link_of(square, *weights))
    alone = [RoundedError(link_of(square, w), awq._searched) for w in weights]
    assert both.facts["error"] == pytest.approx(sum(each(both.factors) for each in alone) / 2, rel=1e-5)
    assert both.facts["error"] < both.facts["error_unscaled"]


def test_channels_that_are_repeated():
    """Grouped-query attention: each output channel is read twice, and one comes from elsewhere."""
    channels = [0, 1, 2, 3, 0, 1, 2, 3, -1, -1]
    square = torch.tensor([900.0, 1, 1, 1, 900, 1, 1, 1, 4, 4])
    found = awq.solve(link_of(square, draw(8, 10), channels=channels, producer=Operand(draw(5, 7), INT4)))
    assert found.factors is not None and found.factors[4] == 1
    assert found.factors[0] > found.factors[1:4].max()


def test_a_producer_counts_where_its_rows_share_a_scale():
    """Dividing rows changes how far they are off under one scale; with scales of their own it does not."""
    square, first, second = salient(), draw(16, 12) * 0.1, draw(6, 16)
    by = torch.ones(16)
    by[0] = 0.01
    losses = {}
    for name, grid in (("rows", INT4), ("tensor", BY_TENSOR)):
        producer = Operand(first, grid, mean_square=torch.ones(12))
        error = RoundedError(link_of(square, second, grid=None, producer=producer), rtn.qparams)
        losses[name] = error(torch.ones(16)), error(by)
    assert losses["rows"] == (0.0, 0.0)
    noise = [(nearest(each, each.numel()) - each.double()).square().sum(1) for each in (first, first / by[:, None])]
    energy, size = second.double().square().sum(0), (second.double().square() * square).sum()
    wanted = [float((n * energy * s**2).sum() / size) for n, s in zip(noise, (torch.ones(16), by.double()))]
    assert losses["tensor"] == pytest.approx(tuple(wanted), rel=1e-4)


def test_a_smaller_link_has_about_the_same_error():
    weights = draw(100, 16), draw(40, 16, seed=1) * 30
    whole = link_of(salient(), *weights)
    by = draw(16, seed=3).exp()
    errors = {rows: RoundedError(thinned(whole, rows), rtn.qparams)(by) for rows in (100, 20)}
    assert errors[100] == pytest.approx(RoundedError(whole, rtn.qparams)(by), rel=1e-4)
    assert errors[20] == pytest.approx(errors[100], rel=0.5)
    (one,) = thinned(whole, 20).consumers
    assert len(one.weight) == 40
    assert len(thinned(link_of(salient(), *weights, grid=BY_TENSOR), 20).consumers) == 2


def test_what_was_not_seen_and_what_is_dead():
    found = awq.solve(LinkProblem([Operand(draw(4, 3), INT4)], range(3), activation=Activation(grid=None)))
    assert found.factors is None and "nothing to take factors from" in found.facts["reason"]
    assert awq.solve(link_of(torch.zeros(8), draw(4, 8))).factors is None
    square = salient()
    square[5] = 0
    assert awq.solve(link_of(square, draw(6, 16))).factors[5] == 1


@pytest.mark.parametrize(("wrong", "named"), [({"steps": 0}, "steps"), ({"margin": 1.0}, "margin")])
def test_parameters_that_cannot_be(wrong, named):
    with pytest.raises(UsageError, match=named):
        awq.solve(link_of(salient(), draw(6, 16)), **wrong)


def test_the_same_whatever_the_number_of_threads(threads):
    threads(lambda: awq.solve(link_of(salient(96), draw(128, 96), draw(64, 96, seed=3)), steps=4).factors)


sizes = st.lists(st.sampled_from([0.0, 1e-20, 1e-6, 0.01, 1.0, 3.0, 1e4, 1e12]), min_size=8, max_size=8)
grids = st.sampled_from([INT4, BY_TENSOR, Grid(Dtype.int8, QSchemeType.per_channel), Grid(Dtype.nf4)])


@settings(max_examples=40, deadline=None)
@given(rows=sizes, columns=sizes, seed=st.integers(0, 9), grid=grids)
def test_never_worse(rows, columns, seed, grid):
    weight = draw(3, 8, seed=seed) * torch.tensor(columns)
    link = link_of(torch.tensor(rows), weight, grid=grid)
    found = awq.solve(link, steps=4)
    if found.factors is not None:
        assert bool((found.factors > 0).all() and found.factors.isfinite().all())
        after = RoundedError(link.rescaled(found.factors), awq._searched)(torch.ones(8))
        assert after < RoundedError(link, awq._searched)(torch.ones(8))
