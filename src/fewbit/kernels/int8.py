# SPDX-License-Identifier: Apache-2.0
"""int8 weights and int8 activations: one product in integers, scaled afterwards.

With codes q and w, zero points z and v, and R the sum of a token's codes, S the sum of an output's:

    Σ (q - z) (w - v)  =  Σ q w  -  z · (S - n v)  -  v · R

The sums are exact in int32; what follows is a few products in float32 for each output.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from fewbit.kernels._activations import encoder, not_int8
from fewbit.kernels._base import Kernel as Base
from fewbit.kernels._layers import as_rows, finish, not_linear, output_steps, per_output, weight_of
from fewbit.kernels._products import LONGEST, product
from fewbit.modules.frozen import Terms

SPEED = 90


def refuses(layer: Any, terms: Terms) -> str | None:
    """Linear layers with weights of eight bits, a scale an output, and activations of at most eight bits."""
    other = not_linear(layer)
    if other is not None or layer.input_quantizer is None:
        return other or ""
    weight = not_int8_weight(layer, terms)
    return weight if weight == "" else not_int8(layer.input_quantizer) or weight


def not_int8_weight(layer: Any, terms: Terms) -> str | None:
    """Why a weight cannot be int8 codes with a scale an output; empty if nothing like it."""
    coded = layer.coded["weight"]
    outputs, features = coded.shape
    if not coded.grid.dtype.is_integer or coded.grid.dtype.bits != 8:
        return ""
    if coded.grid.free_zero:
        return "its zero points are no integers"
    if not per_output(coded):
        return f"its weights are scaled {coded.grid.granularity.value}, not output by output"
    if features == 1:
        return "torch._int_mm gives wrong numbers for a single feature"
    if features > LONGEST:
        return f"sums over {features} features may leave int32"
    if terms.exact and coded.dtype is torch.float64:
        return "it computes in float32, and the layer is float64"
    if terms.shared and not coded.grid.dtype.signed:
        return "other layers use the same unsigned codes, and they would have to change"
    if terms.device.type not in ("cpu", "cuda"):
        return f"PyTorch has no integer product on {terms.device.type}"
    if terms.device.type == "cuda" and (outputs % 8 or features % 8):
        return f"on CUDA both sides must be multiples of 8, and {outputs} × {features} are not"
    return None


class Int8Weight(Base):
    """What kernels with int8 weights share: the product, and each output's step and zero point."""

    holds: ClassVar[tuple[str, ...]] = ("weight", "step", "zero")

    def __init__(self, layer: Any, terms: Terms):
        super().__init__(terms)
        weight = weight_of(layer)
        self.step, zero = output_steps(weight)
        self.unsigned = not weight.grid.dtype.signed
        codes = weight.packed.bitwise_xor(128).view(torch.int8) if self.unsigned else weight.packed
        self.product = product(codes, keep=terms.shared)
        # One zero point more is no zero point, once unsigned codes are moved.
        self.zero = zero - 128 if self.unsigned and zero is not None else zero
        if self.zero is not None and not self.zero.any():
            self.zero = None
        self.takes = ("packed",) if self.product.weight is not weight.packed else ()

    @property
    def weight(self) -> Tensor | None:
        """The codes, if they live here."""
        return self.product.weight if self.takes else None

    def parts(self) -> dict[str, Tensor]:
        """The codes as the layer had them."""
        codes = self.product.codes()
        return {"packed": codes.view(torch.uint8).bitwise_xor(128) if self.unsigned else codes}


class Kernel(Int8Weight):
    """`scale · step · (Σ q w - …) + bias`."""

    holds: ClassVar[tuple[str, ...]] = ("weight", "step", "zero", "sums")

    def __init__(self, layer: Any, terms: Terms):
        super().__init__(layer, terms)
        self.encode = encoder(layer.input_quantizer)
        self.sums: Tensor | None = None
        if layer.input_quantizer.grid.has_zero_point:
            codes = self.product.codes()
            sums = codes.sum(1, dtype=torch.int64).float()  # exact: below 2^24
            self.sums = (sums if self.zero is None else sums - codes.shape[1] * self.zero) * self.step

    def run(self, layer: Any, x: Tensor) -> Tensor:
        """The layer's output."""
        coding = self.encode(as_rows(x))
        out = self.product(coding.codes, self.step)
        if self.zero is not None:
            rows = coding.codes.sum(-1, keepdim=True, dtype=torch.int32).float()
            out -= rows * (self.zero * self.step)
        if coding.zero is not None and self.sums is not None:
            out -= coding.zero * self.sums
        return finish(out, layer.bias, x, coding.scale)
