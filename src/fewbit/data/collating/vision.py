# SPDX-License-Identifier: Apache-2.0
"""Pictures and what is in them: stacked, or put on one canvas on which boxes and masks stay where they belong."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fewbit.data.collating.columns import Columns
from fewbit.data.collating.filling import Array, as_array, fill_blocks
from fewbit.data.collating.padding import Padding, rounded
from fewbit.data.steps._base import NOTHING

Targets = Literal["lists", "padded"]
PICTURES = ("pixel_values", "image")
_CHANNELS = (1, 3, 4)
_OBJECTS = ("boxes", "classes", "masks", "polygons")


def join_vision(columns: Columns, padding: Padding, targets: Targets) -> dict[str, Any]:
    """Pictures as `pixel_values` (batch, channels, height, width), with what is known of them.

    Args:
        columns: with `pixel_values` (channels first, as they are) or `image` (a picture, or an array with the channels
            last; bytes become numbers from 0 to 1).
        padding: whether pictures of different sizes may share a batch.
        targets: objects of each picture as lists of tensors, or filled up to the most of them with `object_mask`.

    Returns:
        `pixel_values`; `pixel_mask` if a picture is smaller than its canvas; `boxes`, `classes`, `masks`, `polygons`.

    Raises:
        DataError: a picture of another size or number of channels, a mask of another size than its picture.
    """
    name = next(name for name in PICTURES if name in columns)
    pictures = [_picture(columns, name, row, value) for row, value in enumerate(columns.take(name))]
    sizes = [picture.shape[1:] for picture in pictures]
    for row, picture in enumerate(pictures):
        if picture.shape[0] != pictures[0].shape[0]:
            raise columns.misfit(row, name, f"{picture.shape[0]} channels", f"{pictures[0].shape[0]}, as before it")
        if padding.to == "none" and sizes[row] != sizes[0]:
            helps = "padding=True, or resize them to one size"
            raise columns.misfit(row, name, _size(sizes[row]), f"{_size(sizes[0])}, as before it", helps)
    canvas = tuple(rounded(padding, max(size[axis] for size in sizes)) for axis in (0, 1))
    batch: dict[str, Any] = {"pixel_values": fill_blocks(pictures, (pictures[0].shape[0], *canvas), 0)}
    if any(size != canvas for size in sizes):
        batch["pixel_mask"] = fill_blocks([np.ones(size, np.int64) for size in sizes], canvas, 0)
    if "mask" in columns:
        masks = [_mask(columns, "mask", row, value, sizes[row]) for row, value in enumerate(columns.take("mask"))]
        batch["masks"] = fill_blocks([mask.astype(np.int64) for mask in masks], canvas, NOTHING)
    objects = {field: columns.take(field) for field in _OBJECTS if field in columns}
    return batch | _objects(columns, objects, sizes, canvas, targets)


def _objects(
    columns: Columns, objects: dict[str, list[Any]], sizes: list[Any], canvas: tuple[int, ...], targets: Targets
) -> dict[str, Any]:
    """Objects in the measures of the canvas."""
    made: dict[str, list[Any]] = {}
    shrink = [np.array([width / canvas[1], height / canvas[0]], np.float32) for height, width in sizes]
    for field, values in objects.items():
        rows = list(enumerate(values))
        if field == "boxes":
            made[field] = [_boxes(columns, row, value) for row, value in rows]
            made[field] = [
                boxes * np.tile(by, 2) if _relative(boxes) else boxes for boxes, by in zip(made[field], shrink)
            ]
        elif field == "classes":
            made[field] = [as_array(value).astype(np.int64).reshape(-1) for value in values]
        elif field == "polygons":
            made[field] = [
                [None if outline is None else as_array(outline) * by for outline in value]
                for value, by in zip(values, shrink)
            ]
        else:
            masks = [_mask(columns, field, row, value, sizes[row]) for row, value in rows]
            made[field] = [_on_canvas(mask, canvas) for mask in masks]
    counts = {field: [len(value) for value in values] for field, values in made.items()}
    first = next(iter(counts), None)
    for field, found in counts.items():
        for row, count in enumerate(found):
            if first is not None and count != counts[first][row]:
                raise columns.misfit(row, field, f"{count} objects", f"{counts[first][row]}, as in {first!r}")
    outlines = {"polygons": made.pop("polygons")} if "polygons" in made else {}
    if targets == "lists" or not made:
        return {field: [torch.from_numpy(value) for value in values] for field, values in made.items()} | outlines
    return _filled(made, counts[next(iter(made))]) | outlines


def _filled(made: dict[str, list[Array]], counts: list[int]) -> dict[str, Tensor]:
    most = max(counts)
    batch = {
        field: fill_blocks(values, (most, *values[0].shape[1:]), NOTHING if field == "classes" else 0)
        for field, values in made.items()
    }
    return batch | {"object_mask": torch.arange(most) < torch.tensor(counts)[:, None]}


def _picture(columns: Columns, name: str, row: int, value: Any) -> Array:
    """A picture with its channels first."""
    if hasattr(value, "convert"):  # one of Pillow's
        value = np.asarray(value if value.mode in ("L", "RGB", "RGBA") else value.convert("RGB"))
    array = as_array(value)
    if array.ndim == 2:
        array = array[None] if name == "pixel_values" or isinstance(value, Tensor) else array[:, :, None]
    if array.ndim != 3 or 0 in array.shape:
        raise columns.misfit(row, name, f"shape {array.shape}", "one picture: height, width and channels")
    first = name == "pixel_values" or isinstance(value, Tensor)
    if not first and array.shape[2] not in _CHANNELS and array.shape[0] in _CHANNELS:
        first = True
    if not first:
        array = array.transpose(2, 0, 1)
    if array.dtype == np.uint8 and name == "image":
        return array.astype(np.float32) / np.float32(255)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _boxes(columns: Columns, row: int, value: Any) -> Array:
    array = as_array(value).astype(np.float32)
    if array.size == 0:
        return array.reshape(0, 4)
    if array.ndim != 2 or array.shape[1] != 4:
        raise columns.misfit(row, "boxes", f"shape {array.shape}", "(objects, 4)")
    return array


def _relative(boxes: Array) -> bool:
    """Whether boxes are shares of their picture, as everywhere in fewbit; a user's own may be in pixels."""
    return not len(boxes) or float(np.abs(boxes).max()) <= 1.001


def _mask(columns: Columns, name: str, row: int, value: Any, size: tuple[int, int]) -> Array:
    array = as_array(np.asarray(value) if hasattr(value, "convert") else value)
    if array.ndim not in (2, 3) or (array.shape[-2:] != tuple(size) and len(array)):
        raise columns.misfit(row, name, f"shape {array.shape}", f"the size of its picture, {_size(size)}")
    return array


def _on_canvas(mask: Array, canvas: tuple[int, ...]) -> Array:
    """Masks of objects (objects, height, width) filled up at the right and below."""
    if mask.ndim == 2:
        mask = mask[None]
    made = np.zeros((len(mask), *canvas), mask.dtype)
    made[:, : mask.shape[1], : mask.shape[2]] = mask
    return made


def _size(size: Any) -> str:
    return f"{size[1]} x {size[0]} pixels"
