# SPDX-License-Identifier: Apache-2.0
"""int8 weights, float activations: an activation is split into bytes, and each byte is a product in integers.

A token's values, in units of its largest value over 2^23, are integers of three bytes (of two bytes in units of its
largest value over 2^15 for half precision, whose outputs cannot show more). With bytes d,

    Σ x w  =  unit · (65536 Σ d₂ w + 256 Σ d₁ w + Σ d₀ w)

and every sum is exact in int32. So float32 precision costs three integer products, which read the weight once: far
less than one float product reads.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fewbit.kernels._layers import as_rows, finish, not_linear
from fewbit.kernels._products import LARGE
from fewbit.kernels.int8 import Int8Weight, not_int8_weight
from fewbit.modules.frozen import Terms

SPEED = 80
_HALF = (torch.float16, torch.bfloat16)
_FEW = 128  # tokens; with more, a GPU is faster at float products than at several in integers


def refuses(layer: Any, terms: Terms) -> str | None:
    """Linear layers with weights of eight bits, a scale an output, and activations as they are."""
    other = not_linear(layer)
    if other is not None or layer.input_quantizer is not None:
        return other or ""
    outputs, features = layer.coded["weight"].shape
    if terms.device.type == "cpu" and outputs * features < LARGE:
        return ""  # dequantizing so little is faster
    return not_int8_weight(layer, terms)


class Kernel(Int8Weight):
    """`step · (Σ x w - zero · Σ x) + bias`."""

    def run(self, layer: Any, x: Tensor) -> Tensor:
        """The layer's output."""
        rows = as_rows(x)
        if x.device.type != "cpu" and not torch.compiler.is_compiling() and rows.shape[0] > _FEW:
            weight = self.product.codes().to(x.dtype)
            weight = weight if self.zero is None else weight.sub_(self.zero[:, None])
            if x.dtype is torch.float16:  # in which sums that are not scaled yet soon overflow
                return finish(F.linear(rows, weight.mul_(self.step[:, None])), layer.bias, x)
            return finish(F.linear(rows, weight).mul_(self.step), layer.bias, x)
        rows = rows.float()
        digits, unit = split(rows, 2 if x.dtype in _HALF else 3)
        products = self.product(digits.flatten(0, 1), self.step).view(*digits.shape[:2], self.step.shape[0])
        out = products[0]  # and not by unbind, whose views may not be changed where a bias learns
        for place in range(1, len(products)):
            out.add_(products[place], alpha=256**place)
        out.mul_(unit)
        if self.zero is not None:
            out -= rows.sum(-1, keepdim=True) * (self.zero * self.step)
        return finish(out, layer.bias, x)


def split(x: Tensor, digits: int) -> tuple[Tensor, Tensor]:
    """Bytes of each token's values, lowest first, and the token's unit: `x ≈ unit · Σ 256ⁱ bytesᵢ`.

    Args:
        x: float32 `[tokens, features]`.
        digits: how many bytes, two or three.

    Returns:
        int8 `[digits, tokens, features]`, and float32 `[tokens, 1]`.

    >>> bytes_, unit = split(torch.tensor([[1.0, -0.25]]), 2)
    >>> (bytes_[1] * 256.0 + bytes_[0]) * unit
    tensor([[ 1.0000, -0.2500]])
    """
    # Signed bytes hold -128 … 127, so all of them 127 is the largest number; with 128 added to each they are the
    # bytes of a number that is not negative.
    largest, shift = (sum(byte * 256**place for place in range(digits)) for byte in (127, 128))
    # One less, for the two roundings on the way to the largest value's own quotient.
    unit = x.abs().amax(-1, keepdim=True).div_(largest - 1).clamp_(min=2.0**-126)
    # Below 2^24 every integer is a float32, and the sum is one but for halves, which the cast cuts off.
    moved = (x / unit).round_().add_(shift).to(torch.int32)
    each = moved.view(torch.uint8).view(*x.shape, 4)[..., :digits].permute(2, 0, 1)
    return each.bitwise_xor(128).contiguous().view(torch.int8), unit
