# SPDX-License-Identifier: Apache-2.0
"""Geometry of boxes, polygons and masks; coordinates are relative to the image, 0 to 1.

Box       (centre x, centre y, width, height)
Edges     (left, top, right, bottom)
Points    [k, 2], the corners of a polygon, closed implicitly; inside is what the even-odd rule says
Mask      [height, width], True inside; a pixel is inside if its centre is
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Box = tuple[float, float, float, float]
Edges = tuple[float, float, float, float]
Points = NDArray[np.float64]
Mask = NDArray[np.bool_]

ROUNDING = 1e-6
"""Labels have six decimals: a border that is missed by this much is not missed."""
SLIGHT = 1e-3
"""Annotation tools miss the border by up to this much."""
MOST_POINTS = 1 << 16
MOST_CROSSINGS = 1 << 23
"""Crossings of outlines and pixel rows per image; 2**23 take about two seconds and 550 MB."""
MOST_MASK_BYTES = 1 << 31
_NO_AREA = _NOISE = 1e-12
_MOST_PAIRS, _MOST_PAIRS_PER_POINT = 1 << 16, 128


def box_edges(box: Box) -> Edges:
    """Left, top, right and bottom of a box.

    >>> box_edges((0.5, 0.25, 0.5, 0.5))
    (0.25, 0.0, 0.75, 0.5)
    """
    x, y, width, height = box
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def box_from_edges(left: float, top: float, right: float, bottom: float) -> Box:
    """The inverse of `box_edges`."""
    return (left + right) / 2, (top + bottom) / 2, right - left, bottom - top


def box_outline(box: Box) -> Points:
    """The corners of a box as a polygon."""
    left, top, right, bottom = box_edges(box)
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]])


def polygon_edges(points: Points) -> Edges:
    """The bounding box of a polygon."""
    (left, top), (right, bottom) = points.min(axis=0).tolist(), points.max(axis=0).tolist()
    return left, top, right, bottom


def overshoot(edges: Edges) -> float:
    """How far edges reach beyond the image; negative if they stay inside."""
    return max(-edges[0], -edges[1], edges[2] - 1, edges[3] - 1)


def clip_box(box: Box) -> Box | None:
    """The part of a box on the image, or `None` if there is none.

    >>> clip_box((1.0, 0.5, 0.5, 1.0)), clip_box((2.0, 0.5, 0.5, 1.0))
    ((0.875, 0.5, 0.25, 1.0), None)
    """
    left, top, right, bottom = (min(max(edge, 0.0), 1.0) for edge in box_edges(box))
    return box_from_edges(left, top, right, bottom) if min(right - left, bottom - top) > ROUNDING else None


def clip_polygon(points: Points) -> Points:
    """The part of a polygon on the image (Sutherland-Hodgman); no corners if there is none.

    >>> clip_polygon(np.array([[0.5, 0.5], [1.5, 0.5], [0.5, 1.0]])).tolist()
    [[0.5, 0.5], [1.0, 0.5], [1.0, 0.75], [0.5, 1.0]]
    """
    for axis, border, inward in ((0, 0.0, 1.0), (0, 1.0, -1.0), (1, 0.0, 1.0), (1, 1.0, -1.0)):
        depth = inward * (points[:, axis] - border)  # [k], negative beyond the border
        next_depth, inside = _successors(depth), depth >= 0
        crossing = inside != (next_depth >= 0)
        share = np.divide(depth, depth - next_depth, out=np.zeros(len(points)), where=crossing)
        meeting = points + share[:, None] * (_successors(points) - points)
        meeting[:, axis] = border
        corners = np.stack([points, meeting], axis=1)  # [k, 2, 2]: a corner, then where its edge meets the border
        points = corners[np.stack([inside, crossing], axis=1)]
    return without_repeats(points)


def without_repeats(points: Points) -> Points:
    """A polygon without corners equal to the next one; so a closing corner equal to the first goes, too.

    >>> without_repeats(np.array([[0, 0], [1, 0], [1, 0], [1, 1], [0, 0]], float)).tolist()
    [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]
    """
    return points[np.any(points != _successors(points), axis=1)] if len(points) > 1 else points


def has_area(points: Points) -> bool:
    """Whether a polygon encloses anything.

    The shoelace formula gives zero for a symmetric figure eight, whose halves turn opposite ways; but it crosses
    itself.
    """
    if len(points) < 3:
        return False
    x, y = (points - points[0]).T  # relative to a corner, so that small polygons keep their digits
    area = abs(float(np.dot(x, _successors(y)) - np.dot(y, _successors(x)))) / 2
    return area > _NO_AREA or (len(points) > 3 and crosses_itself(points) is not False)


def polygon_area(points: Points) -> float:
    """The area inside an outline that does not cross itself.

    >>> polygon_area(np.array([[0.0, 0], [4, 0], [4, 3]]))
    6.0
    """
    x, y = points.T
    return abs(float(np.dot(x, _successors(y)) - np.dot(y, _successors(x)))) / 2


def crosses_itself(points: Points) -> bool | None:
    """Whether two edges cross; touching and retracing is no crossing. `None` if too many edges overlap to compare.

    Only edges that overlap in x are compared: a few per edge in ordinary outlines, bounded in hostile ones.

    >>> crosses_itself(np.array([[0, 0], [1, 1], [1, 0], [0, 1]], float))
    True
    """
    edges = np.stack([points, _successors(points)], axis=1)  # [k, start and end, x and y]
    edges = edges[np.argsort(edges[:, :, 0].min(axis=1), kind="stable")]
    starts, ends = edges[:, :, 0].min(axis=1), edges[:, :, 0].max(axis=1)
    overlaps = np.searchsorted(starts, ends, side="right") - np.arange(len(edges)) - 1
    if overlaps.sum() > _MOST_PAIRS + _MOST_PAIRS_PER_POINT * len(points):
        return None
    first = np.repeat(np.arange(len(edges)), overlaps)
    second = first + 1 + _counting(overlaps)
    return bool(np.any(_separated(edges[first], edges[second]) & _separated(edges[second], edges[first])))


def _separated(lines: Points, edges: Points) -> Mask:
    """Whether the line through one edge has the ends of the other strictly on both sides."""
    direction = lines[:, 1] - lines[:, 0]
    offset = edges - lines[:, :1]  # [pairs, start and end, x and y]
    side = direction[:, :1] * offset[:, :, 1] - direction[:, 1:] * offset[:, :, 0]
    # A common corner gives rounding noise instead of zero.
    return np.asarray((side[:, 0] * side[:, 1] < 0) & (np.abs(side).min(axis=1) > _NOISE))


def _successors(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each entry the next one, cyclically; `np.roll` takes ten times as long for a few corners."""
    return np.concatenate((values[1:], values[:1]))


