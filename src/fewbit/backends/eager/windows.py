# SPDX-License-Identifier: Apache-2.0
"""What the kernel of a PyTorch convolution meets of its input, summed over all positions of the output."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from torch import Tensor, nn

from fewbit.model.taps import Reach, conv_reach, taps, transposed_reach, windows
from fewbit.model.watch import PRODUCTS, TAPS, WINDOWS, whole
from fewbit.model.windows import conv_meets, transposed_meets, window_products

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
    layer, x = _read(module, x)
    found = [_axis(layer, axis, length, output_size) for axis, length in enumerate(x.shape[2:])]
    count = len(x) * prod(out for out, _ in found)
    return {TAPS: taps(x, tuple(reach for _, reach in found)), WINDOWS: whole(count, x.device)}


def products_of(module: nn.Module, x: Tensor, output_size: Sequence[int] | None = None) -> dict[str, Tensor]:
    """`products` and `windows` of a convolution; the arguments are those of `taps_of`."""
    layer, x = _read(module, x)
    meets = [_meets(layer, axis, length, output_size) for axis, length in enumerate(x.shape[2:])]
    return {PRODUCTS: window_products(x, meets), WINDOWS: whole(len(x) * prod(map(len, meets)), x.device)}


def _read(module: nn.Module, x: Tensor) -> tuple[Any, Tensor]:
    """A convolution, and its input with a batch axis and with such padding as is no zeros."""
    layer: Any = module
    x = x if x.ndim == len(layer.kernel_size) + 2 else x.unsqueeze(0)
    if not layer.transposed and layer.padding_mode != "zeros":
        x = nn.functional.pad(x, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
    return layer, x


def _axis(layer: Any, axis: int, length: int, output_size: Sequence[int] | None) -> tuple[int, Reach]:
    """The length of the output along one axis, and what the kernel meets there."""
    kernel, stride, dilation = layer.kernel_size[axis], layer.stride[axis], layer.dilation[axis]
    if layer.transposed:
        out = _transposed_out(layer, axis, length, output_size)
        return out, transposed_reach(length, kernel, out, stride, dilation, layer.padding[axis])
    pads = _padding(layer, axis)
    return windows(length, kernel, stride, dilation, pads), conv_reach(length, kernel, stride, dilation, pads)


def _meets(layer: Any, axis: int, length: int, output_size: Sequence[int] | None) -> Tensor:
    """The same window by window."""
    kernel, stride, dilation = layer.kernel_size[axis], layer.stride[axis], layer.dilation[axis]
    if layer.transposed:
        out = _transposed_out(layer, axis, length, output_size)
        return transposed_meets(length, kernel, out, stride, dilation, layer.padding[axis])
    return conv_meets(length, kernel, stride, dilation, _padding(layer, axis))


def _transposed_out(layer: Any, axis: int, length: int, output_size: Sequence[int] | None) -> int:
    """The length of a transposed convolution's output along one axis."""
    if output_size is not None:
        return output_size[axis - len(layer.kernel_size)]
    reach = layer.dilation[axis] * (layer.kernel_size[axis] - 1) + layer.output_padding[axis] + 1
    return int((length - 1) * layer.stride[axis] - 2 * layer.padding[axis] + reach)


def _padding(layer: Any, axis: int) -> tuple[int, int]:
    """Zeros before and after."""
    if layer.padding_mode != "zeros":
        return 0, 0  # the input has its padding already
    if layer.padding == "same":
        total = layer.dilation[axis] * (layer.kernel_size[axis] - 1)
        return total // 2, total - total // 2
    side = 0 if layer.padding == "valid" else layer.padding[axis]
    return side, side
