# SPDX-License-Identifier: Apache-2.0
"""Sums over what a stage reads, against the products they stand for."""

import pytest
import torch

from fewbit.engine.second_moments import Gathered
from fewbit.model.walking import Inputs


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("width", [1, 7, 600, 1100, 2049])
def test_wide_moments_are_summed_below_the_diagonal_only(width):
    items = [drawn(9, width, seed=seed) for seed in range(3)]
    seen = Gathered()
    for index, x in enumerate(items):
        seen.add(Inputs(index, x, x + 1))
    rows = torch.cat(items)
    found = seen.sides[False]
    torch.testing.assert_close(found.second_moment(), rows.T @ rows, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(found.cross, (rows + 1).T @ rows, rtol=1e-4, atol=1e-3)
    assert int(found.count) == len(rows)
    torch.testing.assert_close(found.observers()["gram"].seen["gram"], found.second_moment())


def test_a_layer_that_adds_to_a_state_is_asked_for_what_the_state_lacks():
    weight, x, wanted = drawn(4, 6, seed=0), drawn(11, 6, seed=1), drawn(11, 6, seed=2)
    state, wanted_state = drawn(11, 4, seed=3), drawn(11, 4, seed=4)
    seen = Gathered()
    seen.add(Inputs(0, x, wanted, state, wanted_state), weight)
    aim = wanted @ weight.T + wanted_state - state
    found = seen.sides[False]
    torch.testing.assert_close(found.wanted(weight), aim.T @ x)
    assert found.cross is None
    # The weight that answers best by these sums is the one of least squares.
    best = torch.linalg.lstsq(x, aim).solution.T
    torch.testing.assert_close(
        torch.linalg.solve(found.second_moment(), found.wanted(weight).T).T, best, rtol=1e-3, atol=1e-3
    )


def test_sums_survive_a_file_and_add_up():
    one, other = Gathered(), Gathered()
    weight = drawn(3, 5, seed=9)
    for seed, seen in enumerate((one, other)):
        x = drawn(8, 5, seed=seed)
        seen.add(Inputs(0, x, x, drawn(8, 3, seed=5), drawn(8, 3, seed=6)), weight)
    total = Gathered.of({name: x.clone() for name, x in one.tensors().items()})
    total.absorb(other)
    for name in ("gram", "answer", "sum"):
        wanted = one.tensors()[f"teach.{name}"] + other.tensors()[f"teach.{name}"]
        torch.testing.assert_close(total.tensors()[f"teach.{name}"], wanted)
