# SPDX-License-Identifier: Apache-2.0
"""A weight that is written as codes, wherever in the model it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import torch

from fewbit.exporters._base import Destined
from fewbit.exporters._checkpoint_layout import Contents
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

    @property
    def block(self) -> tuple[int, ...]:
        """Of its scales."""
        return self.grid.weight_block(self.shape)

    def destined(self, layer: str) -> Destined:
        """As a plan would have told of it."""
        grid = None if self.quantizer is None else self.quantizer.grid
        dynamic = self.quantizer is not None and self.quantizer.dynamic
        stack, tensor = ((1,), "expert") if self.expert else ((), "weight")
        return Destined(layer, tensor, (*stack, *self.shape), self.grid, grid, dynamic)

    def reading(self, contents: Contents) -> Matrix:
        """The same with codes from elsewhere."""
        return replace(self, read=partial(contents.codes, f"{self.stored}.weight"))


def samples(matrices: Mapping[str, Matrix]) -> dict[str, Matrix]:
    """The smallest matrix of every grid: enough to see whether a grid is written as it should be."""
    found: dict[Grid, str] = {}
    for name, matrix in sorted(matrices.items(), key=lambda item: prod(item[1].shape)):
        found.setdefault(matrix.grid, name)
    return {name: matrices[name] for name in found.values()}
