# SPDX-License-Identifier: Apache-2.0
"""Second moments of what a kernel meets: of its windows, laid out flat, products of every two places summed.

Along one axis of positions a table says which position of the input each element of the kernel meets in each window.
Tables of all axes together take the windows out of an input, whatever its stride, dilation and padding, of transposed
convolutions too. Windows are laid out a few at a time, so memory follows the size of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from fewbit.model.taps import windows

_PIECE = 1 << 22  # elements of windows that are laid out at once


def conv_meets(length: int, kernel: int, stride: int = 1, dilation: int = 1, pad: tuple[int, int] = (0, 0)) -> Tensor:
    """Which position each element of a convolution's kernel meets in each window, along one axis.

    Args:
        length: of the input.
        kernel: number of elements.
        stride: of the windows.
        dilation: of the elements.
        pad: zeros before and after.

    Returns:
        int64 `[windows, kernel]`; `length` where it is padding.

    >>> conv_meets(3, 2, pad=(1, 0))
    tensor([[3, 0],
            [0, 1],
            [1, 2]])
    """
    out = windows(length, kernel, stride, dilation, pad)
    found = (torch.arange(out) * stride - pad[0])[:, None] + torch.arange(kernel) * dilation
    return torch.where((found >= 0) & (found < length), found, length)


def transposed_meets(length: int, kernel: int, out: int, stride: int = 1, dilation: int = 1, pad: int = 0) -> Tensor:
    """The same of a transposed convolution; a window is what one position of the output is made of.

    Args:
        length: of the input.
        kernel: number of elements.
        out: length of the output.
        stride: of what the inputs add to.
        dilation: of the elements.
        pad: how much of the output's beginning is cut off.

    >>> transposed_meets(2, 2, 4, stride=2)
    tensor([[0, 2],
            [2, 0],
            [1, 2],
            [2, 1]])
    """
    reach = (torch.arange(out) + pad)[:, None] - torch.arange(kernel) * dilation
    found = reach.div(stride, rounding_mode="floor")
    inside = (reach % stride == 0) & (found >= 0) & (found < length)
    return torch.where(inside, found, length)


def window_products(x: Tensor, meets: Sequence[Tensor]) -> Tensor:
    """The sum over all windows of the products of every two places.

    Args:
        x: `[batch, features, positions…]`.
        meets: one for each axis of positions.

    Returns:
        float32 `[places, places]`, with places in the order of a weight's `[in, kernel…]`.

    >>> window_products(torch.ones(1, 1, 3), [conv_meets(3, 2, pad=(1, 0))])
    tensor([[2., 2.],
            [2., 3.]])
    """
    places = x.shape[1] * prod(met.shape[1] for met in meets)
    total = torch.zeros(places, places, device=x.device)
    filled = nn.functional.pad(x.detach().float(), (0, 1) * len(meets))  # one more position, which is padding
    tables = [met.to(x.device) for met in meets]
    tall = max(1, _PIECE // max(1, places * prod(len(met) for met in tables[1:])))
    for sample in filled:
        for part in torch.split(tables[0], tall):
            rows = _laid_out(sample, [part, *tables[1:]])
            total.addmm_(rows.T, rows)
    return total


def _laid_out(sample: Tensor, meets: Sequence[Tensor]) -> Tensor:
    """Windows of one sample, `[windows, places]`."""
    count = len(meets)
    for axis, met in enumerate(meets, 1):
        sample = sample.index_select(axis, met.flatten())
    parts = sample.reshape(len(sample), *(side for met in meets for side in met.shape))
    order = [*range(1, 2 * count, 2), 0, *range(2, 2 * count + 1, 2)]
    return parts.permute(order).reshape(prod(len(met) for met in meets), -1)
