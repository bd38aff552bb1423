# SPDX-License-Identifier: Apache-2.0
"""Which layers compute what a kernel computes: not a subclass that has a forward of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from fewbit.modules.quantized import get_weight
from fewbit.numerics.qtensor import QTensor


def not_linear(layer: Any) -> str | None:
    """Why a layer is no plain matrix product with `weight` and `bias`; empty if it is nothing like it.

    >>> from fewbit.modules.quantized import make_quantized
    >>> not_linear(make_quantized(nn.Conv2d(1, 1, 1)))
    ''
    """
    kind = layer.float_class
    if "weight" not in layer.coded or not (issubclass(kind, nn.Linear) or _is_conv1d(kind)):
        return ""
    if issubclass(kind, NonDynamicallyQuantizableLinear):
        return "the attention around it reads its weight and never calls it"
    if issubclass(kind, nn.Linear) and kind.forward is not nn.Linear.forward:
        return f"{kind.__name__} has a forward of its own"
    return turned(layer, (1, 0) if _is_conv1d(kind) else (0, 1))


def not_embedding(layer: Any) -> str | None:
    """Why a layer is no plain table look-up; empty if it is nothing like it."""
    if "weight" not in layer.coded or not issubclass(layer.float_class, nn.Embedding):
        return ""
    if layer.max_norm is not None:
        return "max_norm changes the table while it is read"
    return turned(layer, (0, 1))


def turned(layer: Any, axes: tuple[int, ...]) -> str | None:
    """Why kernels cannot use a layer's codes as they lie, if they do not lie as its class has them.

    Args:
        layer: with one quantized `weight`.
        axes: the permutation from fewbit's layout to that of the class.
    """
    return None if layer.coded["weight"].axes == axes else "its weight is that of another layer, transposed"


def weight_of(layer: Any) -> QTensor:
    """The layer's weight."""
    return get_weight(layer, "weight")


def per_output(weight: QTensor) -> bool:
    """Whether everything that makes up one output shares one scale."""
    return weight.block[0] in (1, weight.shape[0]) and weight.block[1:] == weight.shape[1:]


def output_steps(weight: QTensor) -> tuple[Tensor, Tensor | None]:
    """Of a weight that is scaled output by output: the step and the zero point of each, float32 `[out]`."""
    qparams, outputs = weight.qparams, weight.shape[0]
    zero = None if qparams.zero_point is None else qparams.zero_point.flatten().expand(outputs).contiguous()
    return qparams.step.flatten().expand(outputs).contiguous(), zero


def as_rows(x: Tensor) -> Tensor:
    """An activation as `[tokens, features]`, its rows one after the other."""
    # Not every kernel takes rows that lie apart, and a copy is cheap beside a product.
    return (x if x.ndim == 2 else x.reshape(-1, x.shape[-1])).contiguous()


def finish(out: Tensor, bias: Tensor | None, x: Tensor, scale: Tensor | None = None) -> Tensor:
    """What a product gave for `as_rows(x)`, with the bias, in the shape and dtype that a linear layer would give for
    `x`.

    Args:
        out: `[tokens, out]`; changed.
        bias: `[out]`, or none.
        x: the activation.
        scale: to multiply with first, `[1]` or `[tokens, 1]`; or none.
    """
    if scale is not None and bias is not None and out.device.type != "cpu":
        out = torch.addcmul(bias, out, scale)  # one pass less; on a CPU a pass over fresh memory costs more than two
    else:
        out = out if scale is None else out.mul_(scale)
        out = out if bias is None else out.add_(bias)
    if out.dtype is not x.dtype:
        out = out.to(x.dtype)
    return out if x.ndim == 2 else out.reshape(*x.shape[:-1], out.shape[-1])


def _is_conv1d(kind: type[nn.Module]) -> bool:
    """Hugging Face's linear layer with a transposed weight, known without importing the library."""
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"
