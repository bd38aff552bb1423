# SPDX-License-Identifier: Apache-2.0
"""Equations a = b, a = -b and a = 0 between many unknowns, solved at once.

Each unknown x has two vertices, +x and -x; an equation joins vertices, and unknowns of one connected component have the
same absolute value. Where +x and -x are connected, x is zero.
"""

from __future__ import annotations

import numpy as np

Equation = tuple[np.ndarray, np.ndarray, int]
"""left = sign * right, elementwise; 0 is the unknown that is zero."""


def solve(count: int, equations: list[Equation]) -> tuple[np.ndarray, np.ndarray]:
    """Which unknowns are free, and how they hang together.

    Args:
        count: of the unknowns 0 … count - 1, of which 0 is zero.
        equations: arrays of unknowns, of equal length.

    Returns:
        For each unknown the number of its group, -1 if it is zero, and its sign relative to the group. A group is
        numbered by the first of its unknowns.

    >>> groups, signs = solve(5, [(np.array([1]), np.array([2]), -1), (np.array([3]), np.array([0]), 1)])
    >>> groups.tolist(), signs.tolist()
    ([-1, 1, 1, -1, 4], [1, 1, -1, 1, 1])
    """
    left, right = [np.zeros(1, np.int64)], [np.full(1, count, np.int64)]  # +0 and -0 are the same
    for one, other, sign in equations:
        shift = 0 if sign > 0 else count
        left += [one, one + count]
        right += [other + shift, (other + count + shift) % (2 * count)]
    roots = connected_components(2 * count, np.concatenate(left), np.concatenate(right))
    plus, minus = roots[:count], roots[count:]
    # The smallest vertex of a component is its root, so a group's first unknown has the sign +.
    groups = np.where(plus == minus, -1, np.minimum(plus, minus))
    signs = np.where((plus != minus) & (minus < plus), -1, 1)
    return groups, signs


def connected_components(count: int, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The smallest vertex that each vertex is connected with.

    >>> connected_components(4, np.array([3, 2]), np.array([1, 3])).tolist()
    [0, 1, 1, 1]
    """
    roots = np.arange(count)
    while len(left):
        one, other = roots[left], roots[right]
        apart = one != other
        if not apart.any():
            break
        left, right, one, other = left[apart], right[apart], one[apart], other[apart]
        np.minimum.at(roots, np.maximum(one, other), np.minimum(one, other))
        while (roots != (further := roots[roots])).any():
            roots = further
    return roots
