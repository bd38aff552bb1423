# SPDX-License-Identifier: Apache-2.0
"""Crop, flip, rotate and recolor an image together with its boxes, polygons and masks.

All moves are one affine matrix on pixel coordinates, in which pixel (0, 0) is the square from (0, 0) to (1, 1): pixels
are resampled once, and boxes and masks go exactly where the pixels go.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fewbit.data.types import Location, Sample
from fewbit.errors import DataError

if TYPE_CHECKING:
    from fewbit.data.loading.config import CustomConfig

Array = np.ndarray
Size = tuple[int, int]
_OBJECT_FIELDS = ("boxes", "classes", "polygons", "masks", "areas", "iscrowd")
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)


def augment_image(sample: Sample, settings: CustomConfig, random: np.random.Generator, location: Location) -> Sample:
    """A sample with its image moved and recolored; the one given stays as it is.

    Args:
        sample: `image` uint8 [H, W] or [H, W, channels]; `boxes` relative centre, width, height; `masks`, `mask`.
        settings: the `augment_…` settings.
        random: where chance comes from.
        location: for messages.
    """
    pixels = np.asarray(sample["image"])
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] > 4):
        raise DataError(
            f"augmentation cannot use an image of shape {list(pixels.shape)} and type {pixels.dtype}",
            code="not-an-image", where=str(location), expected="uint8 [H, W] or [H, W, channels]",
            hint="put 'augmentation' before 'rescaling'",
        )  # fmt: skip
    matrix = draw_matrix(settings, (pixels.shape[0], pixels.shape[1]), random)
    moved = move(sample, pixels, matrix, settings, location)
    moved["image"] = recolor(moved["image"], settings.augment_color, random)
    return moved


def draw_matrix(settings: CustomConfig, size: Size, random: np.random.Generator) -> Array:
    """A random window, then flips, then a rotation, as one matrix."""
    height, width = size
    matrix = np.eye(3)
    if settings.augment_crop < 1:
        share = settings.augment_crop + (1 - settings.augment_crop) * random.random()
        rows, columns = max(1, round(height * share)), max(1, round(width * share))
        top, left = int(random.integers(height - rows + 1)), int(random.integers(width - columns + 1))
        matrix = crop_matrix(size, left, top, columns, rows) @ matrix
    if random.random() < settings.augment_flip:
        matrix = flip_matrix(size) @ matrix
    if random.random() < settings.augment_flip_vertical:
        matrix = flip_matrix(size, vertical=True) @ matrix
    if settings.augment_rotate:
        matrix = rotation_matrix(size, settings.augment_rotate * (2 * random.random() - 1)) @ matrix
    return matrix


def flip_matrix(size: Size, *, vertical: bool = False) -> Array:
    """Left to right, or top to bottom."""
    if vertical:
        return np.array([[1.0, 0, 0], [0, -1, size[0]], [0, 0, 1]])
    return np.array([[-1.0, 0, size[1]], [0, 1, 0], [0, 0, 1]])


def crop_matrix(size: Size, left: int, top: int, width: int, height: int) -> Array:
    """A window, enlarged to the size of the image."""
    x, y = size[1] / width, size[0] / height
    return np.array([[x, 0, -left * x], [0, y, -top * y], [0, 0, 1]])


def rotation_matrix(size: Size, degrees: float) -> Array:
    """Counter-clockwise round the centre."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y = size[1] / 2, size[0] / 2
    return np.array([[cos, sin, x - cos * x - sin * y], [-sin, cos, y + sin * x - cos * y], [0, 0, 1]])


def move(sample: Sample, pixels: Array, matrix: Array, settings: CustomConfig, location: Location) -> Sample:
    """A sample with its image and everything that is marked in it moved by one matrix.

    Boxes are clipped to the image; an object of which too little is left is dropped with all its fields.
    """
    size = (pixels.shape[0], pixels.shape[1])
    moved = sample | {"image": move_pixels(pixels, matrix, settings.augment_fill)}
    if sample.get("mask") is not None:
        mask = _mask_of(sample, "mask", size, location)
        moved["mask"] = move_mask(mask, matrix, False if mask.dtype == bool else settings.augment_mask_fill)
    if sample.get("masks") is not None:
        moved["masks"] = move_mask(_mask_of(sample, "masks", size, location), matrix, 0)
    if sample.get("polygons") is not None:
        moved["polygons"] = [
            None if polygon is None else _polygon(polygon, matrix, size) for polygon in sample["polygons"]
        ]
    if sample.get("boxes") is None:
        return moved
    boxes = np.asarray(sample["boxes"], np.float64).reshape(-1, 4)
    corners = move_boxes(to_corners(boxes, size), matrix)
    clipped = np.clip(corners, 0, [size[1], size[0]] * 2)
    tight = clipped
    rotated = matrix[0, 1] != 0 or matrix[1, 0] != 0
    if moved.get("masks") is not None and (rotated or not np.allclose(corners, clipped)):
        tight = mask_boxes(moved["masks"])  # a rotated box is larger than the rotated object
    visible = box_areas(clipped) > settings.augment_visible * box_areas(corners)
    keep = np.flatnonzero(visible & (box_areas(tight) > 0))
    moved["boxes"] = from_corners(tight, size).astype(np.asarray(sample["boxes"]).dtype)
    for name in _OBJECT_FIELDS:
        values = moved.get(name)
        if values is not None and len(values) == len(boxes):
            moved[name] = values[keep] if isinstance(values, np.ndarray) else [values[index] for index in keep]
    return moved


