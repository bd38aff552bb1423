# SPDX-License-Identifier: Apache-2.0
"""Where the channels lie after a Reshape, even where some sides are not known.

A mark is an array that says which channel lies at each place of a value: as many axes as the value has, of length 1
along those where the channel does not change. `[[[[0]], [[1]], [[2]]]]`: three channels of pictures of any size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fewbit.backends.graph.shapes import Side

Mark = NDArray[np.int64]
_Group = tuple[list[Side], list[Side]]


def shortened(mark: Mark) -> Mark:
    """A mark with every axis along which it does not change cut to length 1."""
    for axis, side in enumerate(mark.shape):
        if side > 1:
            first = mark.take([0], axis)
            mark = first if np.array_equal(np.broadcast_to(first, mark.shape), mark) else mark
    return mark


def reshaped(mark: Mark, before: Sequence[Side], target: Sequence[int | None]) -> Mark | None:
    """The mark of a reshaped value; none where it cannot be known.

    Args:
        mark: of the value before.
        before: the value's sides.
        target: what Reshape is told: 0 for a side that stays, -1 or none for one that is not said.

    >>> reshaped(np.arange(6).reshape(1, 1, 6), ["batch", None, 6], [0, -1, 2, 3]).shape
    (1, 1, 2, 3)
    """
    told = [side if length == 1 else length for length, side in zip(mark.shape, before)]
    old: list[Side] = [f"#{axis}" if side is None else side for axis, side in enumerate(told)]
    if any(side == 0 and axis >= len(old) for axis, side in enumerate(target)):
        return None
    new = [old[axis] if side == 0 else None if side == -1 else side for axis, side in enumerate(target)]
    shape: list[int] = []
    wide: list[int] = []
    axis = 0
    for left, right in _groups(old, new):
        here = mark.shape[axis : axis + len(left)]
        axis += len(left)
        if all(side == 1 for side in here):
            wide += here
            shape += [1] * len(right)
            continue
        filled = _filled(left, right)
        if filled is None or any(side not in (1, real) for side, real in zip(here, filled[0])):
            return None
        wide += filled[0]
        shape += filled[1]
    return shortened(np.broadcast_to(mark, wide).reshape(shape))


def _groups(old: list[Side], new: list[Side]) -> list[_Group]:
    """Axes before and after that hold the same places: matched from the right, then from the left; the rest is one."""
    right = _matched(old[::-1], new[::-1])
    done_old, done_new = (sum(len(group[side]) for group in right) for side in (0, 1))
    old, new = old[: len(old) - done_old], new[: len(new) - done_new]
    left = _matched(old, new)
    done_old, done_new = (sum(len(group[side]) for group in left) for side in (0, 1))
    rest = [(old[done_old:], new[done_new:])]
    return [*left, *rest, *((a[::-1], b[::-1]) for a, b in reversed(right))]


def _matched(old: list[Side], new: list[Side]) -> list[_Group]:
    """The shortest groups of equal size, from the start, until an unknown side stands in the way."""
    groups: list[_Group] = []
    i = j = 0
    while i < len(old) and j < len(new):
        ends = (i + 1, j + 1) if old[i] is not None and old[i] == new[j] else _equal_products(old, new, i, j)
        if ends is None:
            break
        groups.append((old[i : ends[0]], new[j : ends[1]]))
        i, j = ends
    return groups


def _equal_products(old: list[Side], new: list[Side], i: int, j: int) -> tuple[int, int] | None:
    a, b = old[i], new[j]
    i, j = i + 1, j + 1
    while isinstance(a, int) and isinstance(b, int) and a != b:
        side = (old[i] if i < len(old) else None) if a < b else (new[j] if j < len(new) else None)
        if not isinstance(side, int):
            return None
        a, b, i, j = (a * side, b, i + 1, j) if a < b else (a, b * side, i, j + 1)
    return (i, j) if isinstance(a, int) and isinstance(b, int) else None


def _filled(left: list[Side], right: list[Side]) -> tuple[list[int], list[int]] | None:
    """A group in numbers; one side after the Reshape may follow from the others."""
    if len(left) == len(right) == 1 and isinstance(left[0], int):
        return [left[0]], [left[0]]
    before = [side for side in left if isinstance(side, int)]
    known = [side for side in right if isinstance(side, int)]
    size, part = math.prod(before), math.prod(known)
    if len(before) < len(left) or len(known) < len(right) - 1 or part == 0 or size % part:
        return None
    after = [side if isinstance(side, int) else size // part for side in right]
    return (before, after) if math.prod(after) == size else None
