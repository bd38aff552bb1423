# SPDX-License-Identifier: Apache-2.0
"""Counts behind precision, recall and F1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fewbit.evaluation.metrics._base import Row, predicted_class

EXAMPLE = ([np.array([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0])], [0, 1, 1])


def class_row(output: Any, label: Any) -> Row | None:
    """Predicted class, right class, and whether there are two classes."""
    pair = predicted_class(output, label)
    return None if pair is None else (*pair, np.size(output) <= 2)


def averages(rows: Sequence[Row]) -> tuple[float, float, float]:
    """Precision, recall and F1: of class 1 if there are two classes, else the mean over classes (macro average)."""
    predicted, right = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    classes = [1] if rows and rows[0][2] else sorted({*predicted.tolist(), *right.tolist()})
    figures = []
    for number in classes:
        hits = float(((predicted == number) & (right == number)).sum())
        chosen, present = float((predicted == number).sum()), float((right == number).sum())
        figures.append((_divide(hits, chosen), _divide(hits, present), _divide(2 * hits, chosen + present)))
    precision, recall, f1 = np.mean(figures, axis=0) if figures else (float("nan"),) * 3
    return float(precision), float(recall), float(f1)


def _divide(part: float, total: float) -> float:
    return part / total if total else 0.0
