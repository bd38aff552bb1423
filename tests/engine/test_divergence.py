# SPDX-License-Identifier: Apache-2.0
"""KL, agreement and surprise, against torch's own and against sums written out."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.engine import divergence as module
from fewbit.engine.divergence import divergence


def scores(rows, choices, seed=0, spread=3.0):
    return spread * torch.randn(rows, choices, generator=torch.Generator().manual_seed(seed))


def slow_kl(a, b):
    """By hand, one choice after the other."""
    p, q = ([math.exp(x - max(row)) for x in row] for row in (a, b))
    p, q = ([x / sum(row) for x in row] for row in (p, q))
    return sum(x * math.log(x / y) for x, y in zip(p, q))


def test_by_hand_and_by_torch(monkeypatch):
    monkeypatch.setattr(module, "_AT_ONCE", 100)  # several pieces
    a, b = scores(31, 17), scores(31, 17, seed=1)
    targets = torch.arange(31) % 17
    found = divergence(a, b, targets)
    by_torch = torch.nn.functional.kl_div(
        b.double().log_softmax(-1), a.double().log_softmax(-1), reduction="none", log_target=True
    ).sum(-1)
    assert torch.allclose(found.kl, by_torch, rtol=1e-12)
    assert found.kl.tolist() == pytest.approx([slow_kl(x, y) for x, y in zip(a.tolist(), b.tolist())], rel=1e-6)
    losses = torch.nn.functional.cross_entropy(b.double(), targets, reduction="none")
    assert torch.allclose(found.their_surprise, losses) and not torch.allclose(found.surprise, losses)
    assert found.same.tolist() == (a.argmax(1) == b.argmax(1)).tolist()


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=8), st.integers(0, 1000))
def test_never_below_zero_and_zero_for_the_same(row, seed):
    a = torch.tensor([row])
    assert float(divergence(a, a).kl) == 0
    assert float(divergence(a, a + 1e-3 * scores(1, len(row), seed)).kl) >= 0


def test_a_constant_added_to_all_scores_changes_nothing():
    a, b = scores(5, 9), scores(5, 9, seed=1)
    assert torch.allclose(divergence(a, b).kl, divergence(a + 7, b - 4).kl, rtol=1e-5)


def test_positions_without_a_target():
    found = divergence(scores(2, 5), scores(2, 5), torch.tensor([-1, 3]))
    assert found.surprise[0] == 0 and found.surprise[1] > 0


def test_probabilities_are_not_softened_again():
    a, b = scores(6, 4).softmax(-1), scores(6, 4, seed=1).softmax(-1)
    assert torch.allclose(divergence(a, b).kl, divergence(a.log(), b.log()).kl, rtol=1e-4)
    sure, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert 80 < float(divergence(sure, other).kl) < 90  # the smallest float32 is e to the -87


def test_what_is_ruled_out():
    a = torch.tensor([[0.0, 0.0, -torch.inf]])
    assert float(divergence(a, a).kl) == 0
    assert float(divergence(a, torch.tensor([[0.0, 1.0, 0.0]])).kl) == pytest.approx(
        -math.log(2) - 0.5 + math.log(2 + math.e)
    )
    assert 1000 < float(divergence(torch.zeros(1, 3), a).kl) < torch.inf
