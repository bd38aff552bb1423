# SPDX-License-Identifier: Apache-2.0
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.algorithms._knapsack import least_harm


def spent(costs, found):
    return sum(each[option] for each, option in zip(costs, found))


def by_force(costs, harms, budget):
    """The least harm of every choice there is; none if none fits."""
    fitting = [found for found in product(*(range(len(each)) for each in costs)) if spent(costs, found) <= budget]
    return min((spent(harms, found) for found in fitting), default=None)


@st.composite
def problems(draw, highest):
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    costs = [[draw(st.integers(0, highest)) for _ in range(n)] for n in shape]
    harms = [[draw(st.integers(0, 1000)) / 8 for _ in range(n)] for n in shape]
    return costs, harms, draw(st.integers(0, 2 * highest))


@settings(max_examples=300, deadline=None)
@given(problems(highest=60))
def test_no_choice_within_the_budget_does_less_harm(problem):
    costs, harms, budget = problem
    found, best = least_harm(costs, harms, budget), by_force(*problem)
    assert (found is None) == (best is None)
    if found is not None:
        assert spent(costs, found) <= budget and spent(harms, found) == best


@settings(max_examples=300, deadline=None)
@given(problems(highest=10_000), st.integers(3, 40))
def test_with_few_steps_it_is_as_good_as_a_budget_that_is_a_step_a_thing_smaller(problem, steps):
    costs, harms, budget = problem
    found, best = least_harm(costs, harms, budget, steps), by_force(*problem)
    assert (found is None) == (best is None)
    if found is not None:
        assert spent(costs, found) <= budget
        room = budget - sum(map(min, costs))
        smaller = by_force(costs, harms, budget - len(costs) * -(-room // steps))
        assert best <= spent(harms, found) and (smaller is None or spent(harms, found) <= smaller)


@pytest.mark.parametrize("steps", [1 << 14, 50])
def test_many_things_of_a_few_sizes_use_the_budget(steps):
    sizes = [1536, 1024, 7168, 3584]
    costs = [[size, 2 * size] for _ in range(32) for size in sizes]
    harms = [[1 + (i * 7919 % 101) / 10, 0.01] for i in range(len(costs))]
    budget = int(1.3 * sum(each[0] for each in costs))
    found = least_harm(costs, harms, budget, steps)
    assert found is not None
    assert budget - spent(costs, found) < (min(sizes) if steps > 50 else 2 * max(sizes))


def test_an_exchange_spends_what_rounding_up_left():
    # In two steps of 50 nothing of 51 fits beside another; exactly, all of it does.
    assert least_harm([[0, 51], [0, 49]], [[9.0, 0.0], [4.0, 0.0]], 100, steps=2) == [1, 1]


def test_equal_harm_takes_what_costs_less():
    assert least_harm([[4, 2, 3]], [[1.0, 1.0, 1.0]], 10) == [1]
