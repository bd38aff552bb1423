# SPDX-License-Identifier: Apache-2.0
"""What the kernel of a PyTorch convolution meets of its input, summed over all positions of the output."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from torch import Tensor, nn

from fewbit.model.taps import Reach, conv_reach, taps, transposed_reach, windows
from fewbit.model.watch import TAPS, WINDOWS, whole

_CLASSES = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def computes_as_torch(module: nn.Module) -> bool:
    """Whether a linear layer or convolution runs the forward that PyTorch's own class has."""
    kind: Any = getattr(type(module), "float_class", type(module))
    for own in (nn.Linear, *_CLASSES):
        if isinstance(module, own):
            names = ("forward", "_conv_forward", "_output_padding")
            same = all(getattr(kind, name, None) is getattr(own, name, None) for name in names)
            return same and not any(name in vars(module) for name in names)
    return False


def taps_of(module: nn.Module, x: Tensor, output_size: Sequence[int] | None = None) -> dict[str, Tensor]:
    """`taps` and `windows` of a convolution, every position of its output counted, padding of the text or not.

    Args:
        module: one that `computes_as_torch`.
        x: its input, with or without a batch axis.
        output_size: what a transposed convolution was told the output's size is.
    """
    layer: Any = module
    axes = len(layer.kernel_size)
    x = x if x.ndim == axes + 2 else x.unsqueeze(0)
    if not layer.transposed and layer.padding_mode != "zeros":
        x = nn.functional.pad(x, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
    found = [_axis(layer, axis, x.shape[2 + axis], output_size) for axis in range(axes)]
    count = len(x) * prod(out for out, _ in found)
    return {TAPS: taps(x, tuple(reach for _, reach in found)), WINDOWS: whole(count, x.device)}


def _axis(layer: Any, axis: int, length: int, output_size: Sequence[int] | None) -> tuple[int, Reach]:
    """The length of the output along one axis, and what the kernel meets there."""
    kernel, stride, dilation = layer.kernel_size[axis], layer.stride[axis], layer.dilation[axis]
    if layer.transposed:
        pad = layer.padding[axis]
        out = (length - 1) * stride - 2 * pad + dilation * (kernel - 1) + layer.output_padding[axis] + 1
        if output_size is not None:
            out = output_size[axis - len(layer.kernel_size)]
        return out, transposed_reach(length, kernel, out, stride, dilation, pad)
    pads = _padding(layer, axis)
    return windows(length, kernel, stride, dilation, pads), conv_reach(length, kernel, stride, dilation, pads)


def _padding(layer: Any, axis: int) -> tuple[int, int]:
    """Zeros before and after."""
    if layer.padding_mode != "zeros":
        return 0, 0  # the input has its padding already
    if layer.padding == "same":
        total = layer.dilation[axis] * (layer.kernel_size[axis] - 1)
        return total // 2, total - total // 2
    side = 0 if layer.padding == "valid" else layer.padding[axis]
    return side, side
