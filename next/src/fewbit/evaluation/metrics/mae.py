# SPDX-License-Identifier: Apache-2.0
"""Mean absolute error of a regression."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from fewbit.evaluation.metrics._base import Metric, Row, mean
from fewbit.evaluation.metrics._values import difference


def _row(output: Any, label: Any) -> Row | None:
    values = difference(output, label)
    return None if values is None else (float(np.abs(values).mean()),)


METRIC = Metric(
    "mae", "Mean absolute error of numbers", _row, mean, ([np.array([1.0]), np.array([2.0])], [1.5, 2.0]),
    is_mean=True, high=inf, higher_is_better=False,
)  # fmt: skip
