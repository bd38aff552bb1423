# SPDX-License-Identifier: Apache-2.0
"""Boxes as a dataset writes them, and as left, top, right and bottom in pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

FORMATS = ("cxcywh", "xyxy", "xywh")
"""Centre and size as shares of the picture (as fewbit reads YOLO); two corners, or one and the size, in pixels."""


def to_corners(boxes: Any, format: str, size: tuple[int, int]) -> Array:
    """Boxes in pixels by their corners.

    >>> to_corners([[0.5, 0.5, 1.0, 0.5]], "cxcywh", (10, 20)).tolist()
    [[0.0, 2.5, 20.0, 7.5]]
    """
    values = np.asarray(boxes, np.float64).reshape(-1, 4)
    first, second = values[:, :2], values[:, 2:]
    if format == "xyxy":
        return values
    if format == "xywh":
        return np.concatenate([first, first + second], axis=1)
    scale = np.array([size[1], size[0]])
    return np.concatenate([(first - second / 2) * scale, (first + second / 2) * scale], axis=1)


def from_corners(corners: Array, format: str, size: tuple[int, int]) -> Array:
    """The other way round."""
    low, high = corners[:, :2], corners[:, 2:]
    if format == "xyxy":
        return corners
    if format == "xywh":
        return np.concatenate([low, high - low], axis=1)
    scale = np.array([size[1], size[0]])
    return np.concatenate([(low + high) / 2 / scale, (high - low) / scale], axis=1)


def clip(corners: Array, size: tuple[int, int]) -> Array:
    """The part of each box that is in the picture; one that is outside has no area."""
    edge = np.array([size[1], size[0]] * 2, np.float64)
    clipped: Array = np.clip(corners, 0, edge)
    return clipped


def area(corners: Array) -> Array:
    """Of each box."""
    found: Array = np.prod(np.maximum(0, corners[:, 2:] - corners[:, :2]), axis=1)
    return found


def round_masks(masks: Array) -> Array:
    """The boxes round masks `(n, H, W)`; an empty mask has an empty box.

    >>> round_masks(np.array([[[0, 1, 1], [0, 1, 0]]], bool)).tolist()
    [[1.0, 0.0, 3.0, 2.0]]
    """
    found = np.zeros((len(masks), 4))
    for box, mask in zip(found, masks):
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        if len(rows):
            box[:] = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
    return found
