# SPDX-License-Identifier: Apache-2.0
"""The `objects` column of detection datasets on the hub as `boxes` and `classes`.

It holds `bbox` (x, y, width, height in pixels, as COCO has them) and a category under one of four names, as a list of
dicts or as a dict of lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fewbit.data.types import Issue, IssueType, Location, SampleError, Severity
from fewbit.errors import plural

OBJECTS, BOXES = "objects", "bbox"
CATEGORIES = ("category", "category_id", "label", "labels")
_TOLERANCE = 1
"""Pixels a box may reach beyond the image: annotations count edges differently."""

BAD_OBJECTS = IssueType(
    "bad-objects", Severity.ERROR, "objects that are not boxes inside the image with one class each",
    "write x, y, width, height in pixels and a class number for each object", "raise", ("drop",), "leaves the row out",
)  # fmt: skip


def is_objects(value: Any) -> bool:
    """Whether a value holds boxes; an image without objects has empty lists.

    >>> is_objects({"bbox": [], "category": []}), is_objects([{"bbox": [0, 0, 1, 1]}]), is_objects({"id": [1]})
    (True, True, False)
    """
    if isinstance(value, list):
        return all(isinstance(item, Mapping) and BOXES in item for item in value)
    return isinstance(value, Mapping) and BOXES in value


def boxes_and_classes(objects: Any, width: int, height: int, location: Location) -> dict[str, np.ndarray]:
    """`boxes` float32 [n, 4], centre and size in 0..1, and `classes` int64 [n].

    Args:
        objects: the value of the column.
        width: of the image, in pixels.
        height: of the image.
        location: for errors.

    Raises:
        SampleError: boxes outside the image or without area, or not as many classes as boxes.

    >>> sample = boxes_and_classes({"bbox": [[0, 0, 4, 2]], "category": [1]}, 8, 4, Location())
    >>> sample["boxes"].tolist(), sample["classes"].tolist()
    ([[0.25, 0.25, 0.5, 0.5]], [1])
    """
    if isinstance(objects, list):
        names = list(dict.fromkeys(name for item in objects for name in item))
        objects = {name: [item.get(name) for item in objects] for name in names}
    category = next((name for name in CATEGORIES if name in objects), CATEGORIES[0])
    try:
        corners = np.asarray(objects.get(BOXES) or [], np.float64).reshape(-1, 4)
        numbers = np.asarray(objects.get(category) or [], np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise SampleError(Issue(BAD_OBJECTS, str(error)[:200], location)) from error
    size = np.array([width, height], np.float64)
    low, high = corners[:, :2], corners[:, :2] + corners[:, 2:]
    inside = (low >= -_TOLERANCE).all() and (high <= size + _TOLERANCE).all() and (corners[:, 2:] > 0).all()
    valid_classes = bool((numbers == np.floor(numbers)).all() and (numbers >= 0).all())
    if len(corners) != len(numbers) or not inside or not valid_classes:
        counts = f"{plural(len(corners), 'box')}, {plural(len(numbers), 'class')}"
        extent = f" from {corners.min():g} to {corners.max():g}" if len(corners) else ""
        raise SampleError(Issue(BAD_OBJECTS, f"{counts}{extent} in an image of {width} x {height} pixels", location))
    low, high = np.clip(low, 0, size) / size, np.clip(high, 0, size) / size
    boxes = np.concatenate([(low + high) / 2, high - low], axis=1).astype(np.float32)
    return {"boxes": boxes, "classes": numbers.astype(np.int64)}
