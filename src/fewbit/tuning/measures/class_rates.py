# SPDX-License-Identifier: Apache-2.0
"""Of each class how much of it is found, and how much of what is called so is it: means over classes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def class_rates(labels: Array, said: Array, times: Array) -> dict[str, Array]:
    """Precision, recall and F1, each a mean over the classes that are there or are said: `[draws]`.

    A class that nobody names has a precision of 0, one that is named and not there a recall of 0.

    Args:
        labels: `[n]`, the class of each sample.
        said: `[n]`, what it is taken for; below 0 for nothing.
        times: `[draws, n]`, how often each sample counts.

    >>> rates = class_rates(np.array([0, 0, 1]), np.array([0, 1, 1]), np.ones((1, 3)))
    >>> {name: values.round(3).tolist() for name, values in rates.items()}
    {'precision': [0.75], 'recall': [0.75], 'f1': [0.667]}
    """
    classes = np.unique(np.concatenate([labels, said[said >= 0]]))
    there, called = _counts(labels, times, classes), _counts(said, times, classes)
    hit = np.flatnonzero(labels == said)
    found = _counts(labels[hit], times[:, hit], classes)
    present = ((there > 0) | (called > 0)).sum(1)
    wanted = {
        "precision": found / called.clip(1),
        "recall": found / there.clip(1),
        "f1": 2 * found / (there + called).clip(1),
    }
    known = np.where(present > 0, present, np.nan)
    return {name: each.sum(1) / known for name, each in wanted.items()}


def _counts(kinds: Array, times: Array, classes: Array) -> Array:
    """How many samples of each class each draw has, `[draws, classes]`."""
    order = np.argsort(kinds, kind="stable")
    summed = np.concatenate([np.zeros((len(times), 1)), times[:, order].cumsum(1)], 1)
    ends = [np.searchsorted(kinds[order], classes, side) for side in ("left", "right")]
    counts: Array = summed[:, ends[1]] - summed[:, ends[0]]
    return counts
