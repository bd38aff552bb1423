# SPDX-License-Identifier: Apache-2.0
"""A weight that is written as codes, wherever in the model it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fewbit.exporters._base import Destined
from fewbit.exporters._compressed_scheme import Scheme, scheme_of
from fewbit.modules.activation import ActivationQuantizer
from fewbit.numerics.grid import Grid
from fewbit.numerics.qtensor import QTensor


@dataclass(frozen=True)
class Matrix:
    """A weight that is written as codes.

    Args:
        stored: its layer's name in a checkpoint.
        shape: `[out, in]`.
        grid: of the codes.
        dtype: of the floats they stand for.
        read: gives the codes.
        quantizer: of the layer's input, or none.
        expert: whether it is a part of a stack in the model.
    """

    stored: str
    shape: tuple[int, ...]
    grid: Grid
    dtype: torch.dtype
    read: Callable[[], QTensor]
    quantizer: ActivationQuantizer | None = None
    expert: bool = False

    def destined(self, layer: str) -> Destined:
        """As a plan would have told of it."""
        grid = None if self.quantizer is None else self.quantizer.grid
        dynamic = self.quantizer is not None and self.quantizer.dynamic
        stack, tensor = ((1,), "expert") if self.expert else ((), "weight")
        return Destined(layer, tensor, (*stack, *self.shape), self.grid, grid, dynamic)


def scheme_for(weight: Destined) -> Scheme:
    """The scheme of a weight that nothing speaks against."""
    assert weight.grid is not None
    return scheme_of(weight.grid, weight.shape[-2:], weight.input, dynamic=weight.dynamic)
