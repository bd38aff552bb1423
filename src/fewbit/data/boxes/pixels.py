# SPDX-License-Identifier: Apache-2.0
"""Coordinates in pixels where shares of the image were expected: how to tell, and what they would be.

Tools write boxes in pixels in three ways. Which one it was cannot be seen from one row, but the ways under
which a box would not fit on its image can be ruled out, and over a whole dataset one is usually left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Box = tuple[float, float, float, float]
Size = tuple[int, int]

READINGS: dict[str, Callable[[Box], Box]] = {
    "centre": lambda box: box,
    "corners": lambda box: ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2, box[2] - box[0], box[3] - box[1]),
    "top-left": lambda box: (box[0] + box[2] / 2, box[1] + box[3] / 2, box[2], box[3]),
}
"""Each way of writing a box, turned into its centre and size: YOLO's, Pascal VOC's and COCO's."""

_TOLERANCE = 1.0  # some tools count pixels from 1


def look_like_pixels(numbers: Sequence[float]) -> bool:
    """Whether a row's values are in pixels: all of a box at least 1, or two of it far above; half of an outline.

    >>> look_like_pixels((320, 240, 100, 80)), look_like_pixels((0, 0, 100, 80)), look_like_pixels((0.5, 0.5, 1.2, 0.3))
    (True, True, False)
    """
    if max(numbers) <= 1:
        return False
    if len(numbers) == 4:
        return min(numbers) >= 1 or (min(numbers) >= 0 and sum(number > 2 for number in numbers) >= 2)
    return max(numbers) > 2 and 2 * sum(number > 1 for number in numbers) >= len(numbers)


def fitting(numbers: Sequence[float], size: Size) -> list[str]:
    """The readings under which the row lies on an image of this (width, height).

    >>> fitting((100, 100, 300, 200), (320, 240))
    ['corners']
    """
    if len(numbers) != 4:
        fits = all(-_TOLERANCE <= n <= size[i % 2] + _TOLERANCE for i, n in enumerate(numbers))
        return list(READINGS) if fits else []
    return [name for name in READINGS if _on_image(READINGS[name](_box(numbers)), size)]


def normalised(numbers: Sequence[float], size: Size, reading: str) -> tuple[float, ...]:
    """The row as shares of an image of this (width, height).

    >>> normalised((160, 120, 32, 24), (320, 240), "centre")
    (0.5, 0.5, 0.1, 0.1)
    """
    if len(numbers) == 4:
        numbers = READINGS[reading](_box(numbers))
    return tuple(number / size[i % 2] for i, number in enumerate(numbers))


def _box(numbers: Sequence[float]) -> Box:
    first, second, third, fourth = numbers
    return first, second, third, fourth


def _on_image(box: Box, size: Size) -> bool:
    return all(
        length > 0 and middle - length / 2 >= -_TOLERANCE and middle + length / 2 <= limit + _TOLERANCE
        for middle, length, limit in zip(box[:2], box[2:], size)
    )
