# SPDX-License-Identifier: Apache-2.0
"""F1 of a classifier."""

from __future__ import annotations

from collections.abc import Sequence

from fewbit.evaluation.metrics._base import Metric, Row
from fewbit.evaluation.metrics._confusion import EXAMPLE, averages, class_row


def _compute(rows: Sequence[Row]) -> float:
    return averages(rows)[2]


METRIC = Metric("f1", "Harmonic mean of precision and recall; mean over classes", class_row, _compute, EXAMPLE)
