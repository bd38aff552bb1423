# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.observers._search import best_range
from fewbit.observers.histogram import HistogramObserver


def spectrum(*rows: list[float]):
    observer = HistogramObserver()
    observer.observe(torch.tensor(rows))
    return observer.spectrum


@pytest.mark.parametrize("target", [1.0, 0.731, 0.0371])
@pytest.mark.parametrize("candidates", [4, 9, 100])
def test_the_least_cost_is_found_to_a_fine_fraction(candidates, target):
    """A cost whose least place is known, other for each row and each end."""
    seen = spectrum([-1.0, 8.0], [-6.0, 3.0])
    lows, highs = seen.low * target, seen.high * (1.03 - target)

    def cost(low, high):
        return (low - lows).square() + (high - highs).square()

    low, high = best_range(seen, Grid(Dtype.uint8, symmetric=False), cost, candidates)
    assert bool(((low - lows).abs() <= -seen.low / 256).all()) and bool(((high - highs).abs() <= seen.high / 256).all())

    tops = torch.tensor([8.0, 6.0]) * target

    def by_magnitude(low, high):
        return (torch.maximum(-low, high) - tops).square()

    low, high = best_range(seen, Grid(Dtype.int8), by_magnitude, candidates)
    assert bool(((torch.maximum(-low, high) - tops).abs() <= 8 / 256).all())


def test_the_widest_range_wins_where_all_cost_the_same():
    seen = spectrum([-1.0, 8.0])
    for symmetric in (True, False):
        ends = best_range(seen, Grid(Dtype.int8, symmetric=symmetric), lambda low, high: torch.zeros_like(low), 9)
        assert [end.item() for end in ends] == [-1.0, 8.0]


@pytest.mark.parametrize("row", [[1.0, 5.0], [-5.0, -1.0]])
def test_values_on_one_side_have_one_end_to_search(row):
    tried = []

    def cost(low, high):
        tried.extend(zip(low[:, 0].tolist(), high[:, 0].tolist()))
        return high - low

    best_range(spectrum(row), Grid(Dtype.uint8, symmetric=False), cost, 50)
    assert {low for low, _ in tried} == {0.0} or {high for _, high in tried} == {0.0}
