# SPDX-License-Identifier: Apache-2.0
"""Intervals against scipy and against resampling."""

from math import inf

import numpy as np
import pytest

from fewbit.evaluation.intervals import (
    bootstrap_interval,
    ratio_interval,
    share_interval,
    student_t,
    wilson_interval,
)

stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 15, 31, 255, 10_000])
def test_students_quantile(degrees):
    assert student_t(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=3e-3)


@pytest.mark.parametrize(("successes", "trials"), [(0, 32), (1, 2), (32, 32), (17, 300), (299, 300)])
def test_wilson(successes, trials):
    wanted = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    assert wilson_interval(successes, trials) == pytest.approx((wanted.low, wanted.high), abs=1e-9)


def test_shares_stay_inside_their_range():
    draw = np.random.default_rng(0)
    for _ in range(200):
        counts = draw.integers(0, 40, draw.integers(2, 30))
        hits = draw.binomial(counts, draw.choice([0.0, 0.01, 0.5, 0.99, 1.0]))
        low, high = share_interval(hits, counts)
        assert 0 <= low <= high <= 1
        if counts.sum():
            assert low - 1e-9 <= hits.sum() / counts.sum() <= high + 1e-9


def test_positions_of_one_sample_are_not_independent():
    """The spread between samples counts: about 95 % of draws from correlated samples contain the truth."""
    draw = np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        shares = draw.beta(6, 2, 40)  # every sample has its own share; the mean is 0.75
        counts = np.full(40, 100)
        low, high = share_interval(draw.binomial(counts, shares), counts)
        hits += low <= 0.75 <= high
    assert 0.91 <= hits / 400 <= 0.985
    pooled = wilson_interval(3000, 4000)
    assert high - low > 3 * (pooled[1] - pooled[0])


def test_ratios_are_covered_and_paired():
    draw = np.random.default_rng(2)
    hits = 0
    for _ in range(400):
        counts = draw.integers(5, 50, 30)
        sums = counts * draw.normal(0.3, 0.4, 30)
        low, high = ratio_interval(sums, counts)
        hits += low <= 0.3 <= high
    assert 0.91 <= hits / 400 <= 0.985
    assert ratio_interval([1.0, 1.0], [1, 1], low=0.0, high=1.0) == (1.0, 1.0)
    assert ratio_interval([1.0], [1]) == (-inf, inf)


def test_bootstrap_equals_the_mean_s_interval():
    values = np.random.default_rng(3).normal(0, 1, 200)
    low, high = bootstrap_interval(lambda rows: float(values[rows].mean()), 200)
    wanted = ratio_interval(values, np.ones(200))
    assert (low, high) == pytest.approx(wanted, abs=0.03)
    assert (low, high) == bootstrap_interval(lambda rows: float(values[rows].mean()), 200)
    assert bootstrap_interval(lambda rows: float("nan"), 5) == (-inf, inf)
