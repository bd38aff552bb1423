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


def average_precision(scores: Array, right: Array, objects: Array, times: Array) -> Array:
    """The area under precision over recall, of one class, at each threshold: `[draws, thresholds]`.

    Pictures that are drawn several times have boxes that count as often; all draws are computed at once, from boxes
    that were matched and ranked once.

    Args:
        scores: `[n]`, of all boxes of all pictures.
        right: `[n, thresholds]`, what `match` said of them.
        objects: `[draws]`, how many there are to find.
        times: `[draws, n]`, whole numbers: how often each box counts.

    >>> right = np.array([[True], [False], [True]])
    >>> average_precision(np.array([0.9, 0.8, 0.7]), right, np.array([2]), np.ones((1, 3), int)).round(3)
    array([[0.835]])
    """
    order = np.argsort(-scores, kind="stable")
    times, right = times[:, order], right[order]
    before = times.cumsum(1)
    areas = np.zeros((len(times), right.shape[1]))
    for column in range(right.shape[1]):
        # Between right boxes recall stays and precision falls: they alone decide.
        places = np.flatnonzero(right[:, column])
        if not len(places):
            continue
        found = times[:, places].cumsum(1)
        precision = found / before[:, places].clip(1)
        # What is reached with more boxes counts for fewer as well.
        precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        # In whole objects: a share such as 0.29 is not what 29 of 100 divides to.
        reached = 100 * found // objects.clip(1)[:, None]
        areas[:, column] = (precision * np.diff(reached, axis=1, prepend=-1)).sum(1) / 101
    return areas


def _corner(boxes: Array, side: int) -> Array:
    corner: Array = boxes[:, :2] + side * boxes[:, 2:] / 2
    return corner
