# SPDX-License-Identifier: Apache-2.0
"""Moving a picture, and all that is marked in it, by one and the same affine map.

A map is a 3 x 3 matrix on pixel coordinates, in which pixel (0, 0) is the square from (0, 0) to (1, 1). However many
moves there are, pixels are resampled once, and masks and points go through exactly the map that the pixels do.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Array = NDArray[Any]
Size = tuple[int, int]
"""Height and width."""


def mirror(size: Size, *, upside_down: bool = False) -> Matrix:
    """Left becomes right, or top becomes bottom."""
    height, width = size
    if upside_down:
        return np.array([[1.0, 0, 0], [0, -1, height], [0, 0, 1]])
    return np.array([[-1.0, 0, width], [0, 1, 0], [0, 0, 1]])


def enlarge(size: Size, left: int, top: int, width: int, height: int) -> Matrix:
    """A window of the picture, as large as the picture was."""
    across, down = size[1] / width, size[0] / height
    return np.array([[across, 0, -left * across], [0, down, -top * down], [0, 0, 1]])


def turn(size: Size, degrees: float) -> Matrix:
    """A turn round the middle, against the clock as one sees it."""
    height, width = size
    angle = math.radians(degrees)
    cos, sin = math.cos(angle), math.sin(angle)
    x, y = width / 2, height / 2
    return np.array([[cos, sin, x - cos * x - sin * y], [-sin, cos, y + sin * x - cos * y], [0, 0, 1]])


def move_pixels(pixels: Array, matrix: Matrix, fill: int) -> Array:
    """A picture `(H, W)` or `(H, W, channels)` of uint8, between pixels linearly; what comes from outside is `fill`."""
    from PIL import Image

    height, width = pixels.shape[:2]
    if np.array_equal(matrix, np.eye(3)):
        return pixels
    back = tuple(np.linalg.inv(matrix)[:2].reshape(-1).tolist())
    layers = pixels.reshape(height, width, -1)
    moved = [
        np.asarray(
            Image.fromarray(np.ascontiguousarray(layers[:, :, layer])).transform(
                (width, height), Image.Transform.AFFINE, back, Image.Resampling.BILINEAR, fillcolor=fill
            )
        )
        for layer in range(layers.shape[2])
    ]
    return np.stack(moved, axis=2).reshape(pixels.shape)


def move_mask(mask: Array, matrix: Matrix, fill: int | bool) -> Array:
    """A mask `(…, H, W)`: every pixel is the one its centre came from; no value appears that was not there.

    >>> move_mask(np.array([[1, 2, 3]]), mirror((1, 3)), 0).tolist()
    [[3, 2, 1]]
    """
    height, width = mask.shape[-2:]
    y, x = np.mgrid[:height, :width] + 0.5
    back = np.linalg.inv(matrix)
    # The centre of a pixel must not fall short of an edge by a rounding error: 1e-9 of a pixel settles it.
    column = np.floor(back[0, 0] * x + back[0, 1] * y + back[0, 2] + 1e-9).astype(np.int64)
    row = np.floor(back[1, 0] * x + back[1, 1] * y + back[1, 2] + 1e-9).astype(np.int64)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    moved = mask[..., np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)]
    return np.where(inside, moved, np.asarray(fill).astype(mask.dtype))


def move_points(points: Array, matrix: Matrix) -> Array:
    """Points `(…, 2)` of x and y in pixels."""
    moved: Array = np.asarray(points, np.float64) @ matrix[:2, :2].T + matrix[:2, 2]
    return moved


def move_boxes(boxes: Array, matrix: Matrix) -> Array:
    """Boxes `(n, 4)` of left, top, right and bottom in pixels: the boxes round their moved corners."""
    left, top, right, bottom = np.asarray(boxes, np.float64).reshape(-1, 4).T
    corners = np.stack([[left, top], [right, top], [right, bottom], [left, bottom]]).transpose(2, 0, 1)
    moved = move_points(corners, matrix)
    return np.concatenate([moved.min(axis=1), moved.max(axis=1)], axis=1)


def keeps_axes(matrix: Matrix) -> bool:
    """Whether what was upright still is: a mirror or a window, and no turn."""
    return bool(matrix[0, 1] == 0 and matrix[1, 0] == 0)
