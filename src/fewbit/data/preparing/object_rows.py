# SPDX-License-Identifier: Apache-2.0
"""The `objects` of most detection sets of the hub become `boxes`, as shares of the picture, and `classes`.

They are `bbox` (x, y, width, height in pixels, as COCO has them) and `category`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.sample import Place, Sample
from fewbit.data.tables.labels import Labels
from fewbit.errors import DataError

Reader = Callable[[Mapping[str, Any]], dict[str, Any]]

OBJECTS = "objects"
_BOXES, _CATEGORY = "bbox", ("category", "category_id", "label", "labels")


@dataclass(frozen=True)
class Objects:
    """Reads rows with `objects`.

    Args:
        read: reads what is made of them.
        column: where their classes are.
    """

    read: Reader
    column: str = OBJECTS
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

    >>> row = {"image": np.zeros((4, 8, 3)), "objects": {"bbox": [[0, 0, 4, 2]], "category": [1]}}
    >>> as_boxes(row)["boxes"].tolist()
    [[0.25, 0.25, 0.5, 0.5]]

    Raises:
        DataError: what is no boxes, boxes that are not in the picture, or not as many as classes.
    """
    given = _by_name(row)
    category = next((name for name in _CATEGORY if name in given), _CATEGORY[0])
    boxes, classes = _boxes(row, given.get(_BOXES)), _classes(row, given.get(category), category)
    shape = np.shape(row["image"])
    if len(shape) < 2:
        raise _bad(row, f"the picture beside 'objects' is {type(row['image']).__name__}", "image")
    height, width = shape[:2]
    inside = (boxes >= -1).all() and (boxes[:, :2] + boxes[:, 2:] <= np.array([width, height]) + 1).all()
    if len(boxes) != len(classes) or not inside or not (boxes[:, 2:] > 0).all():
        span = f" from {boxes.min():.0f} to {boxes.max():.0f}" if len(boxes) else ""
        what = f"objects of a picture of {width} x {height} pixels: {len(boxes)} boxes{span}, {len(classes)} classes"
        raise _bad(row, what, f"{OBJECTS}.{_BOXES}")
    size = np.array([width, height, width, height], np.float32)
    shares = np.concatenate([boxes[:, :2] + boxes[:, 2:] / 2, boxes[:, 2:]], 1) / size
    kept = {name: value for name, value in row.items() if name != OBJECTS}
    return Sample({**kept, "boxes": shares, "classes": classes}, place=getattr(row, "place", None))


def _by_name(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The objects of a row, a list under each name."""
    given = row.get(OBJECTS)
    if isinstance(given, list) and all(isinstance(each, Mapping) for each in given):  # one mapping an object
        names = list(dict.fromkeys(name for each in given for name in each))
        absent = next((name for name in names for each in given if name not in each), None)
        if absent is not None:
            raise _bad(row, f"an object has no {absent!r}, which others of its picture have", OBJECTS)
        return {name: [each[name] for each in given] for name in names}
    if not isinstance(given, Mapping):
        raise _bad(row, f"'objects' is {'none' if given is None else type(given).__name__}", OBJECTS)
    return given


def _boxes(row: Mapping[str, Any], given: Any) -> NDArray[np.float32]:
    try:
        found = np.asarray([] if given is None else given, np.float32)
    except (TypeError, ValueError):
        found = np.zeros(1, np.float32)  # which is none
    if found.size and (found.ndim != 2 or found.shape[1] != 4):
        raise _bad(row, f"no boxes of four numbers: {given!r:.60}", f"{OBJECTS}.{_BOXES}")
    return found.reshape(-1, 4)


def _classes(row: Mapping[str, Any], given: Any, column: str) -> NDArray[np.int64]:
    found = np.asarray([] if given is None else given, object).reshape(-1).tolist()
    for each in found:
        if isinstance(each, bool) or not isinstance(each, int | float | np.number) or float(each) % 1 != 0:
            raise _bad(row, f"no numbers of classes: {each!r:.60}", f"{OBJECTS}.{column}")
    return np.array(found, np.int64)


def _bad(row: Mapping[str, Any], what: str, column: str) -> DataError:
    return DataError(
        what,
        code="bad-row",
        where=replace(getattr(row, "place", None) or Place(), field=column),
        expected="a class a box, its number from 0 up, and boxes in the picture: x, y, width, height in pixels, each "
        "above 0 wide and high, as COCO has them; of a picture without objects, empty lists",
        try_="a step of your own that gives 'boxes' (centre x, centre y, width, height as shares) and 'classes'",
    )
