# SPDX-License-Identifier: Apache-2.0
"""Boxes in the outputs of a detector: finding them by name and shape, and matching those of two models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

CONFIDENT = 0.3
"""Score from which a detection counts when two models are compared."""
_OVERLAP = 0.5
_BOX_COLUMNS = 6
"""Of one table: x1, y1, x2, y2, score, class."""
_MOST_FEATURES, _LEAST_ANCHORS = 512, 64


class Detections(NamedTuple):
    """Of one image: boxes [n, 4] as corners x1, y1, x2, y2; scores [n]; classes [n]."""

    boxes: np.ndarray
    scores: np.ndarray
    classes: np.ndarray


def find_detections(outputs: Mapping[str, np.ndarray]) -> Detections | None:
    """The detections of one sample; `None` if its outputs are something else.

    Args:
        outputs: by name, without batch axis: boxes [n, 4] with scores [n] and classes [n], or one table [n, 6].

    >>> table = np.array([[0.0, 0.0, 1.0, 1.0, 0.9, 2.0]])
    >>> find_detections({"dets": table}).classes
    array([2])
    """
    arrays = {name.lower(): np.asarray(value) for name, value in outputs.items()}
    for name, array in arrays.items():
        if array.ndim == 2 and array.shape[1] == _BOX_COLUMNS and array.dtype.kind == "f" and _is_table(name, array):
            return Detections(array[:, :4].astype(np.float64), array[:, 4], array[:, 5].astype(np.int64))
    boxes = [array for array in arrays.values() if array.ndim == 2 and array.shape[1] == 4 and array.dtype.kind == "f"]
    if len(boxes) != 1:
        return None
    columns = {name: array for name, array in arrays.items() if array.ndim == 1 and len(array) == len(boxes[0])}
    classes = next((n for n, a in columns.items() if a.dtype.kind in "iu" or "class" in n or "label" in n), None)
    scores = next((n for n, a in columns.items() if n != classes and a.dtype.kind == "f"), None)
    if classes is None or scores is None:
        return None
    return Detections(boxes[0].astype(np.float64), columns[scores], columns[classes].astype(np.int64))


def _is_table(name: str, array: np.ndarray) -> bool:
    """Scores between 0 and 1, whole class numbers, corners in order."""
    if not len(array):
        return any(word in name for word in ("det", "box", "output"))
    scores, classes = array[:, 4], array[:, 5]
    is_class = bool((classes == np.round(classes)).all() and (classes >= -1).all())
    is_score = bool((scores >= 0).all() and (scores <= 1).all())
    return is_class and is_score and bool((array[:, 2:4] >= array[:, :2]).mean() > 0.9)


def match_detections(original: Detections, result: Detections) -> tuple[int, int, int]:
    """Confident detections of both models that match in class and overlap by half, and how many each model has."""
    first, second = _confident(original), _confident(result)
    overlaps = box_iou(first.boxes, second.boxes)
    overlaps[first.classes[:, None] != second.classes[None, :]] = 0
    matches = 0
    for index in np.argsort(-first.scores, kind="stable"):
        if overlaps.shape[1] and overlaps[index].max() >= _OVERLAP:
            overlaps[:, overlaps[index].argmax()] = 0
            matches += 1
    return matches, len(first.boxes), len(second.boxes)


def _confident(detections: Detections) -> Detections:
    chosen = detections.scores >= CONFIDENT
    return Detections(*(part[chosen] for part in detections))


def box_iou(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Intersection over union of all pairs of boxes, [n, m].

    >>> box_iou(np.array([[0, 0, 2, 2.0]]), np.array([[1, 0, 3, 2.0]]))
    array([[0.33333333]])
    """
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    both = np.prod(np.clip(high - low, 0, None), -1)
    areas = [np.prod(np.clip(boxes[:, 2:] - boxes[:, :2], 0, None), -1) for boxes in (first, second)]
    either = areas[0][:, None] + areas[1][None, :] - both
    return np.asarray(np.divide(both, either, out=np.zeros_like(both, np.float64), where=either > 0))


def score_axis(output: np.ndarray) -> int | None:
    """The axis of a raw detection head, [N, anchors, 4 + scores] or [N, 4 + scores, anchors]; `None` for other outputs.

    The first four entries are coordinates in pixels, all others lie between 0 and 1.
    """
    if output.ndim != 3 or output.dtype.kind != "f":
        return None
    for axis in (2, 1):
        features, anchors = output.shape[axis], output.shape[3 - axis]
        if 5 <= features <= _MOST_FEATURES and anchors >= _LEAST_ANCHORS:
            values = np.moveaxis(output, axis, -1)
            coordinates, scores = values[..., :4], values[..., 4:]
            if coordinates.max() > 2 and scores.min() >= 0 and scores.max() <= 1:
                return axis
    return None
