# SPDX-License-Identifier: Apache-2.0
"""The ranges of a tensor that is there as a whole, such as a weight."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fewbit.numerics.grid import Grid
from fewbit.observers._base import RangeObserver

_ROWS = 4096


def ranges_of(rows: Tensor, grid: Grid, make: Callable[[], RangeObserver]) -> tuple[Tensor, Tensor]:
    """The low and high end of each row, from one look at it: `[R]` each.

    A weight in groups of 32 has half a million rows; a histogram of each would fill the memory, so a few rows go
    through an observer at a time.

    Args:
        rows: `[R, E]`.
        grid: the grid the ranges are for.
        make: makes an observer.

    >>> from fewbit.numerics.dtypes import Dtype
    >>> from fewbit.observers.min_max import MinMaxObserver
    >>> ranges_of(torch.tensor([[1.0, 2.0], [-3.0, 0.0]]), Grid(Dtype.int8), MinMaxObserver)
    (tensor([ 1., -3.]), tensor([2., 0.]))
    """
    found = []
    # In a two-level grid the tensor's largest row has a part in every row's scale, so it goes along each time.
    guest = rows[rows.abs().amax(1).argmax()][None] if grid.two_level else rows[:0]
    for part in torch.split(rows, _ROWS):
        observer = make()
        observer.observe(torch.cat([part, guest]) if len(guest) else part)
        found.append([end[: len(part)] for end in observer.range(grid)])
    return torch.cat([low for low, _ in found]), torch.cat([high for _, high in found])
