# SPDX-License-Identifier: Apache-2.0
"""SmoothQuant: the formula, the choice of alpha against all of them, and that it never costs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.algorithms import smooth_quant
from fewbit.algorithms._base import Activation, LinkProblem, Operand
from fewbit.errors import UsageError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from linked_layers import BY_CHANNEL, BY_TENSOR, expected, rounded, statistics


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def outliers(rows=400, width=24, size=60.0, seed=0):
    """What a transformer's norm gives: a few channels far above the others."""
    x = draw(rows, width, seed=seed)
    x[:, 3] *= size
    x[:, 11] = x[:, 11] * size / 2 + size
    return x


def link_of(x, *weights, grid=BY_CHANNEL, activation=None):
    return LinkProblem([Operand(w, grid) for w in weights], range(x.shape[1]), None, statistics(x, activation))


def formula(link, alpha):
    """As the paper has it, in plain torch."""
    seen = link.activation
    x = torch.maximum(seen.low.abs(), seen.high.abs())
    w = torch.stack([consumer.weight.abs().amax(0) for consumer in link.consumers]).amax(0)
    return x**alpha / w ** (1 - alpha)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_the_formula(alpha):
    """Up to a common factor, which leaves the activation's reach as it was; two consumers share it."""
    link = link_of(outliers(), draw(16, 24, seed=1) * 3, draw(8, 24, seed=2))
    found = smooth_quant.solve(link, alpha=alpha, margin=0.0)
    wanted = formula(link, alpha)
    if found.factors is None:
        assert expected(link.rescaled(wanted)) >= expected(link)
        return
    assert found.facts["alpha"] == alpha
    torch.testing.assert_close(found.factors / found.factors[0], wanted / wanted[0], rtol=1e-4, atol=0)
    after = link.rescaled(found.factors).activation
    reach = torch.maximum(link.activation.high, -link.activation.low).max()
    assert torch.maximum(after.high, -after.low).max().item() == pytest.approx(reach.item(), rel=1e-5)


@pytest.mark.parametrize("grid", [BY_CHANNEL, BY_TENSOR], ids=["by channel", "by tensor"])
@pytest.mark.parametrize("activation", [Grid(Dtype.uint8, symmetric=False), Grid(Dtype.int8)], ids=["uint8", "int8"])
def test_alpha_is_the_best_of_all(grid, activation):
    for seed in range(3):
        link = link_of(outliers(seed=seed), draw(16, 24, seed=seed + 5), grid=grid, activation=activation)
        found = smooth_quant.solve(link)
        by_alpha = {step / 10: expected(link.rescaled(formula(link, step / 10))) for step in range(11)}
        assert found.facts["alpha"] == min(by_alpha, key=by_alpha.get)
        assert found.facts["error"] == pytest.approx(min(by_alpha.values()), rel=1e-4)
        assert found.facts["error_unscaled"] == pytest.approx(expected(link), rel=1e-4)


def test_it_pays_for_real():
    x, w = outliers(), draw(16, 24, seed=1)
    found = smooth_quant.solve(link_of(x, w))

    def loses(x, w):
        grid = Grid(Dtype.uint8, symmetric=False)
        return ((rounded(x, grid) @ rounded(w, BY_CHANNEL, by_row=True).T) - x @ w.T).square().mean()

    assert loses(x / found.factors, w * found.factors) < loses(x, w) / 5


def test_one_sided_activations_count_as_such():
    """The same magnitudes, but all of one sign: an asymmetric grid has twice the steps for them, so less is gained."""
    x, w = outliers(), draw(16, 24, seed=1)
    both, one = (smooth_quant.solve(link_of(act, w)).facts["error_unscaled"] for act in (x, x.abs()))
    signed = smooth_quant.solve(link_of(x.abs(), w, activation=Grid(Dtype.int8))).facts["error_unscaled"]
    assert one < both * 0.5 and one < signed * 0.5


def test_smooth_activations_are_left_alone():
    found = smooth_quant.solve(link_of(draw(400, 24).sign(), draw(16, 24, seed=1).sign()))
    assert found.factors is None and found.facts["error"] == found.facts["error_unscaled"]


def test_what_was_not_seen():
    link = LinkProblem([Operand(draw(4, 3))], range(3), activation=Activation())
    found = smooth_quant.solve(link)
    assert found.factors is None and "nothing to take factors from" in found.facts["reason"]


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_an_alpha_that_is_none(alpha):
    with pytest.raises(UsageError, match="alpha"):
        smooth_quant.solve(link_of(draw(4, 3), draw(2, 3)), alpha=alpha)


def test_the_same_whatever_the_number_of_threads(threads):
    link = link_of(outliers(width=96), draw(128, 96), draw(64, 96, seed=3))
    threads(lambda: smooth_quant.solve(link).factors)


sizes = st.lists(st.sampled_from([0.0, 1e-20, 1e-6, 0.01, 0.5, 1.0, 3.0, 1e4, 1e12]), min_size=4, max_size=4)


@settings(max_examples=60, deadline=None)
@given(rows=sizes, columns=sizes, seed=st.integers(0, 9), alpha=st.none() | st.floats(0, 1), tensor=st.booleans())
def test_never_worse(rows, columns, seed, alpha, tensor):
    x, w = draw(50, 4, seed=seed) * torch.tensor(rows), draw(3, 4, seed=seed + 1) * torch.tensor(columns)
    link = link_of(x, w, draw(2, 4, seed=seed + 2), grid=BY_TENSOR if tensor else BY_CHANNEL)
    found = smooth_quant.solve(link, alpha=alpha)
    if found.factors is not None:
        assert bool((found.factors > 0).all() and found.factors.isfinite().all())
        assert expected(link.rescaled(found.factors)) < expected(link)
