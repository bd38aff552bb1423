# SPDX-License-Identifier: Apache-2.0
"""Accuracy position by position: tags of words, tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from fewbit.evaluation.metrics._base import IGNORED_LABEL, Metric, Row, ratio


def _row(output: Any, label: Any) -> Row | None:
    scores, labels = np.asarray(output), np.asarray(label)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or scores.dtype.kind not in "fiu":
        return None
    predicted = scores.argmax(-1) if scores.ndim == 2 and scores.dtype.kind == "f" else scores
    if predicted.ndim != 1 or len(predicted) < len(labels):
        return None
    counted = labels != IGNORED_LABEL
    return float((predicted[: len(labels)] == labels)[counted].sum()), float(counted.sum())


METRIC = Metric(
    "token_accuracy", "Share of positions whose highest score is the right token or tag", _row, ratio,
    ([np.eye(3)[[0, 1, 2]]], [np.array([0, 1, 1])]),
)  # fmt: skip
