# SPDX-License-Identifier: Apache-2.0
"""Mean intersection over union of a segmentation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fewbit.evaluation.metrics._base import Metric, Row

_VOID = 255
"""Of pixels that do not count, as in Pascal VOC and Cityscapes."""


def _row(output: Any, label: Any) -> Row | None:
    """Pixels per class: in both, in either."""
    mask = np.asarray(label.get("mask", ()) if isinstance(label, dict) else label)
    if mask.ndim != 2 or mask.dtype.kind not in "iub":
        return None
    predicted = _classes(np.asarray(output))
    if predicted is None:
        return None
    mask = _resized(mask.astype(np.int64), predicted.shape)
    counts = mask != _VOID
    present = np.union1d(mask[counts], predicted[counts])
    both = {int(number): int(((mask == number) & (predicted == number) & counts).sum()) for number in present}
    either = {int(number): int((((mask == number) | (predicted == number)) & counts).sum()) for number in present}
    return both, either


def _classes(scores: np.ndarray) -> np.ndarray | None:
    """The class of each pixel, [height, width]."""
    if scores.dtype.kind in "iu" and scores.ndim == 2:
        return scores.astype(np.int64)
    if scores.ndim == 2:
        scores = scores[None]
    if scores.ndim != 3 or scores.dtype.kind != "f":
        return None
    axis = 0 if scores.shape[0] <= scores.shape[2] else 2
    if scores.shape[axis] == 1:
        single = scores.squeeze(axis)
        is_share = bool(single.min() >= 0 and single.max() <= 1)
        return np.asarray(single > (0.5 if is_share else 0.0), np.int64)
    return np.asarray(scores.argmax(axis), np.int64)


def _resized(mask: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Nearest neighbor: the mask at the size of the output."""
    if mask.shape == shape:
        return mask
    rows, columns = ((np.arange(size) * old) // size for size, old in zip(shape, mask.shape))
    return np.asarray(mask[rows][:, columns])


def _compute(rows: Sequence[Row]) -> float:
    both: dict[int, int] = {}
    either: dict[int, int] = {}
    for row in rows:
        for total, counts in zip((both, either), row):
            for number, count in counts.items():
                total[number] = total.get(number, 0) + count
    return float(np.mean([both[number] / count for number, count in either.items() if count])) if either else 0.0


METRIC = Metric(
    "mean_iou", "Intersection over union of the pixels of a class; mean over classes", _row, _compute,
    ([np.eye(2)[:, :, None] * np.ones(3)], [np.array([[0, 0, 1], [1, 1, 1]])]),
)  # fmt: skip
