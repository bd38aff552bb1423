# SPDX-License-Identifier: Apache-2.0
"""Tables: the rows that are asked for are gathered packed, and only they are dequantized."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fewbit.kernels._base import Kernel as Base
from fewbit.kernels._layers import not_embedding, weight_of
from fewbit.kernels._rows import rows_at
from fewbit.modules.frozen import Terms

SPEED = 50


def refuses(layer: Any, terms: Terms) -> str | None:
    """Embeddings of any grid."""
    return not_embedding(layer)


class Kernel(Base):
    """`table[index]`."""

    def __init__(self, layer: Any, terms: Terms):
        super().__init__(terms)

    def run(self, layer: Any, x: Tensor) -> Tensor:
        """The layer's output."""
        values = rows_at(weight_of(layer), x.flatten()).dequantize(layer.coded["weight"].dtype)
        return values.unflatten(0, x.shape) if x.ndim != 1 else values
