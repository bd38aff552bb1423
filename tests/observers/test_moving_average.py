# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit import MovingAverageObserver, UsageError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid

GRID = Grid(Dtype.int8)


@given(
    highs=st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=12),
    constant=st.floats(0.01, 1.0),
    cut=st.integers(0, 12),
)
def test_against_the_definition(highs, constant, cut):
    observer, rest = (MovingAverageObserver(averaging_constant=constant) for _ in range(2))
    for index, high in enumerate(highs):
        (observer if index < cut else rest).observe(torch.tensor([[high, high - 1]]))
    observer.merge(rest)
    weights = [(1 - constant) ** (len(highs) - 1 - t) for t in range(len(highs))]
    wanted = sum(w * h for w, h in zip(weights, highs)) / sum(weights)
    low, high = observer.range(GRID)
    assert high.item() == pytest.approx(wanted, rel=1e-5, abs=1e-4)
    assert low.item() == pytest.approx(wanted - 1, rel=1e-5, abs=1e-4)


def test_the_first_batch_counts_in_full():
    """Without the correction the average of one batch would be a hundredth of it."""
    observer = MovingAverageObserver()
    observer.observe(torch.tensor([[-2.0, 5.0]]))
    assert [end.item() for end in observer.range(GRID)] == [-2.0, 5.0]


@pytest.mark.parametrize("constant", [0.0, -0.1, 1.1])
def test_a_constant_out_of_range(constant):
    with pytest.raises(UsageError, match="averaging_constant"):
        MovingAverageObserver(averaging_constant=constant)
