# SPDX-License-Identifier: Apache-2.0
"""The cheapest answers to all questions at once, against every combination of answers."""

from itertools import pairwise, product
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from fewbit.backends.graph.cut import Choice

# Whole numbers, so that sums are exact; few of them, so that ties happen.
COSTS = st.integers(0, 9).map(float)


@st.composite
def questions(draw):
    count = draw(st.integers(1, 8))
    things = st.integers(0, count - 1)
    some = st.lists(things, min_size=1, max_size=4, unique=True)
    own = draw(st.lists(st.tuples(COSTS | st.just(inf), COSTS), min_size=count, max_size=count))
    any_yes = draw(st.lists(st.tuples(some, st.none() | things, COSTS), max_size=5))
    any_no = draw(st.lists(st.tuples(some, things, COSTS), max_size=5))
    return own, any_yes, any_no


def price(answers, own, any_yes, any_no):
    total = sum(yes if answer else no for answer, (yes, no) in zip(answers, own))
    for members, without, cost in any_yes:
        if any(answers[i] for i in members) and (without is None or not answers[without]):
            total += cost
    for members, beside, cost in any_no:
        if answers[beside] and not all(answers[i] for i in members):
            total += cost
    return total


def solved(own, any_yes, any_no):
    choice = Choice()
    labels = [choice.add(yes=yes, no=no) for yes, no in own]
    for members, without, cost in any_yes:
        choice.charge_if_any(
            [labels[i] for i in members], without=None if without is None else labels[without], cost=cost
        )
    for members, beside, cost in any_no:
        choice.charge_if_any_not([labels[i] for i in members], beside=labels[beside], cost=cost)
    return choice.solve(labels)


@given(questions())
def test_no_combination_of_answers_costs_less(asked):
    found = solved(*asked)
    costs = {answers: price(answers, *asked) for answers in product((False, True), repeat=len(asked[0]))}
    assert price(found, *asked) == min(costs.values())


@given(questions())
def test_where_both_cost_the_same_the_answer_is_no(asked):
    found = solved(*asked)
    least = price(found, *asked)
    for answers in product((False, True), repeat=len(found)):
        if price(answers, *asked) == least:
            assert all(there or not here for here, there in zip(found, answers))


def test_what_cannot_be_is_not():
    choice = Choice()
    never, wanted = choice.add(yes=inf), choice.add(no=5.0)
    choice.charge_if_any_not([never], beside=wanted, cost=4.0)
    assert choice.solve([never, wanted]) == [False, True]
    choice.charge_if_any_not([never], beside=wanted, cost=2.0)
    assert choice.solve([never, wanted]) == [False, False]


def test_thousands_in_a_row_take_no_recursion():
    choice = Choice()
    row = [choice.add(yes=0.0, no=1.0 if i == 0 else 0.0) for i in range(3000)]
    for before, after in pairwise(row):
        choice.charge_if_any([before], without=after, cost=2.0)
    assert all(choice.solve(row))