def _counting(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, … up to each length, one after the other: [2, 3] gives [0, 1, 0, 1, 2]."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def rasterize(points: Points, height: int, width: int) -> Mask:
    """The mask of a polygon by the even-odd rule.

    A pixel centre exactly on the outline belongs to the polygon on its right and below it: neighbours share no pixel
    and leave none out.

    >>> rasterize(np.array([[0, 0], [1, 0], [0, 1]]), 3, 3).astype(int).tolist()
    [[1, 1, 0], [1, 0, 0], [0, 0, 0]]
    """
    corners = np.asarray(points, np.float64) * (width, height)
    next_corners = _successors(corners)
    # Every edge is computed from its upper end: both polygons it belongs to then round alike.
    down = (next_corners[:, 1] >= corners[:, 1])[:, None]
    upper, lower = np.where(down, corners, next_corners), np.where(down, next_corners, corners)
    first, end = (np.ceil(np.clip(ends[:, 1] - 0.5, 0, height)).astype(np.int64) for ends in (upper, lower))
    edge = np.repeat(np.arange(len(corners)), end - first)
    row = first[edge] + _counting(end - first)
    slope = (lower - upper)[edge]
    x = upper[edge, 0] + (row + 0.5 - upper[edge, 1]) * slope[:, 0] / slope[:, 1]
    column = np.ceil(np.clip(x - 0.5, 0, width)).astype(np.int64)  # the first pixel right of the edge
    pixels, times = np.unique((row * width + column)[column < width], return_counts=True)
    mask = np.zeros((height, width), np.bool_)
    mask.reshape(-1)[pixels[times % 2 == 1]] = True
    if len(row):  # every crossing toggles all pixels on its right
        band = mask[row.min() : row.max() + 1]
        np.logical_xor.accumulate(band, axis=1, out=band)
    return mask


def crossing_count(points: Points, height: int) -> float:
    """About how many crossings `rasterize` computes: what bounds its time and memory."""
    y = np.clip(points[:, 1], 0, 1) * height
    return float(np.abs(_successors(y) - y).sum())


def rle_runs(counts: str | Sequence[int], height: int, width: int) -> NDArray[np.int64]:
    """COCO's run-length encoding, compressed or not: runs of outside, inside, outside, … down the columns.

    Raises:
        ValueError: the runs do not fill the mask.

    >>> rle_runs("123", 2, 3).tolist(), rle_runs([1, 2, 3], 2, 3).tolist()
    ([1, 2, 3], [1, 2, 3])
    """
    pixels = height * width
    unfit = ValueError(f"the runs do not fill {width} x {height} pixels")
    if pixels > MOST_MASK_BYTES or len(counts) > 8 * pixels + 8:
        raise unfit
    runs = np.asarray(_decompress(counts) if isinstance(counts, str) else counts)
    if runs.ndim != 1 or runs.dtype.kind not in "iu" or (runs < 0).any():
        raise ValueError("runs are integers from 0")
    if runs.max(initial=0) > pixels or runs.sum() != pixels:
        raise unfit
    return runs


def rle_mask(runs: NDArray[np.int64], height: int, width: int) -> Mask:
    """The mask of runs that fill it.

    >>> rle_mask(np.array([1, 2, 3]), 2, 3).astype(int).tolist()
    [[0, 1, 0], [1, 0, 0]]
    """
    return np.ascontiguousarray(np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height).T)


def _decompress(text: str) -> list[int]:
    """The runs of COCO's compressed RLE: little-endian groups of 5 bits, from the third run on as differences."""
    counts: list[int] = []
    value = shift = 0
    for byte in text.encode("ascii"):
        group = byte - 48
        if not 0 <= group < 64 or shift > 30:
            raise ValueError("not a compressed RLE")
        value |= (group & 31) << shift
        shift += 5
        if group & 32:  # more groups follow
            continue
        if group & 16:  # the sign
            value -= 1 << shift
        counts.append(value + counts[-2] if len(counts) > 2 else value)
        value = shift = 0
    if shift:
        raise ValueError("the compressed RLE ends early")
    return counts
