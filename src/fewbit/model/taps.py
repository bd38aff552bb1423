# SPDX-License-Identifier: Apache-2.0
"""What the elements of a kernel are multiplied with, summed over all positions of the output.

Along one axis a kernel element meets every s-th position from one place to another: a `range`. Away from the ends every
position is met by the same elements, up to its remainder by s; so the input is summed once, by remainder, and only a
few positions at the ends are looked at one by one (all of them where the axis is short).
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

_PIECE = 1 << 20  # elements of one sample taken at once
_SHORT = 128  # positions up to which looking at each is as fast

Reach = tuple[range, ...]
"""For each element of a kernel along one axis, the positions of the input it meets; all with the same step."""


def conv_reach(length: int, kernel: int, stride: int = 1, dilation: int = 1, pad: tuple[int, int] = (0, 0)) -> Reach:
    """What each element of a convolution's kernel meets along one axis; padding holds zeros.

    Args:
        length: of the input.
        kernel: number of elements.
        stride: of the windows.
        dilation: of the elements.
        pad: before and after.

    >>> conv_reach(5, 3, pad=(1, 1))
    (range(0, 4), range(0, 5), range(1, 5))
    """
    out = windows(length, kernel, stride, dilation, pad)
    starts = [element * dilation - pad[0] for element in range(kernel)]
    return tuple(_inside(range(start, start + out * stride, stride), length) for start in starts)


def transposed_reach(length: int, kernel: int, out: int, stride: int = 1, dilation: int = 1, pad: int = 0) -> Reach:
    """The same of a transposed convolution: an input counts for an element if what it adds to lies in the output.

    Args:
        length: of the input.
        kernel: number of elements.
        out: length of the output.
        stride: of what the inputs add to.
        dilation: of the elements.
        pad: how much of the output's beginning is cut off.

    >>> transposed_reach(3, 3, 5, stride=2, pad=1)
    (range(1, 3), range(0, 3), range(0, 2))
    """
    found = []
    for element in range(kernel):
        before = pad - element * dilation  # the output of input i is i * stride - before
        found.append(_inside(range(-(-before // stride), (out - 1 + before) // stride + 1), length))
    return tuple(found)


def windows(length: int, kernel: int, stride: int = 1, dilation: int = 1, pad: tuple[int, int] = (0, 0)) -> int:
    """How many windows of a convolution there are along one axis.

    >>> windows(8, 3, stride=2, pad=(1, 1))
    4
    """
    return max(0, (length + sum(pad) - dilation * (kernel - 1) - 1) // stride + 1)


def taps(x: Tensor, reaches: tuple[Reach, ...]) -> Tensor:
    """For every feature and kernel element the sum of what it meets.

    Args:
        x: `[batch, features, positions…]`.
        reaches: one for each axis of positions.

    Returns:
        `[features, kernel…]` in float64.

    >>> taps(torch.ones(1, 1, 5), (conv_reach(5, 3, pad=(1, 1)),))
    tensor([[4., 5., 4.]], dtype=torch.float64)
    """
    width = max(1, _PIECE * x.shape[1] // max(1, x[0].numel()))
    return torch.cat([_taps(part, reaches) for part in torch.split(x, width, 1)])


def _taps(x: Tensor, reaches: tuple[Reach, ...]) -> Tensor:
    total = x[0].to(torch.float64, copy=True)
    for sample in x[1:]:
        total += sample  # one by one: all at once in float64 would be twice the memory of the activations
    for axis, reach in enumerate(reaches, 1):
        total = _along(total, axis, reach)
    return total


def _along(x: Tensor, axis: int, reach: Reach) -> Tensor:
    """One axis of positions becomes one of kernel elements."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    first, last, matrix = _members(reach, x.shape[axis])
    if last > first:
        middle = x.narrow(axis, first, last - first).reshape(*before, -1, reach[0].step, *after).sum(axis)
        x = torch.cat([middle, x.narrow(axis, 0, first), x.narrow(axis, last, x.shape[axis] - last)], axis)
    matrix = matrix.to(x.device)
    if not after:
        return x @ matrix
    return (matrix.T @ x.flatten(axis + 1)).reshape(*before, -1, *after)


@lru_cache(maxsize=512)
def _members(reach: Reach, length: int) -> tuple[int, int, Tensor]:
    """Which kernel elements meet which positions.

    Returns:
        The middle, from the first position to before the last; none where the axis is short or an element is never at
        home. And zeros and ones `[remainders of the middle + other positions, kernel]`.
    """
    step = reach[0].step
    first = max(met.start for met in reach)
    last = min(met[-1] + 1 if met else 0 for met in reach)
    last -= max(0, last - first) % step
    if length <= _SHORT or last <= first:
        first = last = 0
    rows = [[(place - met.start) % step == 0 for met in reach] for place in range(first, min(first + step, last))]
    rows += [[place in met for met in reach] for place in (*range(first), *range(last, length))]
    return first, last, torch.tensor(rows, dtype=torch.float64)


def _inside(places: range, length: int) -> range:
    """The places that are positions of an input."""
    step = places.step
    start = places.start if places.start >= 0 else places.start % step
    return range(start, max(start, min(places.stop, length)), step)
