# SPDX-License-Identifier: Apache-2.0
"""Images of a batch on one canvas, with boxes, masks and classes in the measures of that canvas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fewbit.data.loading.batching import BatchColumns, as_array, fill_blocks
from fewbit.data.text.roles import IGNORED

if TYPE_CHECKING:
    from fewbit.data.loading.collate import Padding

_OBJECTS = ("boxes", "classes", "masks", "polygons")
Size = tuple[int, int]


def images(columns: BatchColumns, padding: Padding, targets: str) -> dict[str, Any]:
    """`pixel_values` [batch, channels, height, width], and what is marked in the images.

    Args:
        columns: with `pixel_values` (channels first) or `image` (uint8, channels last, divided by 255).
        padding: whether images of different sizes may share a batch.
        targets: objects as `lists` of tensors, or `padded` with an `object_mask`.

    Returns:
        `pixel_values`; `pixel_mask` if an image is smaller than the canvas; `masks`, `boxes`, `classes`.
    """
    import torch

    name = "pixel_values" if "pixel_values" in columns else "image"
    arrays = [_channels_first(columns, name, number, value) for number, value in enumerate(columns.take(name))]
    sizes: list[Size] = [(array.shape[1], array.shape[2]) for array in arrays]
    for number, array in enumerate(arrays):
        if array.shape[0] != arrays[0].shape[0]:
            raise columns.mismatch(number, name, f"of {array.shape[0]} channels", f"{arrays[0].shape[0]} channels")
        if padding.to == "none" and sizes[number] != sizes[0]:
            hint = "padding=True, or the step 'rescaling' with image_size"
            raise columns.mismatch(number, name, f"of size {list(sizes[number])}", f"{list(sizes[0])}", hint)
    canvas = padding.rounded(max(size[0] for size in sizes)), padding.rounded(max(size[1] for size in sizes))
    batch: dict[str, Any] = {"pixel_values": fill_blocks(arrays, (arrays[0].shape[0], *canvas), 0)}
    if any(size != canvas for size in sizes):
        batch["pixel_mask"] = fill_blocks([np.ones(size, np.int64) for size in sizes], canvas, 0)
    if "mask" in columns:
        masks = [
            _checked_mask(columns, "mask", number, value, sizes) for number, value in enumerate(columns.take("mask"))
        ]
        batch["masks"] = fill_blocks([mask.astype(np.int64) for mask in masks], canvas, IGNORED)
    batch = {key: torch.from_numpy(array) for key, array in batch.items()}
    return batch | _objects(columns, sizes, canvas, targets)


def _objects(columns: BatchColumns, sizes: list[Size], canvas: Size, targets: str) -> dict[str, Any]:
    """Boxes, classes, masks and polygons of the objects in each image."""
    import torch

    scales = [np.array([width / canvas[1], height / canvas[0]], np.float32) for height, width in sizes]
    objects: dict[str, list[Any]] = {}
    for name in [name for name in _OBJECTS if name in columns]:
        values = columns.take(name)
        if name == "boxes":
            boxes = [_checked_boxes(columns, number, value) for number, value in enumerate(values)]
            # Relative boxes shrink when the canvas is larger than their image; a user's own may be in pixels.
            objects[name] = [box * np.tile(scale, 2) if _relative(box) else box for box, scale in zip(boxes, scales)]
        elif name == "classes":
            objects[name] = [as_array(value).astype(np.int64).reshape(-1) for value in values]
        elif name == "polygons":
            objects[name] = [
                [None if polygon is None else as_array(polygon) * scale for polygon in value]
                for value, scale in zip(values, scales)
            ]
        else:
            masks = [_checked_mask(columns, name, number, value, sizes) for number, value in enumerate(values)]
            objects[name] = [_on_canvas(mask, canvas) for mask in masks]
    for name, values in objects.items():
        for number, value in enumerate(values):
            count = len(next(iter(objects.values()))[number])
            if len(value) != count:
                raise columns.mismatch(number, name, f"of {len(value)} objects", f"{count} objects")
    polygons = {"polygons": objects.pop("polygons")} if "polygons" in objects else {}
    if targets == "lists" or not objects:
        return {name: [torch.from_numpy(value) for value in values] for name, values in objects.items()} | polygons
    counts = [len(value) for value in next(iter(objects.values()))]
    most = max(counts)
    padded = {
        name: torch.from_numpy(fill_blocks(values, (most, *values[0].shape[1:]), IGNORED if name == "classes" else 0))
        for name, values in objects.items()
    }
    return padded | polygons | {"object_mask": torch.arange(most) < torch.tensor(counts)[:, None]}


def _channels_first(columns: BatchColumns, name: str, number: int, value: Any) -> np.ndarray:
    array = as_array(value)
    first = name == "pixel_values" or hasattr(value, "detach")
    if array.ndim == 2:
        array = array[None] if first else array[:, :, None]
    if array.ndim != 3 or 0 in array.shape:
        raise columns.mismatch(number, name, f"of shape {list(array.shape)}", "height, width and channels of one image")
    if not first:
        array = array.transpose(2, 0, 1)
    if array.dtype == np.uint8 and name == "image":
        return array.astype(np.float32) / np.float32(255)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _checked_boxes(columns: BatchColumns, number: int, value: Any) -> np.ndarray:
    array = as_array(value).astype(np.float32)
    if array.size == 0:
        return array.reshape(0, 4)
    if array.ndim != 2 or array.shape[1] != 4:
        raise columns.mismatch(number, "boxes", f"of shape {list(array.shape)}", "[objects, 4]")
    return array


def _checked_mask(columns: BatchColumns, name: str, number: int, value: Any, sizes: list[Size]) -> np.ndarray:
    array = as_array(value)
    if array.ndim not in (2, 3) or (array.shape[-2:] != sizes[number] and len(array)):
        raise columns.mismatch(
            number, name, f"of shape {list(array.shape)}", f"the size of its image, {list(sizes[number])}"
        )
    return array


def _relative(boxes: np.ndarray) -> bool:
    return not len(boxes) or float(np.abs(boxes).max()) <= 1.001


def _on_canvas(mask: np.ndarray, canvas: Size) -> np.ndarray:
    mask = mask[None] if mask.ndim == 2 else mask
    filled = np.zeros((len(mask), *canvas), mask.dtype)
    filled[:, : mask.shape[1], : mask.shape[2]] = mask
    return filled
