# SPDX-License-Identifier: Apache-2.0
"""fp8 weights and activations on CUDA: `torch._scaled_mm`.

Scales by token and by output go into the product where PyTorch has a kernel for that, which is for bfloat16 outputs.
For other outputs the product is left unscaled, in float32, and scaled afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from fewbit.kernels._activations import divided, one_scale, reach, wide
from fewbit.kernels._base import Kernel as Base
from fewbit.kernels._layers import as_rows, finish, not_linear, output_steps, per_output, weight_of
from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.frozen import Terms
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.quantize import quantize

SPEED = 85
_TYPES = (Dtype.fp8_e4m3, Dtype.fp8_e5m2)
_WHOLE = (QSchemeType.per_tensor, QSchemeType.per_token)


def refuses(layer: Any, terms: Terms) -> str | None:
    """Linear layers with fp8 weights and activations, scaled by output and by token or as a whole."""
    other = not_linear(layer)
    coded, quantizer = layer.coded.get("weight"), layer.input_quantizer
    if other is not None or quantizer is None or coded.grid.dtype not in _TYPES:
        return other or ""
    outputs, features = coded.shape
    if terms.device.type != "cuda":
        return f"PyTorch's fp8 product is fast on CUDA only, not on {terms.device.type}"
    if torch.cuda.get_device_capability(terms.device) < (8, 9):
        return "this GPU is older than fp8"
    if quantizer.grid.dtype not in _TYPES:
        return f"activations are {quantizer.grid.dtype.name}"
    if Dtype.fp8_e4m3 not in (coded.grid.dtype, quantizer.grid.dtype):
        return "PyTorch has no product of two e5m2 tensors"
    if not per_output(coded) or quantizer.grid.granularity not in _WHOLE:
        return f"weights are scaled {coded.grid.granularity.value}, activations {quantizer.grid.granularity.value}"
    if terms.exact and coded.dtype is not torch.bfloat16:
        return f"GPUs sum fp8 less precisely than {str(coded.dtype).removeprefix('torch.')}, which the layer is"
    if outputs % 16 or features % 16:
        return f"both sides must be multiples of 16, and {outputs} × {features} are not"
    return None


class Kernel(Base):
    """`scale · step · Σ q w + bias`."""

    holds: ClassVar[tuple[str, ...]] = ("step", "one", "whole")

    def __init__(self, layer: Any, terms: Terms):
        super().__init__(terms)
        weight = weight_of(layer)
        self.step = output_steps(weight)[0]
        self.one = torch.ones((), device=terms.device)
        self.encode = encoder(layer.input_quantizer)
        self.single = weight.scale.numel() == 1 and one_scale(layer.input_quantizer)
        self.whole = self.step[:1].reshape(1, 1).clone()

    def run(self, layer: Any, x: Tensor) -> Tensor:
        """The layer's output."""
        codes, scale = self.encode(as_rows(x))
        weight, bias = layer.weight_packed.t(), layer.bias
        if x.dtype is torch.bfloat16:
            inside = bias if bias is not None and bias.dtype is x.dtype else None
            if self.single:
                factors = (scale.reshape(1, 1), self.whole)
            else:
                factors = (scale.reshape(-1, 1).expand(codes.shape[0], 1).contiguous(), self.step[None])
            out = torch._scaled_mm(codes, weight, *factors, bias=inside, out_dtype=x.dtype)
            return finish(out, bias if inside is None else None, x)
        out = torch._scaled_mm(codes, weight, self.one, self.one, out_dtype=torch.float32)
        return finish(out.mul_(scale).mul_(self.step), bias, x)


def encoder(quantizer: ActivationQuantizer) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """What turns an activation `[tokens, features]` into fp8 codes and their scale, those of `numerics.quantize`.

    >>> encoder(ActivationQuantizer(Grid(Dtype.fp8_e4m3)))(torch.tensor([[448.0, 3.1]]))[0].float()
    tensor([[448.,   3.]])
    """
    grid = quantizer.grid
    largest, per_token = grid.dtype.highest, not one_scale(quantizer)

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        x = wide(x)
        scale = quantizer.scale
        if scale is None:
            scale = divided(reach(x, per_token), largest).clamp_(2.0**-126, 2.0**127 / largest)
        return (x / scale).clamp_(-largest, largest).to(grid.dtype.storage), scale

    def encode_slowly(x: Tensor) -> tuple[Tensor, Tensor]:
        qparams = quantizer.qparams(x)
        return quantize(x, qparams), qparams.step

    return encode if grid == Grid(grid.dtype, grid.granularity) else encode_slowly
