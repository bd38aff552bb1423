# SPDX-License-Identifier: Apache-2.0
"""Share of sequences that are right from beginning to end."""

from __future__ import annotations

from typing import Any

import numpy as np

from fewbit.evaluation.metrics._base import Metric, Row, mean, sequence


def _row(output: Any, label: Any) -> Row | None:
    predicted, wanted = sequence(output), sequence(label)
    return None if predicted is None or wanted is None else (float(predicted == wanted),)


METRIC = Metric(
    "exact_match", "Share of texts or token sequences that are completely right", _row, mean,
    ([np.array([1, 2]), np.array([1, 2])], [np.array([1, 2]), np.array([1, 3])]), is_mean=True,
)  # fmt: skip
