# SPDX-License-Identifier: Apache-2.0
"""The bytes a zero point is kept in."""

from __future__ import annotations

from torch import Tensor

from fewbit.numerics.grid import Grid


def store_zero(zero: Tensor, grid: Grid) -> Tensor:
    """Zero points in `grid.zero_storage`; exact.

    >>> import torch
    >>> from fewbit.numerics.dtypes import Dtype
    >>> store_zero(torch.tensor([200.0]), Grid(Dtype.uint8, symmetric=False))
    tensor([200], dtype=torch.uint8)
    """
    # Through integers: a cast of floats to unsigned types is not the same on every device.
    return zero if grid.float_zero else zero.int().to(grid.zero_storage)


def load_zero(stored: Tensor) -> Tensor:
    """The float32 values of stored zero points."""
    return stored.float()
