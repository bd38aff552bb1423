# SPDX-License-Identifier: Apache-2.0
"""Word error rate of a recognizer."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from fewbit.evaluation.metrics._base import Metric, Row, ratio, sequence


def _row(output: Any, label: Any) -> Row | None:
    predicted, wanted = sequence(output), sequence(label)
    return None if predicted is None or wanted is None else (float(_edits(predicted, wanted)), float(len(wanted)))


def _edits(predicted: Sequence[Any], wanted: Sequence[Any]) -> int:
    """Least number of words to insert, remove or replace (Levenshtein)."""
    distances = list(range(len(wanted) + 1))
    for row, word in enumerate(predicted, 1):
        diagonal, distances[0] = distances[0], row
        for column, other in enumerate(wanted, 1):
            change = diagonal + (word != other)
            diagonal = distances[column]
            distances[column] = min(change, diagonal + 1, distances[column - 1] + 1)
    return distances[-1]


METRIC = Metric(
    "wer", "Word error rate: edits per word of the right text", _row, ratio,
    ([np.array([1, 2, 4])], [np.array([1, 2, 3, 4])]), high=inf, higher_is_better=False,
)  # fmt: skip
