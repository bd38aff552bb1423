# SPDX-License-Identifier: Apache-2.0
"""Sensitivities against the divergence itself."""

import torch
from torch import nn

from fewbit.engine.fisher import Curvature, Curvatures, direction
from fewbit.engine.questions import Question
from fewbit.engine.run import view_of
from fewbit.model.points import Role

DRAW = torch.Generator().manual_seed(0)


def question(item, **named):
    return Question(item, named, "item")


def test_directions_have_the_covariance_of_the_softmax():
    scores = torch.tensor([[2.0, 0.0, -1.0, 0.5]])
    p = scores.softmax(-1)[0]
    found = [direction(question(scores), [scores], seed)[1][0] for seed in range(4000)]
    rows = torch.stack(found)
    torch.testing.assert_close(rows.T @ rows / len(rows), p.diag() - torch.outer(p, p), rtol=0, atol=0.01)
    assert rows.sum(-1).abs().max() < 1e-5  # what adds the same to all scores changes no answer


def test_padding_does_not_count():
    ids, mask = torch.ones(2, 3, dtype=torch.int64), torch.tensor([[1, 1, 0], [1, 0, 0]])
    asked = question(ids, input_ids=ids, attention_mask=mask)
    number, v, positions = direction(asked, [torch.randn(2, 3, 5, generator=DRAW)], 0)
    assert (number, positions) == (0, 3)
    assert bool((v[mask == 0] == 0).all()) and bool((v[mask == 1] != 0).any())


def test_values_count_by_their_own_spread():
    values = 100 * torch.randn(6, 4, 5, generator=DRAW)
    number, v, positions = direction(question(values), [torch.tensor(1), values], 0)
    assert (number, positions) == (1, 24) and bool(((v.abs() * values.std() - 1).abs() < 1e-5).all())


def test_harm_is_the_sum_over_elements_where_gradients_are_products():
    rows, columns = torch.rand(2, 3, generator=DRAW), torch.rand(2, 8, generator=DRAW)
    squares = rows[:, :, None] * columns[:, None]
    off = torch.randn(2, 3, 4, 2, generator=DRAW)  # a stack, outputs, inputs, a kernel
    wanted = sum(float(squares[e, o, i] * off.reshape(2, 3, 8)[e, o, i] ** 2) / 2
                 for e in range(2) for o in range(3) for i in range(8))  # fmt: skip
    found = Curvature(squares.sum(-1), squares.sum(-2)).harm(off, stack=1)
    assert abs(found / wanted - 1) < 1e-5


def test_it_foretells_the_divergence_of_noise():
    """The KL divergence of a classifier whose weights are off by noise, against what gradients foretell of it."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 6)).eval()
    x = torch.randn(64, 12, generator=DRAW) * torch.linspace(0.1, 2, 12)
    view = view_of(model)
    points = view.points(lambda p: p.role is Role.weight)
    asked = [question(((x[i : i + 4],), {}), x=x[i : i + 4]) for i in range(0, 64, 4)]
    seen = Curvatures()
    seen.collect(view, points, asked)
    assert seen.positions == 64 and seen.items == 16
    for point in points:
        foretold, measured = [], []
        weight = model.get_submodule(point.layer).weight
        for _ in range(20):
            off = 0.02 * torch.randn(weight.shape, generator=DRAW)
            foretold.append(seen.found[point.name].harm(off, 0) / seen.positions)
            with torch.no_grad():
                before = model(x).double().log_softmax(-1)
                weight += off
                after = model(x).double().log_softmax(-1)
                weight -= off
            measured.append(float((before.exp() * (before - after)).sum(-1).mean()))
        assert 0.6 < sum(foretold) / sum(measured) < 1.6
