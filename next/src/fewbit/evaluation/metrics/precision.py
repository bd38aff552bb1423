# SPDX-License-Identifier: Apache-2.0
"""Precision of a classifier."""

from __future__ import annotations

from collections.abc import Sequence

from fewbit.evaluation.metrics._base import Metric, Row
from fewbit.evaluation.metrics._confusion import EXAMPLE, averages, class_row


def _compute(rows: Sequence[Row]) -> float:
    return averages(rows)[0]


METRIC = Metric("precision", "Share of chosen classes that are right; mean over classes", class_row, _compute, EXAMPLE)
