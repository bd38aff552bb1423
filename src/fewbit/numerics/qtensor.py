# SPDX-License-Identifier: Apache-2.0
"""A quantized tensor: packed codes with the scales that give them meaning."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.errors import UsageError
from fewbit.numerics.blocks import Blocks
from fewbit.numerics.grid import Grid
from fewbit.numerics.packing import is_packed, pack, unpack
from fewbit.numerics.qparams import QParams
from fewbit.numerics.quantize import dequantize, quantize
from fewbit.numerics.scales import load_scale, store_scale
from fewbit.numerics.tiles import cut, in_one_piece
from fewbit.numerics.zero_points import load_zero, store_zero


@dataclass(frozen=True)
class QTensor:
    """Codes and scales in the bytes they are kept in.

    Args:
        grid: what the codes mean.
        shape: the tensor's shape.
        block: the block shape.
        packed: `[…, bytes]`, see `packing`.
        scale: in the bytes of `grid.scale_type`, one a block.
        zero_point: in the bytes of `grid.zero_storage`, one a block, or none.
        super_scale: float32 `[]`, or none.
    """

    grid: Grid
    shape: tuple[int, ...]
    block: tuple[int, ...]
    packed: Tensor
    scale: Tensor
    zero_point: Tensor | None = None
    super_scale: Tensor | None = None

    @classmethod
    def encode(cls, x: Tensor, qparams: QParams) -> QTensor:
        """Quantize a tensor."""
        return cls.from_codes(quantize(x, qparams), qparams)

    @classmethod
    def from_codes(cls, codes: Tensor, qparams: QParams) -> QTensor:
        """Pack codes that were found elsewhere, say by an algorithm that does not round to nearest."""
        grid = qparams.grid
        zero = None if qparams.zero_point is None else store_zero(qparams.zero_point, grid)
        packed = pack(codes if codes.ndim else codes.reshape(1), grid.dtype)
        scale = store_scale(qparams.scale, grid.scale_type)
        return cls(grid, tuple(codes.shape), qparams.block, packed, scale, zero, qparams.super_scale)

    @property
    def qparams(self) -> QParams:
        """Scales and zero points in float32."""
        zero = None if self.zero_point is None else load_zero(self.zero_point)
        scale = load_scale(self.scale, self.grid.scale_type)
        return QParams(self.grid, self.block, scale, zero, self.super_scale)

    def codes(self) -> Tensor:
        """The codes, unpacked, in the tensor's shape."""
        return unpack(self.packed, self.grid.dtype, self.shape[-1] if self.shape else 1).reshape(self.shape)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values the codes stand for."""
        if not is_packed(self.grid.dtype) or in_one_piece(self.packed) or len(self.shape) < 2:
            return dequantize(self.codes(), self.qparams, dtype)
        # Unpacked codes never leave the cache: each piece is turned into values at once.
        blocks = self.blocks.merged(keep_last=True)
        packed, qparams = self.packed.reshape(*blocks.shape[:-1], -1), self.qparams.reshape(blocks.block, blocks.counts)
        out = torch.empty(self.shape, dtype=dtype)
        target = out.view(blocks.shape)
        for here, there, block in cut(blocks):
            codes = unpack(packed[here], self.grid.dtype, self.shape[-1])
            target[here] = dequantize(codes, qparams.part(there, block), dtype)
        return out

    def part(self, start: int, stop: int) -> QTensor:
        """The rows from `start` to `stop` along the first axis; `start` lies on the border of a block.

        >>> from fewbit.numerics.dtypes import Dtype
        >>> whole = QTensor.encode(torch.eye(4), QParams(Grid(Dtype.int4), (4, 4), torch.ones(1, 1)))
        >>> whole.part(1, 2).dequantize()
        tensor([[0., 1., 0., 0.]])
        """
        side, width = self.shape[0], self.block[0]
        start, stop = min(start, side), min(stop, side)  # slice.indices is what older compilers do not know
        scales, block = slice(start // width, -(-stop // width)), self.block
        if width >= side:  # one scale for all rows
            scales, block = slice(0, int(stop > start)), (max(stop - start, 1), *self.block[1:])
        elif start % width:
            raise UsageError(f"row {start} lies inside a block", expected=f"a multiple of {width}")
        vector = len(self.shape) == 1
        packed = pack(self.codes()[start:stop], self.grid.dtype) if vector else self.packed[start:stop]
        zero = None if self.zero_point is None else self.zero_point[scales]
        shape = (max(stop - start, 0), *self.shape[1:])
        return QTensor(self.grid, shape, block, packed, self.scale[scales], zero, self.super_scale)

    def tensors(self) -> dict[str, Tensor]:
        """The parts by name, as a file or a module keeps them."""
        parts = {
            "packed": self.packed,
            "scale": self.scale,
            "zero_point": self.zero_point,
            "super_scale": self.super_scale,
        }
        return {name: part for name, part in parts.items() if part is not None}

    @classmethod
    def from_tensors(
        cls, grid: Grid, shape: tuple[int, ...], block: tuple[int, ...], parts: dict[str, Tensor]
    ) -> QTensor:
        """The inverse of `tensors`."""
        return cls(
            grid, shape, block, parts["packed"], parts["scale"], parts.get("zero_point"), parts.get("super_scale")
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.numel() * part.element_size() for part in self.tensors().values())

    @property
    def blocks(self) -> Blocks:
        """How the shape is cut."""
        return Blocks(self.shape, self.block)
