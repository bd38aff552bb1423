# SPDX-License-Identifier: Apache-2.0
"""Tensors as the rows observers take: one row for each scale, in the order of the scales."""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.numerics.blocks import Blocks
from fewbit.numerics.grid import Grid


def activation_rows(x: Tensor, grid: Grid) -> Tensor:
    """An activation's rows for scales that are found beforehand and hold for every position.

    Args:
        x: `[positions, features]`.
        grid: per channel gives `[features, positions]`, per group `[groups, positions * group_size]`, anything else
            `[1, positions * features]`.
    """
    if not len(x):  # all padding: no elements, but as many rows as ever
        return x.new_empty(len(activation_rows(x.new_empty(1, x.shape[1]), grid)), 0)
    block = grid.activation_block(tuple(x.shape), features=-1, dynamic=False)
    if block == x.shape:
        return x.reshape(1, -1)
    return x.T if block[1] == 1 else _rows(x, block)


def _rows(x: Tensor, block: tuple[int, ...]) -> Tensor:
    """`x` as `[blocks, elements]`; a block that is cut short repeats its own values in turn.

    Padding with zeros would pull percentiles and means towards zero.

    >>> _rows(torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]]), (1, 3))
    tensor([[1., 2., 3.],
            [4., 5., 4.]])
    """
    for axis, width in enumerate(block):
        side = x.shape[axis]
        rest = side % width
        if rest:
            again = side - rest + torch.arange(width - rest, device=x.device) % rest
            x = torch.cat([x, x.index_select(axis, again)], axis)
    return Blocks(tuple(x.shape), block).rows(x)
