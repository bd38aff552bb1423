# SPDX-License-Identifier: Apache-2.0
"""95 % confidence intervals of what is counted on samples, each inside the range of its figure.

Positions of one sample (tokens of a text, pixels of an image) are not independent of one another; samples are. So the
spread is always taken between samples. Differences of two models are paired: both saw the same samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isfinite, pi, sqrt, tan
from typing import Any

import numpy as np

from fewbit.rng import generator

Interval = tuple[float, float]
Floats = np.ndarray[Any, np.dtype[np.float64]]

_Z = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""
_RESAMPLES = 1000


def wilson_interval(successes: float, trials: float, z: float = _Z) -> Interval:
    """The interval of a share of independent trials (Wilson, 1927); it lies inside 0 to 1.

    >>> low, high = wilson_interval(32, 32)
    >>> round(low, 3), high
    (0.893, 1.0)
    """
    if not trials:
        return 0.0, 1.0
    share, square = successes / trials, z * z / trials
    center = (share + square / 2) / (1 + square)
    half = z / (1 + square) * sqrt(share * (1 - share) / trials + square / (4 * trials))
    low, high = max(center - half, 0.0), min(center + half, 1.0)
    return (low, 1.0) if successes == trials else (0.0, high) if not successes else (low, high)


def share_interval(successes: Sequence[float], trials: Sequence[float]) -> Interval:
    """The interval of a share whose trials come in samples: Wilson's, with as many trials as independent ones would be.

    Args:
        successes: of each sample.
        trials: of each sample; those without any are left out.

    >>> share_interval([1, 1, 0, 1], [1, 1, 1, 1]) == wilson_interval(3, 4)
    True
    >>> low, high = share_interval([50, 0, 50, 0], [50, 50, 50, 50])  # four samples, not two hundred
    >>> low < 0.1 and high > 0.9
    True
    """
    hits, counts = _pair(successes, trials)
    total, samples = float(counts.sum()), len(counts)
    if samples < 2:
        return 0.0, 1.0
    if (counts == 1).all():
        return wilson_interval(float(hits.sum()), total)
    share = float(hits.sum()) / total
    variance = _ratio_variance(hits, counts, share)
    effective = total if variance == 0 else min(total, max(1.0, share * (1 - share) / variance))
    return wilson_interval(share * effective, effective, student_t(samples - 1))


def ratio_interval(sums: Sequence[float], counts: Sequence[float], *, low: float = -inf, high: float = inf) -> Interval:
    """The interval of a ratio of sums over samples, such as the mean loss per token; Student's t.

    Args:
        sums: of each sample.
        counts: of each sample; those without any are left out.
        low: least value the ratio can have.
        high: largest value the ratio can have.

    >>> tuple(round(end, 3) for end in ratio_interval([1.0, 2.0, 3.0], [1, 1, 1]))
    (-0.484, 4.484)
    """
    values, weights = _pair(sums, counts)
    if len(weights) < 2:
        return low, high
    ratio = float(values.sum() / weights.sum())
    half = student_t(len(weights) - 1) * sqrt(_ratio_variance(values, weights, ratio))
    return max(ratio - half, low), min(ratio + half, high)


def bootstrap_interval(
    statistic: Callable[[np.ndarray], float], samples: int, *, seed: int = 0, resamples: int = _RESAMPLES
) -> Interval:
    """The percentile interval of any figure, from samples drawn with replacement.

    Args:
        statistic: the figure of the samples with some numbers, [samples]; draws without a finite one are left out.
        samples: how many there are.
        seed: of the draws.
        resamples: how many draws.

    >>> values = np.arange(100.0)
    >>> low, high = bootstrap_interval(lambda rows: float(values[rows].mean()), 100)
    >>> 40 < low < 49.5 < high < 60
    True
    """
    random = generator(seed, 7)
    drawn = (statistic(random.integers(samples, size=samples)) for _ in range(resamples))
    values = [value for value in drawn if isfinite(value)]
    if samples < 2 or not values:
        return -inf, inf
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def student_t(degrees: int) -> float:
    """How many standard errors a 95 % interval reaches to each side.

    Exact for one and two degrees of freedom, then Fisher's expansion around the normal quantile (Abramowitz and Stegun
    26.7.5).

    >>> [round(student_t(degrees), 2) for degrees in (1, 2, 5, 30)]
    [12.71, 4.3, 2.57, 2.04]
    """
    if degrees == 1:
        return tan(pi * 0.475)
    if degrees == 2:
        return 0.95 * sqrt(2 / (1 - 0.95**2))
    z = _Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum((term / float(degrees) ** power for power, term in enumerate(terms, 1)), 0.0)


def _pair(sums: Sequence[float], counts: Sequence[float]) -> tuple[Floats, Floats]:
    values, weights = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
    present = weights > 0
    return values[present], weights[present]


def _ratio_variance(sums: Floats, counts: Floats, ratio: float) -> float:
    """The linearized variance of a ratio of sums over clusters."""
    samples = len(counts)
    deviations = sums - ratio * counts
    return float(samples / (samples - 1) * np.square(deviations).sum() / counts.sum() ** 2)
