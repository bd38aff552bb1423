# SPDX-License-Identifier: Apache-2.0
"""Some rows of a quantized table: only what is asked for is unpacked and dequantized."""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.numerics.qtensor import QTensor


def rows_at(weight: QTensor, index: Tensor) -> QTensor:
    """Any rows, in any order, each with its own copy of its scales.

    Args:
        weight: the table.
        index: which rows, `[n]`.
    """
    high = weight.block[0]
    block_index = index if high == 1 else index // high
    zero = None if weight.zero_point is None else _taken(weight.zero_point, block_index)
    packed, scale = _taken(weight.packed, index), _taken(weight.scale, block_index)
    shape, block = (index.shape[0], *weight.shape[1:]), (1, *weight.block[1:])
    return QTensor(weight.grid, shape, block, packed, scale, zero, weight.super_scale)


def _taken(packed: Tensor, index: Tensor) -> Tensor:
    # Not every type can be indexed on every device; integers of its size can.
    plain = {1: torch.uint8, 2: torch.int16}.get(packed.element_size(), packed.dtype)
    return packed.view(plain).index_select(0, index).view(packed.dtype)  # refuses -1, as look-ups do
