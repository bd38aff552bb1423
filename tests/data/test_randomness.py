# SPDX-License-Identifier: Apache-2.0
import random

import numpy as np
import torch

from fewbit.data.randomness import Loan


def draw():
    return random.random(), np.random.rand(), torch.rand(1).item()


def test_the_callers_state_is_untouched():
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = draw()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    loan = Loan()
    for _ in range(3):
        with loan.lend():
            draw()
    assert draw() == expected


def test_every_loan_of_a_seed_draws_the_same_and_goes_on_drawing():
    def pass_over():
        loan = Loan(seed=3)
        found = []
        for _ in range(3):
            with loan.lend():
                found.append(draw())
        return found

    first = pass_over()
    draw()
    assert pass_over() == first
    assert len(set(first)) == 3


def test_a_generator_of_the_user_is_put_back():
    generator = torch.Generator().manual_seed(5)
    before = generator.get_state()
    loan = Loan(generators=[generator])
    with loan.lend():
        a = torch.rand(1, generator=generator)
    with loan.lend():
        b = torch.rand(1, generator=generator)
    assert a != b and torch.equal(generator.get_state(), before)


def test_state_comes_back_after_an_error():
    random.seed(1)
    before = random.getstate()
    try:
        with Loan().lend():
            random.random()
            raise ValueError
    except ValueError:
        pass
    assert random.getstate() == before
