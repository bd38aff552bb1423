# SPDX-License-Identifier: Apache-2.0
"""How close two models are on the same inputs: agreement of decisions, and SQNR of the outputs."""

from __future__ import annotations

from collections.abc import Mapping
from math import log10, sqrt
from typing import Any

import numpy as np


class Comparison:
    """Adds up the outputs of two models, batch by batch."""

    def __init__(self) -> None:
        self.samples = 0
        self._signal = self._noise = 0.0
        self._same = self._decisions = 0
        self._finite = True

    def add(self, original: Mapping[str, np.ndarray], result: Mapping[str, np.ndarray]) -> None:
        """Compare one batch of float outputs; the first axis counts samples."""
        self.samples += len(next(iter(original.values())))
        for name, expected in original.items():
            if not np.issubdtype(expected.dtype, np.floating):
                continue
            reference, found = expected.astype(np.float64), result[name].astype(np.float64)
            self._finite &= bool(np.isfinite(found).all())
            self._signal += float(np.square(reference).sum())
            self._noise += float(np.square(reference - found).sum())
            if expected.ndim >= 2 and expected.shape[-1] > 1:
                same = reference.argmax(-1) == found.argmax(-1)
                self._same, self._decisions = self._same + int(same.sum()), self._decisions + same.size

    def facts(self) -> dict[str, Any]:
        """Agreement with its 95 % interval, and SQNR in dB."""
        facts: dict[str, Any] = {"samples": self.samples, "finite": self._finite}
        if self._decisions:
            facts["agreement"] = self._same / self._decisions
            facts["agreement_interval"] = wilson_interval(self._same, self._decisions)
        if self._signal and self._finite:
            facts["sqnr_db"] = 10 * log10(self._signal / self._noise) if self._noise else 200.0
        return facts


def wilson_interval(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson, 1927); it lies inside 0 to 1.

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
