# SPDX-License-Identifier: Apache-2.0
"""The objects of one image as arrays: what a label file becomes in a sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data import limits
from fewbit.data.boxes import raster
from fewbit.data.boxes.pixels import Box
from fewbit.data.boxes.shapes import Shape
from fewbit.data.findings import Code, Severity

CODES = {
    "masks-too-large": Code(
        Severity.ERROR,
        "the masks of an image would fill the memory",
        "resize the image, or open it with task='object-detection'",
        "raise",
    ),
}

_CROSSINGS = 1 << 30


def arrays(shapes: Sequence[Shape]) -> dict[str, Any]:
    """Boxes, classes and polygons.

    Returns:
        `boxes` (n, 4) float32, normalised centre x, centre y, width, height; `classes` (n,) int64; `polygons`, a
        list of n arrays (k, 2) float32, or `None` for a row that is a box.
    """
    return {
        "boxes": np.array([shape.box for shape in shapes], np.float32).reshape(-1, 4),
        "classes": np.array([shape.cls for shape in shapes], np.int64),
        "polygons": [None if shape.polygon is None else shape.polygon.astype(np.float32) for shape in shapes],
    }


def masks(shapes: Sequence[Shape], height: int, width: int) -> NDArray[np.bool_] | str:
    """Each object as a mask `(n, height, width)`; a box is a filled rectangle. A text says why it is too much."""
    needed = len(shapes) * height * width
    if needed > limits.ARRAY_BYTES:
        return f"{len(shapes)} masks of {width} x {height} pixels are {needed:,} bytes; at most {limits.ARRAY_BYTES:,}"
    outlines = [corners(shape.box) if shape.polygon is None else shape.polygon for shape in shapes]
    work = sum(raster.crossing_count(outline, height) for outline in outlines)
    if work > _CROSSINGS:
        return f"the outlines cross {work:,} rows of pixels; at most {_CROSSINGS:,} are worked out"
    made = np.zeros((len(shapes), height, width), np.bool_)
    for mask, outline in zip(made, outlines):
        mask[:] = raster.rasterise(outline, height, width)
    return made


def corners(box: Box) -> NDArray[np.float64]:
    """A box as an outline of four points."""
    x, y, width, height = box
    left, top, right, bottom = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]])
