# SPDX-License-Identifier: Apache-2.0
"""Intervals: against scipy, against resampling of whole samples, and by how often they hold the truth."""

import numpy as np
import pytest
from scipy import stats

from fewbit.engine.confidence import quantile, ratio, share, student


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 9, 29, 300])
def test_students_distribution(degrees):
    assert student(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=2e-3)


def texts(draw, count, spread=1.0):
    """Texts of unlike lengths, whose positions go together: each has a level of its own."""
    lengths = draw.integers(20, 60, count)
    return [spread * draw.standard_normal() + draw.standard_normal(length) for length in lengths]


def resampled(values, figure, rounds=3000):
    """The interval that drawing whole texts again and again gives: another way to the same thing."""
    draw = np.random.default_rng(5)
    found = [figure([values[i] for i in draw.integers(0, len(values), len(values))]) for _ in range(rounds)]
    return np.quantile(found, [0.025, 0.975])


def test_a_mean_is_as_sure_as_resampling_says():
    values = texts(np.random.default_rng(0), 60)
    found = ratio([each.sum() for each in values], [len(each) for each in values])
    low, high = resampled(values, lambda chosen: np.concatenate(chosen).mean())
    assert found.value == pytest.approx(np.concatenate(values).mean())
    assert found.high - found.low == pytest.approx(high - low, rel=0.1)


def test_positions_that_go_together_make_it_less_sure():
    """Taken for independent, the positions would promise an interval a few times too narrow."""
    values = texts(np.random.default_rng(0), 60)
    together = ratio([each.sum() for each in values], [len(each) for each in values])
    alone = ratio(np.concatenate(values), np.ones(sum(map(len, values))))
    assert together.high - together.low > 3 * (alone.high - alone.low)


@pytest.mark.parametrize("part", [0.5, 0.99])
def test_a_quantile_is_as_sure_as_resampling_says(part):
    values = texts(np.random.default_rng(1), 80)
    found = quantile(values, part)
    low, high = resampled(values, lambda chosen: np.quantile(np.concatenate(chosen), part), 1000)
    assert found.value == pytest.approx(np.quantile(np.concatenate(values), part))
    assert found.low < found.value < found.high
    assert 0.6 < (found.high - found.low) / (high - low) < 1.7


def coverage(make, rounds=400):
    """How often an interval holds the truth."""
    draw = np.random.default_rng(7)
    return np.mean([bool(make(draw)) for _ in range(rounds)])


@pytest.mark.parametrize("count", [4, 12, 40])
def test_the_mean_of_few_or_many_texts_is_held(count):
    def holds(draw):
        values = texts(draw, count)
        return ratio([each.sum() for each in values], [len(each) for each in values]).may_be(0.0)

    assert coverage(holds) > 0.91


@pytest.mark.parametrize("truth", [0.6, 0.97])
def test_a_share_is_held(truth):
    def holds(draw):
        counts = draw.integers(20, 60, 25)
        levels = draw.beta(truth * 8, (1 - truth) * 8, 25)  # a text is easy or hard
        return share(draw.binomial(counts, levels), counts).may_be(truth)

    assert coverage(holds) > 0.9


def test_independent_positions_are_wilsons():
    hits = np.repeat([1.0, 0.0], [90, 10])
    found, known = share(hits, np.ones(100)), stats.binomtest(90, 100).proportion_ci(method="wilson")
    assert found.low == pytest.approx(known.low, abs=0.003) and found.high == pytest.approx(known.high, abs=0.003)


def test_all_or_none_still_leaves_doubt():
    all_of_them, none = share([30, 40], [30, 40]), share([0, 0], [30, 40])
    assert all_of_them.high == 1.0 and 0 < all_of_them.low < 1
    assert none.low == 0.0 and 0 < none.high < 1


def test_one_sample_has_no_interval():
    for found in (ratio([3.0], [2]), share([1], [2]), quantile([np.arange(9.0)], 0.5)):
        assert found.low is None and found.high is None and not found.may_be(found.value)
