# SPDX-License-Identifier: Apache-2.0
"""Rows with pictures: where their class, their mask or their objects are.

A mask is a column with a class a pixel beside the picture. Objects are `boxes` and `classes`, or the `objects` of most
detection sets of the hub: `bbox` (x, y, width, height in pixels, as COCO has them) and `category`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fewbit.data.preparing.class_names import AsItIs, numbered
from fewbit.data.sample import Sample
from fewbit.data.tables.labels import Labels
from fewbit.errors import DataError

Reader = Callable[[Mapping[str, Any]], dict[str, Any]]

_MASKS = ("mask", "label", "labels", "annotation", "segmentation_mask", "seg_mask")
_OBJECTS, _CATEGORY = "objects", ("category", "category_id", "label", "labels")


def read_pictures(
    first: Sequence[Mapping[str, Any]],
    task: str | None,
    classes: Sequence[Any] | None,
    known: Mapping[str, Sequence[str]],
) -> Reader:
    """What reads rows that are pictures, or numbers already.

    Args:
        first: the first rows.
        task: what they are for, if it is known.
        classes: the user's own word about the names of the classes.
        known: what the numbers of a column mean.
    """
    names = list(dict.fromkeys(name for row in first for name in row))
    if task == "segmentation" and "image" in names:
        mask = next((name for name in _MASKS if first and is_mask(first[0].get(name))), None)
        if mask is not None:
            return AsItIs({} if mask == "mask" else {"mask": mask})
    if _OBJECTS in names and "boxes" not in names and "image" in names:
        inner = next((name for name in known if name.startswith(f"{_OBJECTS}.")), _OBJECTS)
        made = [as_boxes(row) for row in first]
        return Objects(numbered(AsItIs(), "classes", made, None, classes, known.get(inner)), inner)
    column = next((name for name in ("label", "classes") if name in names), None) or one_known(known, first)
    # Pictures would all have to be decoded to find the names of their classes.
    read = AsItIs({} if column in (None, "label", "classes") else {"label": column})
    return read if column is None else numbered(read, column, first, None, classes, known.get(column))


def one_known(known: Mapping[str, Sequence[str]], first: Sequence[Mapping[str, Any]]) -> str | None:
    """The one column that is known to hold a class a row."""
    found = [name for name in known if any(isinstance(row.get(name), int) for row in first)]
    return found[0] if len(found) == 1 else None


def is_mask(value: Any) -> bool:
    """Whether a value is a class a pixel.

    >>> is_mask(np.zeros((4, 4), np.uint8)), is_mask(3)
    (True, False)
    """
    return value is not None and hasattr(value, "__array__") and np.asarray(value).ndim == 2


@dataclass(frozen=True)
class Objects:
    """Reads rows with `objects`.

    Args:
        read: reads what is made of them.
        column: where their classes are.
    """

    read: Reader
    column: str = _OBJECTS
    drops = False
    remarks = (("layout", "the boxes in 'objects' are x, y, width, height in pixels, as COCO has them"),)

    @property
    def labels(self) -> Labels | None:
        """The number of each class's name, where they have names."""
        return getattr(self.read, "labels", None)

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a row."""
        return self.read(as_boxes(row))


def as_boxes(row: Mapping[str, Any]) -> Sample:
    """A row with `boxes`, as shares of the picture, and `classes`, in the place of its `objects`.

    Raises:
        DataError: boxes that are not in the picture, or not as many as classes.
    """
    given = row[_OBJECTS]
    if isinstance(given, list):  # one mapping an object
        given = {name: [each[name] for each in given] for name in (given[0] if given else ())}
    category = next((name for name in _CATEGORY if name in given), None)
    boxes = np.asarray(given.get("bbox") or [], np.float32).reshape(-1, 4)
    classes = np.asarray(given[category] if category else [], np.int64).reshape(-1)
    height, width = np.asarray(row["image"]).shape[:2]
    fits = (boxes >= -1).all() and (boxes[:, :2] + boxes[:, 2:] <= np.array([width, height]) + 1).all()
    if len(boxes) != len(classes) or not fits:
        raise DataError(
            f"objects of a picture of {width} x {height} pixels: {len(boxes)} boxes up to "
            f"{boxes.max(initial=0):.0f}, {len(classes)} classes",
            code="bad-row",
            where=getattr(row, "place", None),
            expected="a class a box, and boxes in the picture: x, y, width, height in pixels, as COCO has them",
            try_="a step of your own that gives 'boxes' (centre x, centre y, width, height as shares) and 'classes'",
        )
    size = np.array([width, height, width, height], np.float32)
    shares = np.concatenate([boxes[:, :2] + boxes[:, 2:] / 2, boxes[:, 2:]], 1) / size
    kept = {name: value for name, value in row.items() if name != _OBJECTS}
    return Sample({**kept, "boxes": shares, "classes": classes}, place=getattr(row, "place", None))
