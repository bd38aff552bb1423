# SPDX-License-Identifier: Apache-2.0
"""How well objects are found: average precision, as COCO measures it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

THRESHOLDS = np.arange(10) * 0.05 + 0.5
"""How much a box has to overlap to be the right one: .5, .55 … .95."""


def box_overlaps(first: Array, second: Array) -> Array:
    """Intersection over union of every two boxes.

    Args:
        first: `[n, 4]`, centre x, centre y, width, height.
        second: `[m, 4]`.

    Returns:
        `[n, m]`; 0 where both boxes have no area.
    """
    low = np.maximum(_corner(first, -1)[:, None], _corner(second, -1)[None])
    high = np.minimum(_corner(first, 1)[:, None], _corner(second, 1)[None])
    both = (high - low).clip(0).prod(-1)
    area = first[:, 2:].prod(-1)[:, None] + second[:, 2:].prod(-1)[None] - both
    shares: Array = np.divide(both, area, out=np.zeros_like(both), where=area > 0)
    return shares


def match(boxes: Array, classes: Array, true_boxes: Array, true_classes: Array) -> Array:
    """Which boxes of a picture are right, at each threshold: `[boxes, thresholds]`.

    A box takes the object of its class that it overlaps most, among those that no likelier box has taken.

    Args:
        boxes: `[n, 4]`, the likeliest first.
        classes: `[n]`.
        true_boxes: `[m, 4]`.
        true_classes: `[m]`.
    """
    right = np.zeros((len(boxes), len(THRESHOLDS)), bool)
    if not len(boxes) or not len(true_boxes):
        return right
    overlap = np.where(classes[:, None] == true_classes[None], box_overlaps(boxes, true_boxes), -1.0)
    free = np.ones((len(THRESHOLDS), len(true_boxes)), bool)
    every = np.arange(len(THRESHOLDS))
    for row in np.flatnonzero((overlap >= THRESHOLDS[0]).any(1)):
        left = np.where(free, overlap[row], -1.0)  # [thresholds, m]
        best = left.argmax(1)
        right[row] = left[every, best] >= THRESHOLDS - 1e-9
        free[every[right[row]], best[right[row]]] = False
    return right


def average_precision(scores: Array, right: Array, objects: int) -> Array:
    """The area under precision over recall, of one class, at each threshold.

    Args:
        scores: `[n]`, of all boxes of all pictures.
        right: `[n, thresholds]`, what `match` said of them.
        objects: how many there are to find.
    """
    order = np.argsort(-scores, kind="stable")
    found = right[order].cumsum(0)  # [n, thresholds]
    precision = found / np.arange(1, len(order) + 1)[:, None]
    # What is reached with more boxes counts for fewer as well.
    precision = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
    areas = np.zeros(right.shape[1])
    for column in range(right.shape[1]):
        # Compared in whole objects: a share such as 0.29 is not what 29 of 100 divides to.
        first = np.searchsorted(found[:, column] * 100, np.arange(101) * objects, side="left")
        reached = first < len(order)
        areas[column] = precision[first[reached], column].sum() / 101
    return areas


def _corner(boxes: Array, side: int) -> Array:
    corner: Array = boxes[:, :2] + side * boxes[:, 2:] / 2
    return corner
