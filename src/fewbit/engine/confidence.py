# SPDX-License-Identifier: Apache-2.0
"""How sure a figure is: 95 % intervals of what was counted on samples that hold several positions each.

Positions of one text are not independent of one another, texts are. So the spread is taken between samples: a figure
is a ratio of sums over samples, and its variance follows from how far each sample is from the ratio (the linearized
variance of cluster sampling). No random numbers are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, pi, sqrt, tan
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_UPPER = 0.975


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval; no interval where one sample alone is known.

    >>> Estimate(0.5, 0.4, 0.6).may_be(0.45), Estimate(0.5, None, None).may_be(0.5)
    (True, False)
    """

    value: float
    low: float | None
    high: float | None

    def may_be(self, value: float) -> bool:
        """Whether a value lies in the interval."""
        return self.low is not None and self.high is not None and self.low <= value <= self.high

    def exponential(self) -> Estimate:
        """The same of e to this power."""
        low, high = (None if end is None else exp(end) for end in (self.low, self.high))
        return Estimate(exp(self.value), low, high)

    def at_least(self, bound: float) -> Estimate:
        """The same of what cannot be below a bound."""
        return Estimate(self.value, None if self.low is None else max(self.low, bound), self.high)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"value": self.value, "low": self.low, "high": self.high}


def ratio(sums: ArrayLike, counts: ArrayLike) -> Estimate:
    """What a position has on average.

    Args:
        sums: of each sample's positions.
        counts: how many positions each sample has.

    >>> found = ratio([1.0, 2.0, 3.0], [1, 1, 1])
    >>> round(found.value, 3), round(found.low, 3), round(found.high, 3)
    (2.0, -0.484, 4.484)
    """
    over, under = _floats(sums), _floats(counts)
    value = float(over.sum() / under.sum())
    samples = int((under > 0).sum())
    if samples < 2:
        return Estimate(value, None, None)
    reach = student(samples - 1) * sqrt(_variance(over, under, value))
    return Estimate(value, value - reach, value + reach)


def share(hits: ArrayLike, counts: ArrayLike) -> Estimate:
    """Of how many positions something holds: Wilson's interval, which stays between 0 and 1.

    Positions that go together count for fewer: as many as independent ones would have the same variance. Where it holds
    for all positions or none, as if one of them, in one sample, were not so.
    """
    over, under = _floats(hits), _floats(counts)
    total = float(under.sum())
    value = float(over.sum() / total)
    samples = int((under > 0).sum())
    if samples < 2:
        return Estimate(value, None, None)
    variance = _variance(over, under, value)
    independent = min(total, max(1.0, value * (1 - value) / variance)) if variance > 0 else total
    t = student(samples - 1)
    around = (value + t * t / (2 * independent)) / (1 + t * t / independent)
    reach = t / (1 + t * t / independent) * sqrt(value * (1 - value) / independent + (t / (2 * independent)) ** 2)
    return Estimate(value, max(0.0, min(value, around - reach)), min(1.0, max(value, around + reach)))


def quantile(values: Sequence[Floats], part: float) -> Estimate:
    """What a part of all positions does not exceed; Woodruff's interval: that of the share below, read backwards.

    Args:
        values: of each sample's positions.
        part: such as 0.99.

    >>> quantile([np.arange(101.0)], 0.5)
    Estimate(value=50.0, low=None, high=None)
    """
    pooled = np.sort(np.concatenate(values))
    value = float(np.quantile(pooled, part))
    below = share([(each <= value).sum() for each in values], [len(each) for each in values])
    if below.low is None or below.high is None:
        return Estimate(value, None, None)
    # The share of what is at most the value is a little above `part` where values are few or repeat.
    low, high = (float(np.quantile(pooled, min(1.0, max(0.0, part + end - below.value)))) for end in
                 (below.low, below.high))  # fmt: skip
    return Estimate(value, min(low, value), max(high, value))


def student(degrees: int) -> float:
    """How many standard errors a 95 % interval reaches to each side, by Student's distribution.

    Exact for one and two degrees of freedom; the expansion around the normal distribution from three on (Abramowitz
    and Stegun 26.7.5), off by less than 0.002 of it.

    >>> [round(student(degrees), 2) for degrees in (1, 2, 5, 30)]
    [12.71, 4.3, 2.57, 2.04]
    """
    if degrees == 1:
        return tan(pi * (_UPPER - 0.5))
    if degrees == 2:
        both = 2 * _UPPER - 1
        return both * sqrt(2 / (1 - both * both))
    z = NormalDist().inv_cdf(_UPPER)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum((term / float(degrees**power) for power, term in enumerate(terms, 1)), 0.0)


def _variance(sums: Floats, counts: Floats, value: float) -> float:
    """Of a ratio: samples that are far from it, and large, make it uncertain."""
    there = counts > 0
    samples = int(there.sum())
    off = sums[there] - value * counts[there]
    return float(samples / (samples - 1) * np.square(off).sum() / counts.sum() ** 2)


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float64)
