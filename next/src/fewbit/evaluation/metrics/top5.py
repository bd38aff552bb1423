# SPDX-License-Identifier: Apache-2.0
"""Top-5 accuracy of a classifier."""

from __future__ import annotations

from typing import Any

import numpy as np

from fewbit.evaluation.metrics._base import Metric, Row, is_class_label, mean


def _row(output: Any, label: Any) -> Row | None:
    scores = np.asarray(output)
    if not is_class_label(label) or scores.ndim != 1 or scores.dtype.kind != "f" or not int(label) < len(scores) > 1:
        return None
    # Ties count against the model: a constant output would be right otherwise.
    better = int((scores > scores[int(label)]).sum()) + int((scores == scores[int(label)]).sum()) - 1
    return (float(better < 5),)


METRIC = Metric(
    "top5", "Share of samples whose right class is among the five highest scores", _row, mean,
    ([np.arange(10.0), np.arange(10.0)], [5, 4]), is_mean=True,
)  # fmt: skip
