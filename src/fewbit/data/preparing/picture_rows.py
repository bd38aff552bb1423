# SPDX-License-Identifier: Apache-2.0
"""Rows with pictures: where their class, their mask or their objects are.

A mask is a column with a class a pixel beside the picture. Objects are `boxes` and `classes`, or the `objects` of most
detection sets of the hub; where pictures have a class too, objects are read for `object_detection` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fewbit.data.preparing.class_names import AsItIs, numbered
from fewbit.data.preparing.object_rows import OBJECTS, Objects, Reader, as_boxes

_MASKS = ("mask", "label", "labels", "annotation", "segmentation_mask", "seg_mask")


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
    column = next((name for name in ("label", "classes") if name in names), None) or one_known(known, first)
    if OBJECTS in names and "boxes" not in names and "image" in names and (task == "object_detection" or not column):
        inner = next((name for name in known if name.startswith(f"{OBJECTS}.")), OBJECTS)
        made = [as_boxes(row) for row in first]
        return Objects(numbered(AsItIs(), "classes", made, None, classes, known.get(inner)), inner)
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
