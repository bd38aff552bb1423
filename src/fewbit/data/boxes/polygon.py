# SPDX-License-Identifier: Apache-2.0
"""Geometry of one polygon in normalised coordinates: points `(k, 2)` in float64, closed by itself.

A polygon means the region its outline encloses by the even-odd rule, so crossings are legal, only suspicious.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]

_PAIRS, _PAIRS_A_POINT = 1 << 16, 128  # comparisons of edges: bounds the work for a hostile outline
_NOISE = 1e-12


def _next(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each entry the one after it, for the last the first; `np.roll` takes ten times as long for a few points."""
    return np.concatenate((values[1:], values[:1]))


def tidy(points: Points) -> Points:
    """The outline without points that repeat the one before them; a closing point equal to the first goes too.

    >>> tidy(np.array([[0, 0], [1, 0], [1, 0], [1, 1], [0, 0]], float)).tolist()
    [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]
    """
    if len(points) < 2:
        return points
    return points[np.any(points != _next(points), axis=1)]


def area(points: Points) -> float:
    """The enclosed area by the shoelace formula; parts that turn the other way count against the rest.

    >>> area(np.array([[0, 0], [1, 0], [1, 1]], float))
    0.5
    """
    if len(points) < 3:
        return 0.0
    x, y = (points - points[0]).T  # relative to a corner, so that a small outline keeps its digits
    return float(abs(np.dot(x, _next(y)) - np.dot(y, _next(x)))) / 2


def bounds(points: Points) -> tuple[float, float, float, float]:
    """The box round the outline: left, top, right, bottom."""
    (left, top), (right, bottom) = points.min(axis=0), points.max(axis=0)
    return float(left), float(top), float(right), float(bottom)


def clip(points: Points) -> Points:
    """The part of the polygon inside the unit square (Sutherland and Hodgman); empty when nothing is.

    The enclosed region inside the square stays the same. An outline that leaves and comes back gains points
    along the border.

    >>> clip(np.array([[0.5, 0.5], [1.5, 0.5], [0.5, 1.0]])).tolist()
    [[0.5, 0.5], [1.0, 0.5], [1.0, 0.75], [0.5, 1.0]]
    """
    for axis in (0, 1):
        for bound, sign in ((0.0, 1.0), (1.0, -1.0)):
            if len(points):
                points = _cut(points, axis, bound, sign)
    return tidy(points)


def _cut(points: Points, axis: int, bound: float, sign: float) -> Points:
    depth = sign * (points[:, axis] - bound)  # (k,), not negative on the side that stays
    after, depth_after = _next(points), _next(depth)
    inside = depth >= 0
    crossing = inside != (depth_after >= 0)
    share = np.zeros(len(points))
    share[crossing] = depth[crossing] / (depth - depth_after)[crossing]
    meet = points + share[:, None] * (after - points)
    meet[:, axis] = bound
    corners = np.stack([points, meet], axis=1)  # (k, 2, 2): each point, then where its edge meets the bound
    kept: Points = corners[np.stack([inside, crossing], axis=1)]
    return kept


def crosses(points: Points) -> bool | None:
    """Whether two edges of the outline cross; touching and retracing do not count. `None`: too tangled to tell.

    Cost: `k log k` and one test for each two edges that overlap in x, which are few in an ordinary outline.

    >>> crosses(np.array([[0, 0], [1, 1], [1, 0], [0, 1]], float))
    True
    """
    if len(points) < 4:
        return False
    ends = np.stack([points, _next(points)], axis=1)  # (k, 2 ends, 2)
    ends = ends[np.argsort(ends[:, :, 0].min(axis=1), kind="stable")]
    low, high = ends[:, :, 0].min(axis=1), ends[:, :, 0].max(axis=1)
    partners = np.searchsorted(low, high, side="right") - np.arange(len(ends)) - 1
    if partners.sum() > _PAIRS + _PAIRS_A_POINT * len(points):
        return None
    first = np.repeat(np.arange(len(ends)), partners)
    starts = np.repeat(np.cumsum(partners) - partners, partners)
    second = first + 1 + np.arange(len(first)) - starts
    return bool(np.any(_apart(ends[first], ends[second]) & _apart(ends[second], ends[first])))


def _apart(line: NDArray[np.float64], edge: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether the ends of each edge lie strictly on different sides of the line through the other."""
    start, way = line[:, 0], line[:, 1] - line[:, 0]
    near, far = edge[:, 0] - start, edge[:, 1] - start
    one = way[:, 0] * near[:, 1] - way[:, 1] * near[:, 0]
    other = way[:, 0] * far[:, 1] - way[:, 1] * far[:, 0]
    # A shared corner gives a side of rounding noise; below it, the edges touch and do not cross.
    apart: NDArray[np.bool_] = (np.sign(one) != np.sign(other)) & (np.abs(one) > _NOISE) & (np.abs(other) > _NOISE)
    return apart
