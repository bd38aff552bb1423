# SPDX-License-Identifier: Apache-2.0
"""Large tensors piece by piece, so that what a computation puts aside stays in the processor's cache.

A fresh tensor of many megabytes costs more in page faults than the arithmetic on it. Compilers fuse the arithmetic
themselves, and other devices are fast at memory: both get the tensor in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

from fewbit.numerics.blocks import Blocks

TILE = 1 << 19  # elements; measured on [4096, 4096] weights, flat from 2^18 to 2^20


def in_one_piece(x: Tensor) -> bool:
    """Whether a tensor had better not be cut."""
    return torch.compiler.is_compiling() or x.device.type != "cpu" or x.numel() <= TILE


def cut(blocks: Blocks) -> Iterator[tuple[slice, slice, tuple[int, ...]]]:
    """Pieces along the first axis: where in the tensor, where in the scales, and the piece's block shape.

    >>> [where for where, _, _ in cut(Blocks((5, TILE), (2, 1)))]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    side, width = blocks.shape[0], blocks.block[0]
    rest = max(prod(blocks.shape[1:]), 1)
    if width >= side:  # one scale for all of them: any cut will do
        rows = max(TILE // rest, 1)
        for start in range(0, side, rows):
            stop = min(start + rows, side)
            yield slice(start, stop), slice(0, 1), (stop - start, *blocks.block[1:])
        return
    rows = max(TILE // (rest * width), 1) * width
    for start in range(0, side, rows):
        stop = min(start + rows, side)
        yield slice(start, stop), slice(start // width, -(-stop // width)), blocks.block
