# SPDX-License-Identifier: Apache-2.0
"""A picture and all that is marked in it: boxes, outlines, masks; moved together, and in another light.

What is marked has the names that `formats/yolo.py` gives: `boxes`, `classes`, `polygons` (shares of the picture) and
`masks` `(n, H, W)`, one of each an object; and `mask` `(H, W)`, a class for each pixel. What is outside the
picture is cut off; an object of which too little is left goes with everything it has.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.augmenting import boxes as box
from fewbit.data.augmenting import geometry
from fewbit.data.augmenting.colour import jitter
from fewbit.data.boxes import polygon
from fewbit.data.describe import describe
from fewbit.errors import DataError

Array = NDArray[Any]

OF_OBJECTS = ("boxes", "classes", "labels", "polygons", "masks", "areas", "iscrowd")
"""The fields that have one entry an object."""


def augment(sample: Mapping[str, Any], options: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """The sample moved and lit as chance has it; the one given stays as it is.

    Args:
        sample: with `image`, a Pillow image or an array `(H, W)` or `(H, W, channels)` of uint8.
        options: the keys of the step.
        rng: where chance comes from.

    Raises:
        DataError: an image of another kind, a mask of another size.
    """
    pixels = _pixels(sample)
    matrix = draw(options, (pixels.shape[0], pixels.shape[1]), rng)
    out = move(sample, pixels, matrix, options)
    lit = out["image"]
    if options["augment_colour"]:
        lit = jitter(lit, options["augment_colour"], rng)
    out["image"] = lit if isinstance(sample["image"], np.ndarray) else _image(lit)
    return out


def draw(options: Mapping[str, Any], size: geometry.Size, rng: random.Random) -> geometry.Matrix:
    """Where everything goes: a window, then mirrored, then turned."""
    matrix = np.eye(3)
    height, width = size
    least = options["augment_crop"]
    if least < 1:
        share = least + (1 - least) * rng.random()
        high, wide = max(1, round(height * share)), max(1, round(width * share))
        top, left = int(rng.random() * (height - high + 1)), int(rng.random() * (width - wide + 1))
        matrix = geometry.enlarge(size, left, top, wide, high) @ matrix
    if rng.random() < options["augment_flip"]:
        matrix = geometry.mirror(size) @ matrix
    if rng.random() < options["augment_flip_vertical"]:
        matrix = geometry.mirror(size, upside_down=True) @ matrix
    if options["augment_rotate"]:
        matrix = geometry.turn(size, options["augment_rotate"] * (2 * rng.random() - 1)) @ matrix
    return matrix


def move(
    sample: Mapping[str, Any], pixels: Array, matrix: geometry.Matrix, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The sample with its pixels and all that is marked in them moved by one map."""
    out = {**sample, "image": geometry.move_pixels(pixels, matrix, options["augment_fill"])}
    size = (pixels.shape[0], pixels.shape[1])
    if sample.get("mask") is not None:
        mask = _fitting(sample, "mask", size)
        out["mask"] = geometry.move_mask(mask, matrix, False if mask.dtype == bool else options["augment_mask_fill"])
    if sample.get("masks") is not None:
        out["masks"] = geometry.move_mask(_fitting(sample, "masks", size), matrix, 0)
    if sample.get("polygons") is not None:
        out["polygons"] = [None if each is None else _outline(each, matrix, size) for each in sample["polygons"]]
    if sample.get("boxes") is None:
        return out
    corners = geometry.move_boxes(box.to_corners(sample["boxes"], options["box_format"], size), matrix)
    clipped = box.clip(corners, size)
    exact = geometry.keeps_axes(matrix) & np.all(np.isclose(corners, clipped, atol=1e-6), axis=1)
    found = np.where(exact[:, None], clipped, _tighter(clipped, out, size))
    seen = box.area(clipped) > options["augment_visible"] * box.area(corners)
    stay = np.flatnonzero(seen & (box.area(found) > 0))
    out["boxes"] = box.from_corners(found, options["box_format"], size).astype(_floating(sample["boxes"]))
    for name in OF_OBJECTS:
        if hasattr(out.get(name), "__len__") and len(out[name]) == len(corners):
            values = out[name]
            out[name] = values[stay] if isinstance(values, np.ndarray) else [values[index] for index in stay]
    return out


def _tighter(corners: Array, moved: Mapping[str, Any], size: geometry.Size) -> Array:
    """The boxes round what is known of the objects' shapes, or as they are."""
    if moved.get("masks") is not None:
        return box.round_masks(moved["masks"])
    scale = np.array([size[1], size[0]] * 2)
    found = corners.copy()
    for index, outline in enumerate(moved.get("polygons") or ()):
        if outline is not None:
            found[index] = np.array(polygon.bounds(outline)) * scale if len(outline) else 0
    return found


def _outline(points: Array, matrix: geometry.Matrix, size: geometry.Size) -> Array:
    scale = np.array([size[1], size[0]])
    moved = geometry.move_points(np.asarray(points, np.float64) * scale, matrix) / scale
    return polygon.clip(moved).astype(_floating(points))


def _floating(values: Any) -> Any:
    dtype = getattr(values, "dtype", None)
    return dtype if dtype is not None and np.issubdtype(dtype, np.floating) else np.float32


def _pixels(sample: Mapping[str, Any]) -> Array:
    image: Any = sample["image"]
    if hasattr(image, "getbands"):
        from fewbit.data.images.pixels import to_rgb

        image = np.asarray(image) if image.mode in ("L", "RGB", "RGBA") else to_rgb(image, (0, 0, 0))
    channels_last = isinstance(image, np.ndarray) and (image.ndim == 2 or (image.ndim == 3 and image.shape[2] <= 4))
    if not channels_last or image.dtype != np.uint8 or not image.size:
        raise DataError(
            f"augmentation cannot work on {describe(image)}",
            code="not-a-picture",
            where=getattr(sample, "place", None),
            expected="a Pillow image, or an array (H, W) or (H, W, up to 4 channels) of uint8",
            try_="put 'augmentation' before what makes tensors of images",
        )
    pixels: Array = image
    return pixels


def _fitting(sample: Mapping[str, Any], name: str, size: geometry.Size) -> Array:
    mask = np.asarray(sample[name])
    if mask.shape[-2:] != size:
        raise DataError(
            f"{name} is {mask.shape} where the picture is {size}",
            code="mask-size",
            where=getattr(sample, "place", None),
            expected="the height and width of the picture",
        )
    return mask


def _image(pixels: Array) -> Any:
    from PIL import Image

    return Image.fromarray(pixels)
