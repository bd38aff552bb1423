# SPDX-License-Identifier: Apache-2.0
"""So many zeros in all, shared out among layers so that they do the least harm.

What zeros do to a layer is a curve over their number. Below a curve lies its convex hull: pieces whose slope, the harm
of one more zero, grows. Filling the flattest pieces of all layers first is then the best there is, to the last zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

CAP = 0.95
"""The share of zeros that no layer is above, unless all are asked to be: one that answers nothing ends a model."""


@dataclass(frozen=True)
class Curve:
    """What zeros do to one layer.

    Args:
        zeros: ascending numbers of zeros, the first is the least and the last the most that it may have.
        harm: of each; between them it is taken to be straight.
    """

    zeros: tuple[int, ...]
    harm: tuple[float, ...]

    def hull(self) -> Curve:
        """The largest convex curve that lies nowhere above.

        >>> Curve((0, 1, 2), (0.0, 5.0, 6.0)).hull()
        Curve(zeros=(0, 2), harm=(0.0, 6.0))
        """
        found: list[tuple[int, float]] = []
        for x, y in zip(self.zeros, self.harm):
            while len(found) > 1 and _is_above(found[-2], found[-1], (x, y)):
                found.pop()
            found.append((x, y))
        return Curve(tuple(x for x, _ in found), tuple(y for _, y in found))

    def at(self, zeros: int) -> float:
        """The harm of some number of zeros."""
        points = list(zip(self.zeros, self.harm))
        for (x, y), (right, top) in pairwise(points):
            if zeros <= right:
                return y + (top - y) * (zeros - x) / (right - x)
        return self.harm[-1]


def split(curves: Sequence[Curve], zeros: int) -> list[int]:
    """How many zeros each layer gets, so that all together do the least harm.

    Args:
        curves: of the layers; their hulls count.
        zeros: in all; where the layers can have no more or no fewer, it is the nearest they can.

    Returns:
        The numbers; of pieces that do the same harm those of layers that come first are filled first.

    >>> split([Curve((0, 10), (0.0, 10.0)), Curve((0, 10), (0.0, 1.0))], 12)
    [2, 10]
    """
    hulls = [curve.hull() for curve in curves]
    found = [hull.zeros[0] for hull in hulls]
    left = zeros - sum(found)
    pieces = []
    for layer, hull in enumerate(hulls):
        points = list(zip(hull.zeros, hull.harm))
        for (x, y), (right, top) in pairwise(points):
            pieces.append(((top - y) / (right - x), layer, right - x))
    for _, layer, size in sorted(pieces):
        taken = max(0, min(size, left))
        found[layer] += taken
        left -= taken
    return found


def _is_above(left: tuple[int, float], middle: tuple[int, float], right: tuple[int, float]) -> bool:
    """Whether a point lies on or above the line between its neighbours."""
    (x0, y0), (x1, y1), (x2, y2) = left, middle, right
    return (y1 - y0) * (x2 - x0) >= (y2 - y0) * (x1 - x0)
