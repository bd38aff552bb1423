# SPDX-License-Identifier: Apache-2.0
"""Equalization: where it pays, by how much for real, and that it never costs."""

from dataclasses import replace

import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.algorithms import equalization
from fewbit.algorithms._base import Activation, LinkProblem, Operand, Rescaling
from fewbit.errors import DataError, UsageError
from linked_layers import BY_CHANNEL, BY_TENSOR, expected, link_of, lost, statistics


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def solve(problem, **parameters):
    """The result, after a look at what every result promises."""
    found = equalization.solve(problem, **parameters)
    assert isinstance(found, Rescaling) and orjson.dumps(found.facts)
    assert found.facts["error"] <= found.facts["error_unscaled"]
    if found.factors is None:
        assert found.facts["reason"]
        return found
    assert found.factors.dtype is torch.float32 and found.factors.shape == (problem.outputs,)
    assert bool((found.factors > 0).all() and found.factors.isfinite().all())
    loose = set(range(problem.outputs)) - set(problem.channels)
    assert all(found.factors[channel] == 1 for channel in loose)
    return found


def test_a_depthwise_layer_takes_all_of_it():
    """Its channels have scales of their own, so the activation can be levelled for nothing."""
    x, sizes = draw(2000, 16), torch.logspace(0, -3, 12).unsqueeze(1)
    link = link_of(draw(12, 16, seed=1) * sizes, draw(12, 1, seed=2) / sizes, x, groups=12)
    found = solve(link)
    assert found.facts["by"] == "activation" and found.facts["alpha"] == 1.0
    after = link.rescaled(found.factors)
    torch.testing.assert_close(after.activation.high, link.activation.high.max().expand(12), rtol=1e-4, atol=0)
    assert lost(after, x) < lost(link, x) / 100
    assert after.activation.high.max() == pytest.approx(link.activation.high.max().item(), rel=1e-5)


def test_the_classical_case():
    """One scale a weight and float activations: what the paper has, whose factors are sqrt(r1 / r2)."""
    a, b = torch.exp(2 * draw(2, 12))
    x, first, second = draw(2000, 16), draw(12, 16, seed=1).sign() * a.unsqueeze(1), draw(8, 12, seed=2).sign() * b
    link = link_of(first, second, x, grid=BY_TENSOR)
    found = solve(replace(link, activation=replace(link.activation, grid=None)))
    assert (found.facts["by"], found.facts["alpha"], found.facts["strength"]) == ("weight", 0.5, 1.0)
    wanted = (a / b).sqrt()
    torch.testing.assert_close(found.factors / found.factors[0], wanted / wanted[0])


def test_it_pays_for_real():
    x, sizes = draw(2000, 16), torch.logspace(0, -2, 12).unsqueeze(1)
    for grid in (BY_CHANNEL, BY_TENSOR):
        link = link_of(draw(12, 16, seed=1) * sizes, draw(8, 12, seed=2) / sizes.T, x, grid=grid)
        found = solve(link)
        before, after = lost(link, x), lost(link.rescaled(found.factors), x)
        assert after < before / 5
        assert 0.4 < after / found.facts["error"] < 1.1  # a ReLU's zeros are exact


def test_a_link_in_balance_is_left_alone():
    found = solve(link_of(torch.eye(12), draw(8, 12, seed=2).sign(), draw(500, 12).sign()))
    assert found.factors is None and "10%" in found.facts["reason"]
    assert found.facts["error"] == found.facts["error_unscaled"] > 0


def test_the_margin_is_kept():
    link = link_of(draw(12, 16, seed=1) * torch.logspace(0, -1, 12).unsqueeze(1), draw(8, 12, seed=2), draw(500, 16))
    facts = solve(link, margin=0.0).facts
    gain = 1 - facts["error"] / facts["error_unscaled"]
    assert gain > 0.01
    assert solve(link, margin=gain * 0.99).factors is not None and solve(link, margin=gain * 1.01).factors is None
    for margin in (1.0, -0.1):
        with pytest.raises(UsageError, match="margin"):
            equalization.solve(link, margin=margin)


def test_dead_channels_stay_as_they_are():
    """Of no range in the activation, in the producer, or in the consumers; and others next to nothing."""
    sizes = torch.logspace(0, -3, 6).unsqueeze(1)
    first, second = draw(6, 16, seed=1) * sizes, draw(8, 6, seed=2)
    first[1], second[:, 2] = 0.0, 0.0
    first[4] = 1e-30
    link = link_of(first, second, draw(500, 16), grid=BY_TENSOR)
    found = solve(link)
    assert found.factors[1] == found.factors[2] == 1 and found.factors[0] != found.factors[5]
    after = link.rescaled(found.factors)
    assert bool(after.producer.weight.isfinite().all()) and bool(after.consumers[0].weight.isfinite().all())
    nothing = LinkProblem(
        [Operand(torch.zeros(2, 3))], range(3), Operand(torch.zeros(3, 2)), statistics(torch.zeros(4, 3))
    )
    assert solve(nothing).factors is None


