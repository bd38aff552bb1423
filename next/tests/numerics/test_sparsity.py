# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.errors import UsageError
from fewbit.numerics.sparsity import (
    SparsityPattern,
    distribute_zeros,
    highest,
    is_pruned,
    sparsity_mask,
    zero_count,
)
from numerics_reference import LIBRARIES, host

SHARES = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.55, 0.9, 1.0])
libraries = st.sampled_from(list(LIBRARIES.values()))
quickly = settings(max_examples=50, deadline=None)
SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(1, 2), st.integers(1, 3))


def scores(shape, seed=0):
    """With many ties."""
    return np.round(np.abs(np.random.default_rng(seed).normal(size=shape)) * 4).astype(np.float32)


@quickly
@given(libraries, st.integers(1, 5), st.integers(1, 13), st.integers(-1, 15))
def test_the_highest_of_each_row_and_the_first_of_equals(array, rows, width, count):
    x = scores((rows, width))
    mask = host(highest(array(x), count))
    for row, chosen in zip(x, mask):
        expected = sorted(range(width), key=lambda index: (-row[index], index))[: max(count, 0)]
        assert np.flatnonzero(chosen).tolist() == sorted(expected)


@quickly
@given(libraries, SHAPES, SHARES, st.booleans())
def test_the_number_of_zeros_is_exact(array, shape, share, per_row):
    x = scores(shape)
    zeros = ~host(sparsity_mask(array(x), SparsityPattern(share, per_row=per_row)))
    if per_row:
        assert set(zeros.reshape(shape[0], -1).sum(1)) == {zero_count(share, x[0].size)}
    assert per_row or zeros.sum() == zero_count(share, x.size)


@quickly
@given(libraries, SHAPES, st.sampled_from([(1, 4), (2, 4), (1, 2), (4, 8)]))
def test_n_of_m_runs_along_the_input_of_each_kernel_position(array, shape, pattern):
    nonzero, group = pattern
    x = scores(shape)
    mask = host(sparsity_mask(array(x), SparsityPattern.parse(f"{nonzero}:{group}")))
    assert mask.shape == shape
    for out, row, column in np.ndindex(shape[0], *shape[2:]):
        values, chosen = x[out, :, row, column], mask[out, :, row, column]
        for start in range(0, shape[1] // group * group, group):
            part = values[start : start + group]
            expected = sorted(range(group), key=lambda index: (-part[index], index))[:nonzero]
            assert np.flatnonzero(chosen[start : start + group]).tolist() == sorted(expected)
        assert chosen[shape[1] // group * group :].all(), "inputs that are left over stay"


@quickly
@given(libraries, SHAPES, st.integers(1, 3), st.integers(1, 5), SHARES, st.booleans())
def test_blocks_are_zero_together_and_counted_exactly_also_at_edges(array, shape, tall, wide, share, per_row):
    x = scores(shape)
    mask = host(sparsity_mask(array(x), SparsityPattern(share, block=(tall, wide), per_row=per_row)))
    states: dict = {}
    for index in np.ndindex(*shape):
        key = (index[0] // tall, index[1] // wide, *index[2:])
        states.setdefault(key, []).append((bool(mask[index]), float(x[index])))
    assert all(len({kept for kept, _ in block}) == 1 for block in states.values())
    rows = {key[0] for key in states}
    for keys in [[k for k in states if k[0] == row] for row in rows] if per_row else [list(states)]:
        zero = [key for key in keys if not states[key][0][0]]
        assert len(zero) == zero_count(share, len(keys))
        sums = {key: sum(score for _, score in states[key]) for key in keys}
        least = min((sums[key] for key in keys if key not in zero), default=np.inf)
        assert all(sums[key] <= least for key in zero)


def test_the_device_does_not_matter():
    x = scores((20, 33))
    for pattern in (SparsityPattern(0.37), SparsityPattern.parse("2:4"), SparsityPattern(0.5, per_row=True)):
        assert np.array_equal(sparsity_mask(x, pattern), host(sparsity_mask(torch.from_numpy(x), pattern)))


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(0, 120))
def test_zeros_are_distributed_evenly_and_no_part_loses_one(existing, zeros):
    result = distribute_zeros(zeros, existing)
    assert sum(result) == max(zeros, sum(existing)) and all(a >= b for a, b in zip(result, existing))
    raised = [count for count, before in zip(result, existing) if count > before]
    assert not raised or max(raised) - min(raised) <= 1


@pytest.mark.parametrize(
    ("share", "total", "count"), [(0.5, 5, 3), (0.55, 10, 6), (1.0, 7, 7), (0.1, 4, 0), (0.35, 10, 4)]
)
def test_a_share_is_the_decimal_that_is_written(share, total, count):
    assert zero_count(share, total) == count


def test_patterns_are_read_from_text():
    assert SparsityPattern.parse("1:4").sparsity == SparsityPattern(0.9, 1, 4).sparsity == 0.75
    assert SparsityPattern.parse("block:4", 0.5) == SparsityPattern.parse("1x4", 0.5)
    assert SparsityPattern.parse("unstructured", 0.3) == SparsityPattern.parse(None, 0.3) == SparsityPattern(0.3)
    assert (
        str(SparsityPattern.parse("2:4")) == "2:4" and str(SparsityPattern.parse("1x4", 0.5)) == "50% in blocks of 1x4"
    )
    assert is_pruned(1, 1000) and not is_pruned(1, 1001)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: SparsityPattern(1.5), "share of 1.5"),
        (lambda: SparsityPattern(float("nan")), "share of nan"),
        (lambda: SparsityPattern.parse("5:4"), "5:4"),
        (lambda: SparsityPattern.parse("2:0"), "2:0"),
        (lambda: SparsityPattern.parse("2:4", 0.7), "share of 0.7"),
        (lambda: SparsityPattern.parse("blocks", 0.5), "blocks"),
        (lambda: SparsityPattern.parse("unstructured"), "without a share"),
        (lambda: SparsityPattern.parse("0x4", 0.5), r"block of \(0, 4\)"),
        (lambda: SparsityPattern(0.5, 2, 4, (1, 4)), "N:M of blocks"),
        (lambda: SparsityPattern(0.5, nonzero=2), "2:0"),
    ],
)
def test_wrong_patterns_are_errors(make, text):
    with pytest.raises(UsageError, match=text):
        make()
