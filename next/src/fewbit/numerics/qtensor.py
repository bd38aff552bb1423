# SPDX-License-Identifier: Apache-2.0
"""A quantized tensor: packed codes with the scales that give them meaning, in the bytes that store them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from fewbit.errors import UsageError
from fewbit.numerics.granularity import BlockShape
from fewbit.numerics.grid import QParams, QuantizationGrid
from fewbit.numerics.ops import NUMPY_CHUNK, TORCH_CHUNK, Array, cast, empty, is_compiling, is_numpy, on_cpu
from fewbit.numerics.packing import pack, unpack
from fewbit.numerics.quantize import chunks, dequantize, quantize
from fewbit.numerics.scales import load_scale, store_scale


@dataclass(frozen=True, eq=False)
class QTensor:
    """Codes and scales as they are stored.

    Args:
        grid: what the codes mean.
        shape: of the tensor.
        block: the block shape.
        packed: `[…, bytes]`, see `packing`; types of 8, 16 and 32 bits are not packed.
        scale: in the bytes of `grid.scale_type`, one per block.
        zero_point: in `grid.zero_storage`, one per block, or `None`.
        global_scale: float32 `[]`, or `None`.
    """

    grid: QuantizationGrid
    shape: tuple[int, ...]
    block: tuple[int, ...]
    packed: Array
    scale: Array
    zero_point: Array | None = None
    global_scale: Array | None = None

    @classmethod
    def encode(cls, x: Array, qparams: QParams) -> QTensor:
        """Quantize a tensor by rounding each element."""
        return cls.from_codes(quantize(x, qparams), qparams)

    @classmethod
    def from_codes(cls, codes: Array, qparams: QParams) -> QTensor:
        """Pack codes that an algorithm computed."""
        grid, zero = qparams.grid, qparams.zero_point
        if zero is not None and not grid.float_zero:
            # Through integers: a cast of floats to unsigned types is not the same on every device.
            zero = cast(cast(zero, "int64"), grid.zero_storage)
        packed = pack(codes if codes.ndim else codes.reshape((1,)), grid.dtype.bits)
        scale = store_scale(qparams.scale, grid.scale_type)
        return cls(grid, tuple(codes.shape), qparams.block, packed, scale, zero, qparams.global_scale)

    @property
    def qparams(self) -> QParams:
        """Scales and zero points in float32."""
        zero = None if self.zero_point is None else cast(self.zero_point, "float32")
        return QParams(self.grid, self.block, load_scale(self.scale, self.grid.scale_type), zero, self.global_scale)

    def codes(self) -> Array:
        """The codes, unpacked, in the shape of the tensor."""
        return self._unpack(self.packed).reshape(self.shape)

    def dequantize(self, dtype: Any = "float32") -> Array:
        """The values that the codes stand for."""
        chunk = NUMPY_CHUNK if is_numpy(self.packed) else TORCH_CHUNK
        small = not on_cpu(self.packed) or is_compiling(self.packed) or prod(self.shape) <= chunk
        if self.grid.dtype.bits >= 8 or small or len(self.shape) < 2:
            return dequantize(self.codes(), self.qparams, dtype)
        # Unpacked codes never leave the cache: every piece becomes values at once.
        blocks = BlockShape(self.shape, self.block).merged(keep_last=True)
        packed = self.packed.reshape((*blocks.shape[:-1], self.packed.shape[-1]))
        qparams = self.qparams.reshape(blocks.block, blocks.counts)
        out = empty(self.shape, self.packed, dtype)
        target = out.reshape(blocks.shape)
        for elements, part, block in chunks(blocks, chunk):
            target[elements] = dequantize(self._unpack(packed[elements]), qparams.part(part, block), dtype)
        return out

    def rows(self, start: int, stop: int) -> QTensor:
        """The rows from `start` to `stop` along the first axis; `start` is the first row of a block.

        >>> import numpy as np
        >>> from fewbit.numerics.dtypes import Dtype
        >>> qparams = QParams(QuantizationGrid(Dtype.int4), (4, 4), np.ones((1, 1), np.float32))
        >>> QTensor.encode(np.eye(4, dtype=np.float32), qparams).rows(1, 2).dequantize().tolist()
        [[0.0, 1.0, 0.0, 0.0]]
        """
        side, width = self.shape[0], self.block[0]
        start, stop = min(start, side), min(stop, side)
        part, block = slice(start // width, -(-stop // width)), self.block
        if width >= side:  # all rows share their scales
            part, block = slice(0, int(stop > start)), (max(stop - start, 1), *self.block[1:])
        elif start % width:
            raise UsageError(
                f"row {start} lies inside a block of {width} rows", code="qtensor-rows",
                expected=f"a multiple of {width}", hint=f"start at row {start // width * width}",
            )  # fmt: skip
        vector = len(self.shape) == 1
        packed = pack(self.codes()[start:stop], self.grid.dtype.bits) if vector else self.packed[start:stop]
        zero = None if self.zero_point is None else self.zero_point[part]
        shape = (max(stop - start, 0), *self.shape[1:])
        return QTensor(self.grid, shape, block, packed, self.scale[part], zero, self.global_scale)

    def tensors(self) -> dict[str, Array]:
        """The stored arrays by name."""
        arrays = {
            "packed": self.packed,
            "scale": self.scale,
            "zero_point": self.zero_point,
            "global_scale": self.global_scale,
        }
        return {name: array for name, array in arrays.items() if array is not None}

    @classmethod
    def from_tensors(
        cls, grid: QuantizationGrid, shape: tuple[int, ...], block: tuple[int, ...], arrays: dict[str, Array]
    ) -> QTensor:
        """The inverse of `tensors`."""
        zero, global_scale = arrays.get("zero_point"), arrays.get("global_scale")
        return cls(grid, shape, block, arrays["packed"], arrays["scale"], zero, global_scale)

    @property
    def nbytes(self) -> int:
        """Bytes of all stored arrays."""
        return sum(int(array.nbytes) for array in self.tensors().values())

    def _unpack(self, packed: Array) -> Array:
        signed = self.grid.dtype.is_integer and self.grid.dtype.signed
        return unpack(packed, self.grid.dtype.bits, self.shape[-1] if self.shape else 1, signed=signed)
