# SPDX-License-Identifier: Apache-2.0
"""Recall of a classifier."""

from __future__ import annotations

from collections.abc import Sequence

from fewbit.evaluation.metrics._base import Metric, Row
from fewbit.evaluation.metrics._confusion import EXAMPLE, averages, class_row


def _compute(rows: Sequence[Row]) -> float:
    return averages(rows)[1]


METRIC = Metric("recall", "Share of right classes that are chosen; mean over classes", class_row, _compute, EXAMPLE)
