# SPDX-License-Identifier: Apache-2.0
"""Outputs and labels that are numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fewbit.evaluation.metrics._base import Row

PAIRS = ([np.array([1.0]), np.array([2.0]), np.array([4.0])], [1.0, 3.0, 3.5])


def difference(output: Any, label: Any) -> np.ndarray | None:
    """Output minus label; `None` if these are no numbers of the same shape."""
    pair = number_pair(output, label)
    return None if pair is None else pair[0] - pair[1]


def number_pair(output: Any, label: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Both as float64 of the same shape, or `None`."""
    try:
        values, wanted = np.asarray(output, np.float64).squeeze(), np.asarray(label, np.float64).squeeze()
    except (TypeError, ValueError):
        return None
    return (values, wanted) if values.shape == wanted.shape and values.size else None


def pair_row(output: Any, label: Any) -> Row | None:
    """The numbers of a sample for a correlation."""
    pair = number_pair(output, label)
    return None if pair is None else (pair[0].ravel(), pair[1].ravel())


def correlation(rows: Sequence[Row], *, ranks: bool) -> float:
    """Pearson's correlation over all samples, of values or of their ranks; 0 if one side is constant."""
    x, y = (np.concatenate([row[side] for row in rows]) if rows else np.zeros(0) for side in (0, 1))
    if ranks:
        x, y = _ranks(x), _ranks(y)
    if len(x) < 2 or x.std() == 0 or y.std() == 0:
        return 0.0
    return float(np.clip(((x - x.mean()) * (y - y.mean())).mean() / (x.std() * y.std()), -1, 1))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0; equal values share the mean of theirs."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts + 1) / 2)[index])
