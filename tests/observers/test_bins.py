# SPDX-License-Identifier: Apache-2.0
"""`_bins.py` and `_spectrum.py`: against a plain reference, and whatever the order of the data."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fewbit.errors import UsageError
from fewbit.observers._bins import exponents, powers, tally, tally_spread
from fewbit.observers.histogram import HistogramObserver


def bin_number(x: float, k: int) -> int:
    """Zero has bin 0; from there outwards bins are 2^k wide and hold their inner edge."""
    return 0 if x == 0 else int(math.copysign(math.floor(abs(x) / 2.0**k) + 1, x))


def fits(low: float, high: float, k: int, bins: int) -> bool:
    return math.ceil(max(-low, 0) / 2.0**k) + math.ceil(max(high, 0) / 2.0**k) <= bins


def counted(state: dict, row: int) -> dict[int, int]:
    """Bin number to count, from a state, by where the lowest value must lie."""
    counts, k = state["counts"][row], int(state["exponent"][row])
    low = float(state["low"][row])
    start = bin_number(low, k) if low < 0 else 0
    return {start + int(column): int(counts[column]) for column in counts.nonzero()[:, 0]}


numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
edges = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 2.0**-149, -(2.0**-149), 2.0**-126, 3e38, -3e38, 2047.0, 2048.0])
tables = arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=20), elements=numbers | edges)


@settings(max_examples=150)
@given(data=tables, bins=st.sampled_from([4, 5, 16, 2048]))
def test_every_value_is_counted_in_its_bin(data, bins):
    observer = HistogramObserver(bins=bins)
    observer.observe(torch.from_numpy(data.copy()))
    state = observer.state()
    for row, values in enumerate(data.astype(np.float64)):
        k = int(state["exponent"][row])
        assert fits(values.min(), values.max(), k, bins)
        assert k == -126 or not fits(values.min(), values.max(), k - 1, bins)  # no finer bins would do
        wanted: dict[int, int] = {}
        for x in values:
            wanted[bin_number(x, k)] = wanted.get(bin_number(x, k), 0) + 1
        assert counted(state, row) == wanted


@settings(max_examples=100)
@given(data=tables, seed=st.integers(0, 99), cuts=st.lists(st.integers(0, 20), max_size=4))
def test_counts_do_not_depend_on_order_or_batches(data, seed, cuts):
    rows = torch.from_numpy(data.copy())
    whole, parts, merged = (HistogramObserver(bins=16) for _ in range(3))
    whole.observe(rows)
    shuffled = rows[:, torch.randperm(rows.shape[1], generator=torch.Generator().manual_seed(seed))]
    for piece in torch.tensor_split(shuffled, sorted(cuts), dim=1):
        parts.observe(piece)
        alone = HistogramObserver(bins=16)
        alone.observe(piece)
        merged.merge(alone)
    for other in (parts, merged):
        assert all(torch.equal(other.state()[key], whole.state()[key]) for key in whole.keeps)


@settings(max_examples=100)
@given(data=tables)
def test_edges_hold_what_is_counted_between_them(data):
    rows = torch.from_numpy(data.copy())
    observer = HistogramObserver(bins=16)
    observer.observe(rows)
    seen = observer.spectrum
    assert torch.equal(seen.total, torch.full((len(rows),), rows.shape[1]))
    for values, bottoms, tops, counts in zip(rows, seen.bottoms, seen.tops, seen.counts):
        assert bool((bottoms <= tops).all())
        filled = counts > 0
        inside = (values[:, None] >= bottoms[filled]) & (values[:, None] <= tops[filled])
        assert bool(inside.any(1).all()) and bool((inside.sum(0) >= counts[filled]).all())
    compact = seen.compact()
    assert int((compact.counts > 0).sum(1).max()) == compact.counts.shape[1]
    for row in range(len(rows)):
        full, less = (
            list(zip(each.bottoms[row].tolist(), each.tops[row].tolist(), each.counts[row].tolist()))
            for each in (seen, compact)
        )
        assert [each for each in less if each[2]] == [each for each in full if each[2]]


@settings(max_examples=100)
@given(data=tables)
def test_magnitudes_are_the_spectrum_of_absolute_values(data):
    rows = torch.from_numpy(data.copy())
    observer = HistogramObserver(bins=16)
    observer.observe(rows)
    folded = observer.magnitudes
    for row, k in enumerate(observer.state()["exponent"].tolist()):
        wanted = [0] * folded.counts.shape[1]
        for x in rows[row].tolist():
            wanted[abs(bin_number(x, k))] += 1
        assert folded.counts[row].tolist() == wanted
    assert torch.equal(folded.high, rows.abs().amax(1))


def test_growth_to_the_left_keeps_the_counts_where_they_belong():
    """Defect 4: growing to the left misaligned the counts, and 0% of the mass was above zero instead of 50%."""
    observer = HistogramObserver()
    observer.observe(torch.rand(1, 5000, generator=torch.Generator().manual_seed(0)) + 0.001)
    observer.observe(-100 * torch.rand(1, 5000, generator=torch.Generator().manual_seed(1)) - 0.001)
    seen = observer.spectrum
    above = int(seen.counts[seen.bottoms >= 0].sum())
    below = int(seen.counts[seen.tops <= 0].sum())
    assert (below, above) == (5000, 5000)


def test_an_exact_power_of_two_does_not_cost_half_of_the_bins():
    assert powers(exponents(torch.tensor([0.0]), torch.tensor([1.0]), 2048)).item() == 1 / 2048
    assert powers(exponents(torch.tensor([-1.0]), torch.tensor([1.0]), 2048)).item() == 1 / 1024


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced"])
@pytest.mark.parametrize("shape", [(3, 70000), (70, 3000), (3000, 40)])
def test_large_tensors_are_counted_in_pieces_whatever_their_layout(shape, layout):
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    if layout == "transposed":
        rows = rows.T.contiguous().T
    elif layout == "sliced":
        rows = torch.cat([rows, rows], 1)[:, : shape[1]]
    observer = HistogramObserver(bins=32)
    observer.observe(rows)
    state = observer.state()
    k = state["exponent"].double()[:, None]
    number = (rows.sign() * ((rows.double().abs() / 2**k).floor() + 1)).long()
    for row in (0, shape[0] // 2, shape[0] - 1):
        values, counts = number[row].unique(return_counts=True)
        assert counted(state, row) == dict(zip(values.tolist(), counts.tolist()))
    assert torch.equal(state["counts"].sum(1), torch.full((shape[0],), shape[1]))


@pytest.mark.parametrize("shape", [(1, 1), (1, 5000), (3, 700), (300, 20)])
@pytest.mark.parametrize("counter", [tally, tally_spread])
def test_both_ways_of_counting(counter, shape):
    """The one for accelerators has to work anywhere."""
    column = torch.randint(0, 9, shape, dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    wanted = torch.stack([torch.bincount(row, minlength=11) for row in column])
    assert torch.equal(counter(column, 11), wanted)
    assert torch.equal(counter(column.T.contiguous().T, 11), wanted)


def test_counts_go_beyond_what_float32_can_count():
    observer = HistogramObserver(bins=4)
    observer.observe(torch.ones(1, 4))
    state = observer.state()
    state["counts"] *= 1 << 40
    observer.load_state(state)
    observer.observe(torch.ones(1, 1))
    assert observer.state()["counts"].sum() == 4 * (1 << 40) + 1


def test_too_few_bins():
    with pytest.raises(UsageError, match="bins=3"):
        HistogramObserver(bins=3)
