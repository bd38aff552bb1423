# SPDX-License-Identifier: Apache-2.0
"""Products of int8 codes, accumulated in int32: exact, whatever the order.

Two ways to keep the weight. As it lies in the layer, for `torch._int_mm`: no second form of it, and every device can.
Or in oneDNN's own layout, which a CPU reads without rearranging it first in each call: with few tokens and a large
weight that rearranging is most of the work (2 tokens, 4096 × 4096: 0.4 against 6 ms).
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fewbit.kernels import _operators
from fewbit.kernels._tracing import constant
from fewbit.modules.frozen import exporting

LONGEST = 1 << 16  # features; the sum of more products of bytes may leave int32
LARGE = 1 << 20  # elements; below, oneDNN's fixed costs outweigh what its layout saves


class Product(Protocol):
    """`x @ weightᵀ` in integers."""

    weight: Tensor

    def __call__(self, codes: Tensor, step: Tensor) -> Tensor:
        """`step · Σ codes · weight`, float32 `[m, out]`.

        Args:
            codes: int8 `[m, in]`.
            step: float32 `[out]`.
        """

    def codes(self) -> Tensor:
        """The weight, int8 `[out, in]`."""


class Plain:
    """The weight's codes as they are.

    >>> weight = torch.tensor([[1, -2], [3, 4]], dtype=torch.int8)
    >>> Plain(weight)(torch.tensor([[5, 6]], dtype=torch.int8), torch.ones(2))
    tensor([[-7., 39.]])
    """

    def __init__(self, weight: Tensor):
        self.weight = weight

    def __call__(self, codes: Tensor, step: Tensor) -> Tensor:
        sums = int_mm(codes, self.weight)
        # A GPU converts on the way for nothing; a CPU is slow at two types in one operation.
        return sums.float().mul_(step) if sums.device.type == "cpu" else sums * step

    def codes(self) -> Tensor:
        """The weight, int8 `[out, in]`."""
        return self.weight


class Prepacked:
    """The weight in oneDNN's layout."""

    def __init__(self, weight: Tensor):
        self.weight: Tensor = torch.ops.onednn.qlinear_prepack(weight, None)

    def __call__(self, codes: Tensor, step: Tensor) -> Tensor:
        if exporting():
            return Plain(constant(self.codes))(codes, step)
        moved = codes.bitwise_xor(-128).view(torch.uint8)  # oneDNN is fast with unsigned activations only
        if torch.compiler.is_compiling():
            found: Tensor = torch.ops.fewbit.packed_linear(moved, self.weight, step)
            return found
        return _operators.packed_linear(moved, self.weight, step)

    def codes(self) -> Tensor:
        """The weight, int8 `[out, in]`."""
        return self.weight.to_dense().t().contiguous()


def product(weight: Tensor, *, keep: bool = False) -> Product:
    """The faster way for a weight on its device.

    Args:
        weight: int8 `[out, in]`.
        keep: do not make another form of it.
    """
    if keep or weight.device.type != "cpu" or weight.numel() < LARGE or not has_onednn():
        return Plain(weight)
    return Prepacked(weight)


def int_mm(codes: Tensor, weight: Tensor) -> Tensor:
    """int8 `[m, in]` and `[out, in]` to int32 `[m, out]`; cuBLAS wants more than 16 rows, so a few more are made up."""
    rows = codes.shape[0]
    if codes.device.type == "cpu":
        return torch._int_mm(codes, weight.t())
    more = 17 if torch.compiler.is_compiling() else max(17 - rows, 0)  # a compiler may not know yet how many there are
    return torch._int_mm(F.pad(codes, (0, 0, 0, more)), weight.t())[:rows]


@cache
def has_onednn() -> bool:
    """Whether PyTorch's oneDNN multiplies integers here, and gets them right."""
    weight = torch.arange(-128, 128, dtype=torch.int8).reshape(8, 32)
    codes = weight.flip(0, 1)
    try:
        found = Prepacked(weight)
        right = torch.equal(found(codes, torch.ones(8)), (codes.long() @ weight.long().t()).float())
        return right and torch.equal(found.codes(), weight)
    except (RuntimeError, AttributeError, NotImplementedError, TypeError):
        return False
