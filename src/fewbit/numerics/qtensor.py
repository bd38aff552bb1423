# SPDX-License-Identifier: Apache-2.0
"""A quantized tensor: packed codes with the scales that give them meaning."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.numerics.blocks import Blocks
from fewbit.numerics.grid import Grid
from fewbit.numerics.packing import pack, unpack
from fewbit.numerics.qparams import QParams
from fewbit.numerics.quantize import dequantize, quantize
from fewbit.numerics.scales import load_scale, store_scale


@dataclass(frozen=True)
class QTensor:
    """Codes and scales in the bytes they are kept in.

    Args:
        grid: what the codes mean.
        shape: the tensor's shape.
        block: the block shape.
        packed: `[…, bytes]`, see `packing`.
        scale: in the bytes of `grid.scale_type`, one a block.
        zero_point: in the codes' storage type (float32 with `float_zero`), one a block, or none.
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
        grid, zero = qparams.grid, qparams.zero_point
        if zero is not None and not grid.float_zero:
            zero = zero.int().to(grid.dtype.storage)
        packed = pack(codes, grid.dtype)
        scale = store_scale(qparams.scale, grid.scale_type)
        return cls(grid, tuple(codes.shape), qparams.block, packed, scale, zero, qparams.super_scale)

    @property
    def qparams(self) -> QParams:
        """Scales and zero points in float32."""
        zero = None if self.zero_point is None else self.zero_point.float()
        scale = load_scale(self.scale, self.grid.scale_type)
        return QParams(self.grid, self.block, scale, zero, self.super_scale)

    def codes(self) -> Tensor:
        """The codes, unpacked, in the tensor's shape."""
        return unpack(self.packed, self.grid.dtype, self.shape[-1])

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values the codes stand for."""
        return dequantize(self.codes(), self.qparams, dtype)

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
