# SPDX-License-Identifier: Apache-2.0
"""int8 convolutions on CPU: oneDNN, weights in its own layout."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewbit.kernels import _operators
from fewbit.kernels._activations import Coding, encoder, not_int8, one_scale
from fewbit.kernels._base import Kernel as Base
from fewbit.kernels._layers import output_steps, per_output, turned, weight_of
from fewbit.kernels._products import LONGEST
from fewbit.kernels._tracing import constant
from fewbit.modules.frozen import Terms, exporting
from fewbit.numerics.dtypes import Dtype

SPEED = 90
_FLOAT: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: F.conv1d,
    nn.Conv2d: F.conv2d,
    nn.Conv3d: F.conv3d,
}


def refuses(layer: Any, terms: Terms) -> str | None:
    """Convolutions with int8 weights, a scale an output, and activations of at most eight bits with one scale."""
    kind, coded = layer.float_class, layer.coded.get("weight")
    base = _base(kind)
    if base is None or coded is None or layer.input_quantizer is None or coded.grid.dtype is not Dtype.int8:
        return ""
    if kind.forward is not base.forward:
        return f"{kind.__name__} has a forward of its own"
    if (why := turned(layer, tuple(range(len(coded.shape))))) is not None:
        return why
    if (why := not_int8(layer.input_quantizer)) is not None:
        return why
    if not one_scale(layer.input_quantizer):
        return "activations are scaled by token, and a window spans several"
    if terms.device.type != "cpu" or not _available():
        return f"PyTorch has no int8 convolution on this {terms.device.type}"
    if coded.grid.has_zero_point or not per_output(coded):
        return "its weights need a scale an output and no zero point"
    if layer.padding_mode != "zeros" or _padding(layer) is None:
        return "it pads with something other than as many zeros on either side"
    if terms.exact and coded.dtype is torch.float64:
        return "it computes in float32, and the layer is float64"
    if terms.shared:
        return "other layers use the same codes, and they would have to change"
    return "sums may leave int32" if prod(coded.shape[1:]) > LONGEST else None


class Kernel(Base):
    """`scale · step · Σ (q - zero) · w + bias`, over a window."""

    takes = ("packed",)
    holds: ClassVar[tuple[str, ...]] = ("weight", "step")

    def __init__(self, layer: Any, terms: Terms):
        super().__init__(terms)
        weight = weight_of(layer)
        padding = _padding(layer)
        assert padding is not None
        self.shape = weight.shape
        self.geometry = (list(layer.stride), padding, list(layer.dilation), layer.groups)
        self.step = output_steps(weight)[0]
        self.encode = encoder(layer.input_quantizer)
        self.float = _FLOAT[_base(layer.float_class)]
        self.weight: Tensor = torch.ops.onednn.qconv_prepack(weight.packed, self.step, 1.0, 0, *self.geometry, None)

    def run(self, layer: Any, x: Tensor) -> Tensor:
        """The layer's output."""
        if x.ndim == len(self.shape) - 1:
            return self.run(layer, x.unsqueeze(0)).squeeze(0)
        coding = self.encode(x)
        bias = None if layer.bias is None else layer.bias.detach().float()  # oneDNN gives no gradient
        if exporting():
            return self._plain(coding, bias).to(x.dtype)
        codes = coding.codes.bitwise_xor(-128).view(torch.uint8)
        zero = torch.full((), 128) if coding.zero is None else (coding.zero + 128).int()
        compiling = torch.compiler.is_compiling()
        run = torch.ops.fewbit.packed_convolution if compiling else _operators.packed_convolution
        out: Tensor = run(codes, coding.scale, zero, self.weight, self.step, bias, *self.geometry)
        return out.to(x.dtype)

    def _plain(self, coding: Coding, bias: Tensor | None) -> Tensor:
        """The same with PyTorch's own operators: float products of whole numbers, which are exact below 2^24."""
        elements = coding.codes.float() if coding.zero is None else coding.codes - coding.zero
        out = self.float(elements, constant(self._codes).float(), None, *self.geometry)
        each = (-1, *(1 for _ in self.shape[2:]))
        out = out * (coding.scale * self.step).reshape(each)
        return out if bias is None else out + bias.reshape(each)

    def _codes(self) -> Tensor:
        return self.weight.to_dense().reshape(self.shape)

    def parts(self) -> dict[str, Tensor]:
        """The codes as the layer had them."""
        return {"packed": self._codes()}


def _base(kind: type[nn.Module]) -> Any:
    return next((base for base in _FLOAT if issubclass(kind, base)), None)


def _padding(layer: Any) -> list[int] | None:
    """Zeros on either side of each axis; none if the sides differ."""
    if layer.padding == "valid":
        return [0] * len(layer.stride)
    if layer.padding != "same":
        return list(layer.padding)
    both = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size)]
    return None if any(total % 2 for total in both) else [total // 2 for total in both]


@cache
def _available() -> bool:
    """Whether PyTorch's oneDNN convolves integers here, and gives the weight back."""
    # The largest of both side by side: old processors add products of bytes in pairs, in int16, which is too short.
    weight = torch.arange(-128, 128).to(torch.int8).reshape(2, 32, 2, 2)
    codes = torch.arange(288).flip(0).clamp(max=255).to(torch.uint8).reshape(1, 32, 3, 3)
    geometry = ([1, 1], [1, 1], [1, 1], 1)
    try:
        packed = torch.ops.onednn.qconv_prepack(weight, torch.ones(2), 1.0, 0, *geometry, None)
        zero = torch.full((), 7)
        out = _operators.packed_convolution(codes, torch.ones(()), zero, packed, torch.ones(2), None, *geometry)
        right = torch.equal(out, F.conv2d(codes - 7.0, weight.float(), padding=1))
        return right and torch.equal(packed.to_dense().reshape(weight.shape), weight)
    except (RuntimeError, AttributeError, NotImplementedError, TypeError):
        return False
