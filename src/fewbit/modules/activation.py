# SPDX-License-Identifier: Apache-2.0
"""The quantizer of an activation: fixed scales found beforehand, or scales found in each call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fewbit.modules.keeping import KeepsDtypes
from fewbit.numerics.blocks import Blocks
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams, from_range
from fewbit.numerics.quantize import fake_quantize


class ActivationQuantizer(KeepsDtypes, nn.Module):
    """Moves an activation onto a grid; a gradient passes through as if it did not.

    Args:
        grid: the grid.
        features: the activation's feature axis.
        fixed: scales found beforehand, `[feature blocks]`; without them every call finds its own.

    >>> import torch
    >>> from fewbit.numerics.dtypes import Dtype
    >>> ActivationQuantizer(Grid(Dtype.int2))(torch.tensor([[1.0, 0.1]]))
    tensor([[0.6667, 0.0000]])
    """

    scale: Tensor | None
    zero_point: Tensor | None
    super_scale: Tensor | None

    def __init__(self, grid: Grid, features: int = -1, fixed: QParams | None = None):
        super().__init__()
        self.grid = grid
        self.features = features
        self.dynamic = fixed is None
        self.register_buffer("scale", None if fixed is None else fixed.scale.flatten())
        zero = None if fixed is None or fixed.zero_point is None else fixed.zero_point.flatten()
        self.register_buffer("zero_point", zero)
        self.register_buffer("super_scale", None if fixed is None else fixed.super_scale)

    def kept_buffers(self) -> tuple[str, ...]:
        """Scales stay float32 in a half model."""
        return ("scale", "zero_point", "super_scale")

    def qparams(self, x: Tensor) -> QParams:
        """Scales and zero points for one activation."""
        block = self.grid.activation_block(tuple(x.shape), features=self.features, dynamic=self.dynamic)
        blocks = Blocks(tuple(x.shape), block)
        if self.scale is not None:
            zero = None if self.zero_point is None else self.zero_point.reshape(blocks.counts)
            return QParams(self.grid, block, self.scale.reshape(blocks.counts), zero, self.super_scale)
        axes = tuple(range(1, 2 * x.ndim, 2))
        parts = blocks.split(x.float())
        return from_range(parts.amin(axes), parts.amax(axes), self.grid, block)

    def forward(self, x: Tensor) -> Tensor:
        tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        if x.requires_grad and torch.is_grad_enabled() and not tracing:  # a trace cannot hold such a function
            passed: Tensor = _StraightThrough.apply(self, x)  # type: ignore[no-untyped-call]
            return passed
        return self.moved(x.detach())

    def moved(self, x: Tensor) -> Tensor:
        """`x` on the grid."""
        return fake_quantize(x, self.qparams(x)) if x.numel() else x.clone()

    def extra_repr(self) -> str:
        kind = "dynamic" if self.dynamic else "static"
        return f"{self.grid.dtype.name}, {self.grid.granularity.value}, {kind}"


class _StraightThrough(torch.autograd.Function):
    """Rounding has no slope anywhere, so that of the identity stands for it; scales are taken as given."""

    @staticmethod
    def forward(ctx: Any, quantizer: ActivationQuantizer, x: Tensor) -> Tensor:  # type: ignore[override]
        return quantizer.moved(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:  # type: ignore[override]
        return None, grad
