# SPDX-License-Identifier: Apache-2.0
"""Does a shape fit an input, and if not, in which well-known way does it miss?"""

from __future__ import annotations

from dataclasses import dataclass

Axes = tuple[int | str | None, ...]

_CHANNELS = (1, 3, 4)
_TO_FRONT, _TO_BACK = (2, 0, 1), (1, 2, 0)


@dataclass(frozen=True, slots=True)
class ShapeVerdict:
    """How an array's shape meets an input.

    Args:
        code: the finding, or `None` when the shape fits as it is.
        rows: entries of a first axis that is too much: 1 can be squeezed, more are samples of their own; 0: none.
        transpose: the order of axes that would fit, after the first axis is gone.
    """

    code: str | None = None
    rows: int = 0
    transpose: tuple[int, ...] | None = None


def sample_axes(shape: Axes) -> Axes:
    """The axes of one sample: those of the input without the batch axis."""
    return shape[1:]


def meets(shape: tuple[int, ...], axes: Axes) -> bool:
    """Whether every fixed axis has its size.

    >>> meets((3, 8, 8), (3, "height", None))
    True
    """
    return len(shape) == len(axes) and all(not isinstance(axis, int) or axis == size for size, axis in zip(shape, axes))


def judge_sample(shape: tuple[int, ...], spec: Axes) -> ShapeVerdict:
    """How a sample without a batch axis meets an input whose shape has one.

    >>> judge_sample((1, 3, 8, 8), ("batch", 3, 8, 8)).rows
    1
    >>> judge_sample((8, 8, 3), ("batch", 3, 8, 8)).transpose
    (2, 0, 1)
    """
    axes = sample_axes(spec)
    if meets(shape, axes):
        return ShapeVerdict()
    if shape and meets(shape[1:], axes) and shape[0] > 0:
        return ShapeVerdict("batch-dimension", shape[0])
    for rows, inner in ((0, shape), (max(shape[:1], default=0), shape[1:])):
        order = _layout(inner, axes)
        if order and (rows or inner is shape):
            return ShapeVerdict("input-layout", rows, order)
    return ShapeVerdict("input-shape")


def judge_item(shape: tuple[int, ...], spec: Axes) -> ShapeVerdict:
    """How an item that carries its batch axis meets an input.

    >>> judge_item((3, 8, 8), ("batch", 3, 8, 8)).code
    'batch-missing'
    """
    if meets(shape, spec):
        return ShapeVerdict()
    if shape and meets(shape[1:], sample_axes(spec)) and len(spec) == len(shape):
        return ShapeVerdict("batch-fixed")
    if meets(shape, sample_axes(spec)) and spec:
        return ShapeVerdict("batch-missing")
    if shape[:1] == (1,) and meets(shape[1:], spec):
        return ShapeVerdict("batch-dimension", 1)
    order = _layout(shape[1:], sample_axes(spec))
    if order:
        return ShapeVerdict("input-layout", transpose=(0, *(axis + 1 for axis in order)))
    return ShapeVerdict("input-shape")


def _layout(shape: tuple[int, ...], axes: Axes) -> tuple[int, ...] | None:
    """The order of axes that turns an image's channels to where the model has them, if that is the fault."""
    if len(shape) != 3 or len(axes) != 3:
        return None
    for order, channels in ((_TO_FRONT, shape[2]), (_TO_BACK, shape[0])):
        if channels in _CHANNELS and meets(tuple(shape[axis] for axis in order), axes):
            return order
    return None
