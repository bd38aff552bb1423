# SPDX-License-Identifier: Apache-2.0
"""Between a module's own layout of a weight and fewbit's, `[stack…, out, in, kernel…]`.

The two differ by a permutation of axes. Grouped transposed convolutions need one thing more: theirs is
`[groups · in, out, kernel…]` and ours `[groups · out, in, kernel…]`, so the permutation happens within each group.
"""

from __future__ import annotations

import torch
from torch import Tensor


def to_own(ours: Tensor, axes: tuple[int, ...], groups: int = 1) -> Tensor:
    """A tensor in fewbit's layout, in the module's own.

    Args:
        ours: the tensor.
        axes: `own = ours.permute(axes)`.
        groups: blocks of the first axis, each permuted by itself.

    >>> to_own(torch.zeros(8, 3, 5), (1, 0, 2), groups=4).shape
    torch.Size([12, 2, 5])
    """
    if groups == 1:
        return ours.permute(axes)
    parts = ours.reshape(groups, -1, *ours.shape[1:]).permute(0, *(axis + 1 for axis in axes))
    return parts.flatten(0, 1)


def to_ours(own: Tensor, axes: tuple[int, ...], groups: int = 1) -> Tensor:
    """The inverse of `to_own`."""
    return to_own(own, inverse(axes), groups)


def own_shape(shape: tuple[int, ...], axes: tuple[int, ...], groups: int = 1) -> tuple[int, ...]:
    """The module's own shape of a tensor whose shape is given in fewbit's layout.

    >>> own_shape((8, 3, 5), (1, 0, 2), groups=4)
    (12, 2, 5)
    """
    return tuple(to_own(torch.empty(shape, device="meta"), axes, groups).shape)


def inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes another.

    >>> inverse((2, 0, 1))
    (1, 2, 0)
    """
    return tuple(axes.index(axis) for axis in range(len(axes)))
