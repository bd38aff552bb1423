# SPDX-License-Identifier: Apache-2.0
"""Codes as ONNX Runtime's own operators keep them: unsigned, in blocks of a power of two along the rows of a matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.errors import UsageError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.packing import pack
from fewbit.numerics.qtensor import QTensor

SMALLEST = 16


@dataclass(frozen=True)
class RuntimeBlocks:
    """A matrix `[rows, columns]` of unsigned codes.

    Args:
        bits: 4 or 8.
        block: elements of a block along the columns; the last one may be shorter.
        codes: uint8 `[rows, columns]`, not packed.
        scale: float32 `[rows, blocks]`.
        zero: uint8 `[rows, blocks]`, not packed.
    """

    bits: int
    block: int
    codes: Tensor
    scale: Tensor
    zero: Tensor

    @property
    def centred(self) -> bool:
        """Whether every zero point is the middle code, which the operators take when none is given."""
        return bool(torch.all(self.zero == 1 << (self.bits - 1)))

    def pack(self, codes: Tensor) -> Tensor:
        """Codes `[…, n]` as bytes, the first in the lowest bits."""
        return pack(codes, Dtype[f"uint{self.bits}"])


def runtime_blocks(codes: QTensor, where: str, largest: int | None = None, bits: int | None = None) -> RuntimeBlocks:
    """The codes of a matrix in the blocks that mean the same with the fewest scales.

    Args:
        codes: `[rows, columns]`, integers of up to 8 bits.
        where: the layer, for the message.
        largest: the longest block that the operator takes.
        bits: how wide a code is kept, 4 or 8; as wide as it has to be if not said.

    Raises:
        UsageError: what the operators have no form for.
    """
    dtype = codes.grid.dtype
    block = runtime_block(codes, where, largest)
    bits = bits or (4 if dtype.bits <= 4 else 8)
    (rows, columns), (height, width) = codes.shape, codes.block
    shift = 1 << (bits - 1) if dtype.signed else 0
    # Blocks of the grid to blocks of the operator: each of those starts inside one of these.
    row, column = torch.arange(rows) // height, torch.arange(0, columns, block) // width
    qparams = codes.qparams
    zero = torch.zeros_like(qparams.step) if qparams.zero_point is None else qparams.zero_point
    unsigned = (codes.codes().to(torch.int16) + shift).to(torch.uint8)
    return RuntimeBlocks(
        bits,
        block,
        unsigned,
        qparams.step[row][:, column].contiguous(),
        (zero[row][:, column].to(torch.int16) + shift).to(torch.uint8),
    )


def runtime_block(codes: QTensor, where: str, largest: int | None = None) -> int:
    """The length of the blocks that `runtime_blocks` makes.

    Raises:
        UsageError: what the operators have no form for.
    """
    dtype = codes.grid.dtype
    if not dtype.is_integer or dtype.bits > 8 or len(codes.shape) != 2 or codes.grid.free_zero:
        raise UsageError(
            f"codes of {dtype.name} for a tensor of {len(codes.shape)} axes",
            where=where,
            expected="a matrix of integers of up to 8 bits with whole zero points",
        )
    return _block(codes.block[1], codes.shape[1], largest, where)


def _block(width: int, columns: int, largest: int | None, where: str) -> int:
    """The longest power of two that no border of a block falls into."""
    if width >= columns:
        block = max(SMALLEST, 1 << (columns - 1).bit_length())
        return block if largest is None else min(block, largest)
    block = width & -width
    if block < SMALLEST:
        raise UsageError(
            f"groups of {width} for ONNX Runtime's block kernels",
            where=where,
            expected=f"a multiple of {SMALLEST}, or one scale a row",
            try_="group_size=32, or keep the weight behind DequantizeLinear",
        )
    return block if largest is None else min(block, largest)
