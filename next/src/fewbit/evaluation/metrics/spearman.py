# SPDX-License-Identifier: Apache-2.0
"""Spearman's correlation."""

from __future__ import annotations

from collections.abc import Sequence

from fewbit.evaluation.metrics._base import Metric, Row
from fewbit.evaluation.metrics._values import PAIRS, correlation, pair_row


def _compute(rows: Sequence[Row]) -> float:
    return correlation(rows, ranks=True)


METRIC = Metric(
    "spearman", "Rank correlation of outputs and labels", pair_row, _compute, PAIRS, low=-1, scale="absolute"
)