def test_repeated_and_foreign_channels():
    """Heads that share a key: the largest of a channel's readers decides, and the others follow."""
    channels = (0, 1, 0, 1, -1)
    sizes = torch.tensor([1.0, 0.01, 2.0, 0.02, 1.0])
    seen = statistics(draw(500, 5) * sizes)
    link = LinkProblem([Operand(draw(8, 5, seed=1) / sizes)], channels, Operand(draw(3, 4, seed=2), BY_TENSOR), seen)
    found = solve(link)
    assert found.factors is not None and found.factors[2] == 1
    after = link.rescaled(found.factors).activation
    assert after.high[4] == seen.high[4] and after.high[1] > 5 * seen.high[1]


def test_half_precision_is_not_left():
    first, second = torch.full((8, 4), 3000.0).half(), torch.ones(8, 1).half()
    second[7] = 0.002
    seen = Activation(torch.zeros(8), torch.tensor([1.0] * 7 + [500.0]))
    link = LinkProblem([Operand(second, BY_CHANNEL, groups=8)], range(8), Operand(first), seen)
    found = solve(link)
    assert found.factors[0] < 0.8 and found.factors[7] == 1  # 1 / 500 would be level
    after = link.rescaled(found.factors)
    assert bool((after.producer.weight.half().isfinite() & after.consumers[0].weight.half().isfinite()).all())


def test_without_data():
    """The producer's weights say what is large."""
    sizes = torch.logspace(0, -3, 12).unsqueeze(1)
    link = LinkProblem(
        [Operand(draw(8, 12, seed=2) / sizes.T, BY_TENSOR)], range(12), Operand(draw(12, 16) * sizes, BY_TENSOR)
    )
    found = solve(link)
    assert found.facts["by"] == "weight" and found.facts["error"] < found.facts["error_unscaled"] / 100
    nothing = solve(LinkProblem([Operand(draw(8, 12))], range(12)))
    assert nothing.factors is None and "nothing to take factors from" in nothing.facts["reason"]


def test_what_is_not_finite():
    with pytest.raises(DataError, match="not finite"):
        equalization.solve(LinkProblem([Operand(torch.tensor([[float("inf")]]))], (0,)))


def test_the_same_whatever_the_number_of_threads(threads):
    link = link_of(draw(96, 64, seed=1) * torch.logspace(0, -3, 96).unsqueeze(1), draw(64, 96), draw(500, 64))
    threads(lambda: equalization.solve(link).factors)


def test_nothing_given_is_changed():
    link = link_of(draw(12, 16) * torch.logspace(0, -3, 12).unsqueeze(1), draw(12, 1), draw(100, 16), groups=12)
    tensors = [link.producer.weight, link.consumers[0].weight, link.activation.low, link.activation.mean_square]
    before = [tensor.clone() for tensor in tensors]
    equalization.solve(link)
    assert all(map(torch.equal, tensors, before))


sizes = st.lists(st.sampled_from([0.0, 1e-20, 1e-6, 0.01, 0.5, 1.0, 3.0, 1e4, 1e12]), min_size=4, max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    rows=sizes, columns=sizes, seed=st.integers(0, 9), depthwise=st.booleans(), tensor=st.booleans(),
    channels=st.sampled_from([(0, 1, 2, 3), (0, 1, -1, 2), (3, 3, 0, 1), (-1, -1, -1, 2)]),
)  # fmt: skip
def test_never_worse(rows, columns, seed, depthwise, tensor, channels):
    """By the loops of the tests, on links with odd sizes everywhere."""
    grid = BY_TENSOR if tensor else BY_CHANNEL
    second = draw(4, 1, seed=seed) if depthwise else draw(3, 4, seed=seed) * torch.tensor(columns)
    first, x = draw(4, 5, seed=seed + 1) * torch.tensor(rows).unsqueeze(1), draw(50, 5, seed=seed + 2)
    produced = (x @ first.T).relu()
    middle = torch.stack([produced[:, c] if c >= 0 else draw(50, seed=c + 9) for c in channels], 1)
    consumer = Operand(second, grid, groups=4 if depthwise else 1)
    link = LinkProblem([consumer], channels, Operand(first, grid, mean_square=x.square().mean(0)), statistics(middle))
    found = solve(link)
    if found.factors is not None:
        assert expected(link.rescaled(found.factors)) <= 0.91 * expected(link)
