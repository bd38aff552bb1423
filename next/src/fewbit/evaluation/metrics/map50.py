# SPDX-License-Identifier: Apache-2.0
"""Mean average precision of boxes that overlap by half (mAP at an IoU of 0.5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fewbit.evaluation.boxes import Detections, box_iou, find_detections
from fewbit.evaluation.metrics._base import Metric, Row

_OVERLAP = 0.5


def _row(outputs: Any, label: Any) -> Row | None:
    """Score, class and rightness of each detection, and the number of boxes per class.

    Boxes of outputs and labels are compared as shares of the image: preprocessing must show all of it.
    """
    if not isinstance(label, dict) or label.get("boxes") is None or label.get("classes") is None:
        return None
    detections = find_detections(outputs)
    if detections is None:
        return None
    center = np.asarray(label["boxes"], np.float64).reshape(-1, 4)
    truth = np.concatenate([center[:, :2] - center[:, 2:] / 2, center[:, :2] + center[:, 2:] / 2], 1)
    classes = np.asarray(label["classes"], np.int64).ravel()
    size = label.get("input_size")  # height and width of the model's input, if its boxes are in pixels
    boxes = detections.boxes
    if size is not None and boxes.size and boxes.max() > 2:
        boxes = boxes / np.array([size[1], size[0]] * 2, np.float64)
    return _matched(Detections(boxes, detections.scores, detections.classes), truth, classes)


def _matched(detections: Detections, truth: np.ndarray, classes: np.ndarray) -> Row:
    overlaps = box_iou(detections.boxes, truth)
    free = np.ones(len(truth), bool)
    marks = []
    for index in np.argsort(-detections.scores, kind="stable"):
        number = int(detections.classes[index])
        candidates = np.where(free & (classes == number), overlaps[index], 0.0)
        best = int(candidates.argmax()) if len(candidates) else -1
        right = best >= 0 and candidates[best] >= _OVERLAP
        if right:
            free[best] = False
        marks.append((number, float(detections.scores[index]), right))
    counts = {int(number): int((classes == number).sum()) for number in np.unique(classes)}
    return marks, counts


def _compute(rows: Sequence[Row]) -> float:
    counts: dict[int, int] = {}
    for _, boxes in rows:
        for number, count in boxes.items():
            counts[number] = counts.get(number, 0) + count
    return float(np.mean([_average_precision(rows, number, counts[number]) for number in counts])) if counts else 0.0


def _average_precision(rows: Sequence[Row], number: int, boxes: int) -> float:
    """The area under precision over recall, precision made monotone (Pascal VOC 2010)."""
    marks = sorted((mark for detected, _ in rows for mark in detected if mark[0] == number), key=lambda mark: -mark[1])
    if not marks:
        return 0.0
    right = np.cumsum([mark[2] for mark in marks])
    precision = right / np.arange(1, len(marks) + 1)
    best_from_here = np.maximum.accumulate(precision[::-1])[::-1]
    steps = np.diff(np.concatenate([[0.0], right / boxes]))
    return float((steps * best_from_here).sum())


METRIC = Metric(
    "map50", "Mean average precision of boxes at an overlap of 0.5; mean over classes", _row, _compute,
    (
        [{"boxes": np.array([[0.1, 0.1, 0.5, 0.5]]), "scores": np.array([0.9]), "labels": np.array([1])}],
        [{"boxes": np.array([[0.3, 0.3, 0.4, 0.4]]), "classes": np.array([1])}],
    ),
    takes_all=True,
)  # fmt: skip
