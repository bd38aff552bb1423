# SPDX-License-Identifier: Apache-2.0
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.observers.moments import MomentsObserver

numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(st.lists(numbers, min_size=1, max_size=8), min_size=1, max_size=4))
def test_sums_are_exact_enough(batches):
    """Against fractions, which do not round at all."""
    observer = MomentsObserver()
    for batch in batches:
        observer.observe(torch.tensor([batch]))
    values = [Fraction(x) for batch in batches for x in batch]
    state = observer.state()
    assert state["count"] == len(values)
    square, largest = sum(x * x for x in values), max(abs(x) for x in values)
    assert abs(Fraction(state["square"].item()) - square) <= square * Fraction(1e-14)
    assert abs(Fraction(state["sum"].item()) - sum(values)) <= largest * len(values) * Fraction(1e-14)


def test_a_small_value_beside_many_large_ones():
    """float32 sums would lose it: 1e8 + 1 is 1e8 there."""
    observer = MomentsObserver()
    observer.observe(torch.full((1, 1000), 1e4))
    observer.observe(torch.ones(1, 1000))
    assert observer.state()["square"].item() == 1e11 + 1e3
    assert observer.mean_square.item() == pytest.approx((1e11 + 1e3) / 2000)
    assert observer.state()["sum"].item() == 1e7 + 1e3


def test_squares_do_not_overflow():
    observer = MomentsObserver()
    observer.observe(torch.full((1, 2), 1e30))
    assert observer.state()["square"].item() == pytest.approx(2e60)


@pytest.mark.parametrize("shape", [(1, 100000), (5000, 30), (30, 5000)])
@pytest.mark.parametrize("transposed", [True, False])
def test_large_tensors_go_by_pieces(shape, transposed):
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    observer = MomentsObserver()
    observer.observe(rows.T.contiguous().T if transposed else rows)
    torch.testing.assert_close(observer.state()["square"], rows.double().square().sum(1))
    torch.testing.assert_close(observer.state()["sum"], rows.double().sum(1))
