# SPDX-License-Identifier: Apache-2.0
"""Some rows of a quantized table: only what is asked for is unpacked and dequantized."""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.numerics.qtensor import QTensor


def rows_between(weight: QTensor, start: int, stop: int) -> QTensor:
    """Neighbouring rows; they begin with a block and end with one, or with the table.

    >>> from fewbit.numerics.dtypes import Dtype
    >>> from fewbit.numerics.grid import Grid
    >>> from fewbit.numerics.qparams import from_range
    >>> eye = QTensor.encode(torch.eye(3), from_range(torch.zeros(1, 1), torch.ones(1, 1), Grid(Dtype.uint8), (3, 3)))
    >>> rows_between(eye, 1, 2).shape
    (1, 3)
    """
    high = weight.block[0]
    whole = high >= weight.shape[0]
    blocks = slice(None) if whole else slice(start // high, -(-stop // high))
    shape = (stop - start, *weight.shape[1:])
    block = (stop - start if whole else high, *weight.block[1:])
    zero = None if weight.zero_point is None else weight.zero_point[blocks]
    packed = weight.packed[start:stop]
    return QTensor(weight.grid, shape, block, packed, weight.scale[blocks], zero, weight.super_scale)


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
    return packed.view(plain)[index].view(packed.dtype)
