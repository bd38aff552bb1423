# SPDX-License-Identifier: Apache-2.0
"""Whatever has no kernel of its own: float products on a few dequantized rows of the weight at a time.

The float weight never exists as a whole, and what exists of it stays in the processor's cache. Where everything that
makes up an output shares one scale, the scale is applied to the output instead of to each weight; but not in float16,
where sums that are not scaled yet soon overflow.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fewbit.kernels._base import Kernel as Base
from fewbit.kernels._layers import as_rows, finish, not_linear, output_steps, per_output, weight_of
from fewbit.modules.frozen import Terms
from fewbit.numerics.floats import decode
from fewbit.numerics.packing import unpack
from fewbit.numerics.qtensor import QTensor

SPEED = 10
_TILE = {"cpu": 1 << 20}  # elements of the weight; elsewhere 2^26: only memory counts


def refuses(layer: Any, terms: Terms) -> str | None:
    """Linear layers of any grid."""
    return not_linear(layer)


class Kernel(Base):
    """`Σ x w + bias`."""

    holds: ClassVar[tuple[str, ...]] = ("step", "zero")

    def __init__(self, layer: Any, terms: Terms):
        super().__init__(terms)
        weight = weight_of(layer)
        self.pieces = _cut(weight)
        self.like, self.features = weight.grid.dtype, weight.shape[1]
        self.step: Tensor | None = None
        self.zero: Tensor | None = None
        # Bytes fit into bfloat16, so the products of elements are as exact as those of scaled weights, or more so.
        if per_output(weight) and self.like.bits <= 8:
            self.step, zero = output_steps(weight)
            self.zero = None if zero is None else zero[:, None]

    def run(self, layer: Any, x: Tensor) -> Tensor:
        """The layer's output."""
        rows = as_rows(x if layer.input_quantizer is None else layer.input_quantizer(x))
        step = None if x.dtype is torch.float16 else self.step
        floats = self._scaled if step is None else self._elements
        if len(self.pieces) == 1 or torch.compiler.is_compiling():
            out = F.linear(rows, floats(layer, slice(0, self.pieces[-1].stop), x.dtype))
        else:
            out = rows.new_empty(rows.shape[0], self.pieces[-1].stop)
            for piece in self.pieces:
                out[:, piece] = F.linear(rows, floats(layer, piece, x.dtype))
        return finish(out if step is None else out.mul_(step), layer.bias, x)

    def _scaled(self, layer: Any, piece: slice, dtype: torch.dtype) -> Tensor:
        """Some rows of the float weight."""
        return weight_of(layer).part(piece.start, piece.stop).dequantize(dtype)

    def _elements(self, layer: Any, piece: slice, dtype: torch.dtype) -> Tensor:
        """The same before scaling."""
        codes = unpack(layer.weight_packed[piece], self.like, self.features)
        if not self.like.is_integer:
            return decode(codes, self.like).to(dtype)
        return codes.to(dtype) if self.zero is None else codes.to(dtype).sub_(self.zero[piece])


def _cut(weight: QTensor) -> list[slice]:
    """Rows of about a tile each, whole blocks of them."""
    outputs, features = weight.shape
    tile = _TILE.get(weight.packed.device.type, 1 << 26)
    high = 1 if weight.block[0] >= outputs else weight.block[0]
    count = max(tile // (features * high), 1) * high
    return [slice(start, min(start + count, outputs)) for start in range(0, outputs, count)]
