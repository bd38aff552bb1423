# SPDX-License-Identifier: Apache-2.0
"""A polygon as a mask: a pixel belongs to it when its centre is inside by the even-odd rule.

For every row of pixels each edge that passes the row's centre line switches all pixels to its right; what is
switched an odd number of times is inside. A centre exactly on the outline belongs to the left and the upper
side and not to the right and the lower one, so that neighbours share no pixel and a corner counts once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]

_CHUNK = 1 << 20  # crossings held at once


def rasterise(points: NDArray[np.floating], height: int, width: int) -> Mask:
    """The mask of one polygon.

    Args:
        points: the outline `(k, 2)`, normalised x and y.
        height: of the image, in pixels.
        width: of the image, in pixels.

    Returns:
        `(height, width)`, True inside.

    >>> rasterise(np.array([[0, 0], [1, 0], [0, 1]]), 3, 3).astype(int).tolist()
    [[1, 1, 0], [1, 0, 0], [0, 0, 0]]
    """
    switch = np.zeros((height, width), np.bool_)
    flat = switch.reshape(-1)
    for rows, columns in _crossings(np.asarray(points, np.float64) * (width, height), height, width):
        on = columns < width
        places, times = np.unique(rows[on] * width + columns[on], return_counts=True)
        flat[places[times % 2 == 1]] ^= True
    touched = np.flatnonzero(switch.any(axis=1))
    if len(touched):
        band = switch[touched[0] : touched[-1] + 1]
        np.logical_xor.accumulate(band, axis=1, out=band)
    return switch


def crossing_count(points: NDArray[np.floating], height: int) -> int:
    """How many crossings of edges and pixel rows `rasterise` would have to work out."""
    first, last = _spans(np.asarray(points, np.float64)[:, 1] * height, height)
    return int((last - first).sum())


def _spans(y: NDArray[np.float64], height: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each edge the first row whose centre it passes and the row after the last."""
    after = np.roll(y, -1)
    low, high = np.minimum(y, after), np.maximum(y, after)
    first = np.ceil(np.clip(low - 0.5, 0, height)).astype(np.int64)
    last = np.ceil(np.clip(high - 0.5, 0, height)).astype(np.int64)
    return first, last


def _crossings(
    points: NDArray[np.float64], height: int, width: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The (row, first pixel at or right of it) of every crossing, some edges at a time."""
    first, last = _spans(points[:, 1], height)
    after = np.roll(points, -1, axis=0)
    falls = (after[:, 1] < points[:, 1])[:, None]
    # From the upper end down, whichever way the outline runs: both owners of an edge then meet it at the same number.
    (x, y), (run, rise) = np.where(falls, after, points).T, (np.where(falls, points - after, after - points)).T
    counts = last - first
    edges = np.flatnonzero(counts)
    groups = np.cumsum(counts[edges]) // _CHUNK
    for group in np.unique(groups):
        here = edges[groups == group]
        edge = np.repeat(here, counts[here])
        starts = np.repeat(np.cumsum(counts[here]) - counts[here], counts[here])
        rows = first[edge] + np.arange(len(edge)) - starts
        meet = x[edge] + (rows + 0.5 - y[edge]) * run[edge] / rise[edge]
        columns = np.ceil(np.clip(meet - 0.5, 0, width)).astype(np.int64)
        yield rows, columns
