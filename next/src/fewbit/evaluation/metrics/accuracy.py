# SPDX-License-Identifier: Apache-2.0
"""Top-1 accuracy of a classifier."""

from __future__ import annotations

from typing import Any

import numpy as np

from fewbit.evaluation.metrics._base import Metric, Row, mean, predicted_class


def _row(output: Any, label: Any) -> Row | None:
    pair = predicted_class(output, label)
    return None if pair is None else (float(pair[0] == pair[1]),)


METRIC = Metric(
    "accuracy", "Share of samples whose highest score is the right class", _row, mean,
    ([np.array([0.0, 2.0]), np.array([1.0, 0.0])], [1, 1]), is_mean=True,
)  # fmt: skip
