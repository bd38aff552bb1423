# SPDX-License-Identifier: Apache-2.0
"""Whatever has no kernel of its own: float products on a few dequantized rows of the weight at a time.

The float weight never exists as a whole, and what exists of it stays in the processor's cache. Where everything that
makes up an output shares one scale, the scale is applied to the output instead of to each weight.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fewbit.kernels._base import Kernel as Base
from fewbit.kernels._layers import as_rows, finish, not_linear, output_steps, per_output, weight_of
from fewbit.kernels._rows import rows_between
from fewbit.modules.frozen import Terms
from fewbit.numerics.floats import decode
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
        self.step: Tensor | None = None
        self.zero: Tensor | None = None
        # Bytes fit into bfloat16, so the products of elements are as exact as those of scaled weights, or more so.
        if per_output(weight) and weight.grid.dtype.bits <= 8:
            self.step, zero = output_steps(weight)
            self.zero = None if zero is None else zero[:, None]

    def run(self, layer: Any, x: Tensor) -> Tensor:
        """The layer's output."""
        rows = as_rows(x if layer.input_quantizer is None else layer.input_quantizer(x))
        weight = weight_of(layer)
        pieces = [] if torch.compiler.is_compiling() else _cut(weight)
        if len(pieces) <= 1:
            out = F.linear(rows, self._floats(weight, self.zero, x.dtype))
        else:
            out = rows.new_empty(rows.shape[0], weight.shape[0])
            for start, stop in pieces:
                zero = None if self.zero is None else self.zero[start:stop]
                out[:, start:stop] = F.linear(rows, self._floats(rows_between(weight, start, stop), zero, x.dtype))
        return finish(out if self.step is None else out * self.step, layer.bias, x)

    def _floats(self, weight: QTensor, zero: Tensor | None, dtype: torch.dtype) -> Tensor:
        if self.step is None:
            return weight.dequantize(dtype)
        if not weight.grid.dtype.is_integer:
            return decode(weight.codes(), weight.grid.dtype).to(dtype)
        codes = weight.codes().to(dtype)
        return codes if zero is None else codes.sub_(zero)


def _cut(weight: QTensor) -> list[tuple[int, int]]:
    """Rows of about a tile each, whole blocks of them."""
    outputs, features = weight.shape
    tile = _TILE.get(weight.packed.device.type, 1 << 26)
    high = 1 if weight.block[0] >= outputs else weight.block[0]
    count = max(tile // (features * high), 1) * high
    return [(start, min(start + count, outputs)) for start in range(0, outputs, count)]