def move_pixels(pixels: Array, matrix: Array, fill: int) -> Array:
    """An image, bilinear; what comes from outside is `fill`."""
    if np.array_equal(matrix, np.eye(3)):
        return pixels
    from PIL import Image

    height, width = pixels.shape[:2]
    inverse = tuple(np.linalg.inv(matrix)[:2].reshape(-1).tolist())
    channels = [
        np.asarray(
            Image.fromarray(np.ascontiguousarray(channel)).transform(
                (width, height), Image.Transform.AFFINE, inverse, Image.Resampling.BILINEAR, fillcolor=fill
            )
        )
        for channel in np.moveaxis(pixels.reshape(height, width, -1), 2, 0)
    ]
    return np.stack(channels, axis=2).reshape(pixels.shape)


def move_mask(mask: Array, matrix: Array, fill: int) -> Array:
    """Masks [..., H, W], nearest pixel: no value appears that was not there.

    >>> move_mask(np.array([[1, 2, 3]]), flip_matrix((1, 3)), 0).tolist()
    [[3, 2, 1]]
    """
    height, width = mask.shape[-2:]
    y, x = np.mgrid[:height, :width] + 0.5
    inverse = np.linalg.inv(matrix)
    # A pixel's centre must not miss an edge by a rounding error.
    column = np.floor(inverse[0, 0] * x + inverse[0, 1] * y + inverse[0, 2] + 1e-9).astype(np.int64)
    row = np.floor(inverse[1, 0] * x + inverse[1, 1] * y + inverse[1, 2] + 1e-9).astype(np.int64)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    moved = mask[..., np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)]
    return np.where(inside, moved, np.asarray(fill).astype(mask.dtype))


def move_boxes(corners: Array, matrix: Array) -> Array:
    """Boxes [n, 4] as left, top, right, bottom in pixels: the boxes round their moved corners."""
    left, top, right, bottom = np.asarray(corners, np.float64).reshape(-1, 4).T
    points = np.stack([[left, top], [right, top], [right, bottom], [left, bottom]]).transpose(2, 0, 1)
    moved = points @ matrix[:2, :2].T + matrix[:2, 2]
    return np.concatenate([moved.min(axis=1), moved.max(axis=1)], axis=1)


def to_corners(boxes: Array, size: Size) -> Array:
    """Relative centre, width and height as left, top, right and bottom in pixels.

    >>> to_corners(np.array([[0.5, 0.5, 1.0, 0.5]]), (10, 20)).tolist()
    [[0.0, 2.5, 20.0, 7.5]]
    """
    scale = np.array([size[1], size[0]])
    centre, extent = boxes[:, :2] * scale, boxes[:, 2:] * scale
    return np.concatenate([centre - extent / 2, centre + extent / 2], axis=1)


def from_corners(corners: Array, size: Size) -> Array:
    """The inverse of `to_corners`."""
    scale = np.array([size[1], size[0]])
    low, high = corners[:, :2], corners[:, 2:]
    return np.concatenate([(low + high) / 2 / scale, (high - low) / scale], axis=1)


def box_areas(corners: Array) -> Array:
    """Pixels of each box; 0 if it is outside."""
    return np.asarray(np.prod(np.maximum(0, corners[:, 2:] - corners[:, :2]), axis=1))


def mask_boxes(masks: Array) -> Array:
    """The boxes round masks [n, H, W]; an empty mask has an empty box.

    >>> mask_boxes(np.array([[[0, 1, 1], [0, 1, 0]]], bool)).tolist()
    [[1.0, 0.0, 3.0, 2.0]]
    """
    boxes = np.zeros((len(masks), 4))
    for box, mask in zip(boxes, masks):
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        if len(rows):
            box[:] = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
    return boxes


def recolor(pixels: Array, strength: float, random: np.random.Generator) -> Array:
    """Brightness, contrast and saturation, each by a factor between `1 - strength` and `1 + strength`.

    A fourth channel is transparency and stays.
    """
    if not strength:
        return pixels
    brightness, contrast, saturation = 1 + strength * (2 * random.random(3) - 1)
    channels = pixels.reshape(*pixels.shape[:2], -1)
    colors = 3 if channels.shape[2] >= 3 else 1
    values = channels[:, :, :colors].astype(np.float32) * np.float32(brightness)
    middle = (values @ _LUMINANCE if colors == 3 else values[:, :, 0]).mean()
    values = middle + (values - middle) * np.float32(contrast)
    if colors == 3:
        grey = (values @ _LUMINANCE)[:, :, None]
        values = grey + (values - grey) * np.float32(saturation)
    result = channels.copy()
    result[:, :, :colors] = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return np.asarray(result.reshape(pixels.shape))


def resize_masks(masks: Array, size: Size) -> Array:
    """Masks [..., H, W] of another size, nearest pixel."""
    rows, columns = (((np.arange(new) + 0.5) * old / new).astype(np.int64) for new, old in zip(size, masks.shape[-2:]))
    resized: Array = np.ascontiguousarray(masks[..., rows[:, None], columns])
    return resized


def _polygon(points: Any, matrix: Array, size: Size) -> Array:
    """Relative points, moved, and clipped to the image."""
    scale = np.array([size[1], size[0]])
    moved = (np.asarray(points, np.float64) * scale) @ matrix[:2, :2].T + matrix[:2, 2]
    return np.asarray(np.clip(moved / scale, 0, 1), np.float32)


def _mask_of(sample: Sample, name: str, size: Size, location: Location) -> Array:
    mask = np.asarray(sample[name])
    if mask.shape[-2:] != size:
        raise DataError(
            f"{name} is {list(mask.shape)}, the image {list(size)}", code="mask-size", where=str(location),
            expected="the size of the image", hint="`fewbit check` lists such samples",
        )  # fmt: skip
    return mask
