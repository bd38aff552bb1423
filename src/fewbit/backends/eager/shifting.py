# SPDX-License-Identifier: Apache-2.0
"""Adding to a layer's output channels: its bias, or one made for it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fewbit.backends.eager.catalogue import Layer
from fewbit.backends.eager.rescaling import wide
from fewbit.backends.eager.slots import float_shape, kind_of
from fewbit.backends.eager.windows import computes_as_torch
from fewbit.errors import UsageError
from fewbit.model.ops import CONV, CONV_TRANSPOSE, LINEAR
from fewbit.modules.quantized import Quantized


def shifted_bias(layer: Layer, amount: Tensor) -> nn.Parameter:
    """The bias that makes a layer's output larger by an amount.

    Args:
        layer: a linear layer or a convolution, its weight as floats or as codes.
        amount: one number for each output channel.

    Raises:
        UsageError: a layer that has no place for a bias, or whose bias is codes or in a kernel; an amount that is not
            finite or of another shape.
    """
    fault = _fault(layer)
    if fault is not None:
        raise UsageError(f"the output of {layer.name} cannot be shifted: {fault[0]}", where=layer.name, try_=fault[1])
    slot = layer.slot("weight")
    assert slot is not None
    own, dtype = float_shape(layer.module, "weight")
    channels = slot.ours(torch.empty(own, device="meta")).shape[0]
    if tuple(amount.shape) != (channels,) or not bool(amount.isfinite().all()):
        raise UsageError(
            f"an amount of shape {tuple(amount.shape)}, {int(amount.isfinite().sum())} of it finite",
            where=layer.name,
            expected=f"a finite number for each of the {channels} output channels",
        )
    before = layer.module._parameters["bias"]
    if before is not None:
        added = wide(before) + amount.detach().to(before.device, wide(before).dtype)
        return nn.Parameter(added.to(before.dtype), before.requires_grad)
    weight = layer.module._parameters.get("weight")
    place = weight if weight is not None else layer.module._buffers["weight_packed"]
    assert place is not None
    return nn.Parameter(amount.detach().to(place.device, dtype, copy=True), weight is not None and weight.requires_grad)


def _fault(layer: Layer) -> tuple[str, str | None] | None:
    """Why a layer's output cannot be shifted, and what to try; none if it can be."""
    module = layer.module
    kind = type(module).__name__
    if layer.op is None or kind_of(module) not in (LINEAR, CONV, CONV_TRANSPOSE):
        return f"{kind} is no linear layer and no convolution", None
    if isinstance(module, Quantized) and module.kernel is not None:
        return "it is frozen, a kernel holds its bias", "shift before freeze"
    if isinstance(module, Quantized) and "bias" in module.coded:
        return "its bias is codes already", "shift before the bias is quantized"
    if "bias" not in module._parameters:
        return f"{kind} has no place for a bias", None
    if module._parameters["bias"] is None and not computes_as_torch(module):
        return f"{kind} has a forward of its own and no bias: one made now might never be read", None
    return None
