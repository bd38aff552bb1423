# SPDX-License-Identifier: Apache-2.0
"""Links as tensors: scaling one leaves what it computes alone, and its statistics follow without data."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fewbit.algorithms._base import Activation, LinkProblem, Operand
from fewbit.algorithms._link_error import LinkError
from fewbit.errors import DataError, UsageError
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from linked_layers import BY_CHANNEL, BY_TENSOR, expected, link_of, lost, statistics


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def concatenated():
    """Two consumers, one with groups and a kernel; input channels that are repeated, swapped or somebody else's."""
    channels = (2, 0, -1, 1, 1, -1)
    middle = draw(40, 6, seed=3) * torch.tensor([1.0, 5.0, 0.2, 3.0, 3.0, 9.0])
    consumers = [Operand(draw(4, 6, seed=1), BY_TENSOR), Operand(draw(6, 2, 3, seed=2), BY_CHANNEL, groups=3)]
    producer = Operand(draw(3, 5, seed=4), BY_TENSOR, bias=draw(3, seed=6), mean_square=draw(5, seed=5).square())
    return LinkProblem(consumers, channels, producer, statistics(middle))


FACTORS = torch.tensor([0.25, 3.0, 7.0])


def test_a_rescaled_link_computes_the_same():
    problem, x = concatenated(), draw(4, 5, seed=8)
    after = problem.rescaled(FACTORS)
    outputs = []
    for link in (problem, after):
        produced = nn.functional.linear(x, link.producer.weight, link.producer.bias).relu()
        middle = torch.where(link.index(x.device) >= 0, produced[:, link.index(x.device)], 1.0)
        plain, grouped = link.consumers
        outputs += [
            middle @ plain.weight.T,
            nn.functional.conv1d(middle.unsqueeze(2).expand(-1, -1, 5), grouped.weight, groups=3),
        ]
    torch.testing.assert_close(outputs[:2], outputs[2:])
    assert not torch.equal(problem.producer.weight, after.producer.weight)


def test_statistics_follow_without_data():
    middle = draw(40, 6, seed=3)
    by = torch.tensor([1.0, 2.0, 0.5, 100.0, 0.01, 3.0])
    found, wanted = statistics(middle).divided(by), statistics(middle / by)
    torch.testing.assert_close(
        (found.low, found.high, found.mean_square), (wanted.low, wanted.high, wanted.mean_square)
    )
    assert Activation().divided(by) == Activation()


@pytest.mark.parametrize("factors", [torch.ones(3), FACTORS])
@pytest.mark.parametrize("grid", [Grid(Dtype.uint8, symmetric=False), Grid(Dtype.int8), None], ids=str)
def test_the_model_against_loops(factors, grid):
    problem = concatenated()
    problem = replace(problem, activation=replace(problem.activation, grid=grid))
    assert LinkError(problem)(factors) == pytest.approx(expected(problem.rescaled(factors)), rel=1e-5)


def test_the_model_of_groups_asymmetric_weights_and_tables():
    """Blocks along `in`: each has the step of its own range."""
    w, square = draw(3, 70), draw(70, seed=1).square()
    group = {"granularity": QSchemeType.per_group, "group_size": 32}
    for grid, levels in (
        (Grid(Dtype.uint4, symmetric=False, **group), lambda part: (part.max() - part.min()) / 15),
        (Grid(Dtype.int4, **group), lambda part: part.abs().max() * 2 / 15),
        (Grid(Dtype.nf4, **group), lambda part: part.abs().max() * 2 / 15),
    ):
        problem = LinkProblem([Operand(w, grid)], range(70), activation=Activation(mean_square=square, grid=None))
        noise = sum(
            (levels(row[at : at + 32]) ** 2 / 12 * square[at : at + 32].sum()).item() for row in w for at in (0, 32, 64)
        )
        assert LinkError(problem)(torch.ones(70)) == pytest.approx(noise / (w.square() * square).sum().item(), rel=1e-5)
    floats = LinkProblem([Operand(w, Grid(Dtype.fp8_e4m3, **group))], range(70))
    assert LinkError(floats)(torch.ones(70)) == 0.0  # no factor changes what they lose


@pytest.mark.parametrize("grid", [BY_CHANNEL, BY_TENSOR], ids=["by channel", "by tensor"])
@pytest.mark.parametrize("groups", [1, 24])
@pytest.mark.parametrize(("between", "least", "most"), [(torch.nn.Identity(), 0.9, 1.1), (torch.relu, 0.4, 1.0)])
def test_the_model_against_reality(grid, groups, between, least, most):
    """The average of a few: a link rounded for real loses what was expected; less where a ReLU's zeros stay exact."""
    ratios = []
    for seed in range(4):
        x, spread = draw(2000, 32, seed=seed), torch.logspace(0, -1, 24).unsqueeze(1)
        first, second = draw(24, 32, seed=seed + 50) * spread, draw(24, 24 // groups, seed=seed + 100)
        link = link_of(first, second, x, grid=grid, groups=groups, between=between)
        ratios.append(lost(link, x, between) / LinkError(link)(torch.ones(24)))
    assert least < sum(ratios) / len(ratios) < most, ratios


def test_without_data_the_producer_says_how_large_channels_are():
    """E[x²] is then that of inputs that are all alike."""
    first, second = draw(5, 8), draw(4, 5, seed=1)
    bare = LinkProblem([Operand(second)], range(5), Operand(first))
    told = replace(bare, activation=Activation(mean_square=first.double().square().sum(1)))
    assert LinkError(bare)(torch.ones(5)) == LinkError(told)(torch.ones(5)) > 0
    norm = LinkProblem([Operand(second)], range(5), Operand(first[:, 0], None))
    told = replace(norm, activation=Activation(mean_square=first[:, 0].double().square()))
    assert LinkError(norm)(torch.ones(5)) == LinkError(told)(torch.ones(5)) > 0
    flat = LinkProblem([Operand(second)], range(5), activation=Activation(mean_square=torch.ones(5)))
    assert LinkError(LinkProblem([Operand(second)], range(5)))(torch.ones(5)) == LinkError(flat)(torch.ones(5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels": (0, 1)}, "consumer 0 has 3"),
        ({"consumers": []}, "without a consumer"),
        ({"channels": (0, 1, 5)}, "channels from 0 to 5 of a producer with 3"),
        ({"channels": (0, 1, -2)}, "from -2"),
        ({"activation": Activation(low=torch.zeros(4))}, "low has 4"),
    ],
)
def test_what_does_not_fit(change, message):
    link = LinkProblem([Operand(torch.ones(2, 3))], (0, 1, 2), Operand(torch.ones(3, 3)), name="a -> b")
    link.check()
    with pytest.raises(UsageError, match=message) as error:
        replace(link, **change).check()
    assert error.value.where == "a -> b"


def test_what_is_not_finite():
    bad = torch.tensor([[1.0, float("nan")]])
    for link in (
        LinkProblem([Operand(bad)], (0, 1)),
        LinkProblem([Operand(torch.ones(1, 2))], (0, 1), Operand(bad.T)),
        LinkProblem([Operand(torch.ones(1, 2))], (0, 1), activation=Activation(high=bad[0])),
    ):
        with pytest.raises(DataError, match="not finite"):
            link.check()
