# SPDX-License-Identifier: Apache-2.0
"""Scaling a layer's output channels or input channels: the parameters that do it, as new tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fewbit.backends.eager.affine import Affine
from fewbit.backends.eager.catalogue import Layer
from fewbit.errors import UsageError
from fewbit.model.ops import CONV, CONV_TRANSPOSE, LINEAR
from fewbit.model.points import Role


def divided_outputs(layer: Layer, affine: Affine | None, factors: Tensor) -> dict[str, Tensor]:
    """The parameters that divide a layer's output channels, by name and in the module's own layout.

    Args:
        layer: a linear layer, a convolution, or a norm.
        affine: how the norm scales its output.
        factors: one a channel; channels beyond the last one given stay as they are.
    """
    own = layer.module._parameters
    factors = nn.functional.pad(factors, (0, output_channels(layer, affine) - len(factors)), value=1.0)
    if affine is not None:
        weight = own[affine.weight]
        assert weight is not None
        factors = factors.to(weight.device)
        changed = {affine.weight: ((wide(weight) + affine.offset) / factors - affine.offset).to(weight.dtype)}
        bias = own[affine.bias] if affine.bias is not None else None
        if affine.bias is not None and bias is not None:
            changed[affine.bias] = (wide(bias) / factors).to(bias.dtype)
        return changed
    changed = {}
    for slot in layer.slots:
        parameter = own[slot.tensor]
        assert parameter is not None
        ours = slot.ours(parameter.detach())
        by = factors.to(ours.device).reshape(-1, *(1,) * (ours.ndim - 1))
        changed[slot.tensor] = slot.own((wide(ours) / by).to(ours.dtype)).contiguous()
    return changed


def multiplied_inputs(layer: Layer, factors: Tensor) -> dict[str, Tensor]:
    """The parameters that multiply a layer's input channels.

    Args:
        layer: any layer with weights that its input is multiplied with.
        factors: one an input channel.
    """
    changed = {}
    for slot in layer.slots:
        parameter = layer.module._parameters[slot.tensor]
        if not slot.fed or parameter is None:
            continue
        ours = slot.ours(parameter.detach())
        out, kernel = ours.shape[slot.stack], (1,) * (ours.ndim - slot.stack - 2)
        by = factors.to(ours.device).reshape(slot.groups, -1).repeat_interleave(out // slot.groups, 0)
        by = by if slot.groups > 1 else by[:1]
        changed[slot.tensor] = slot.own((wide(ours) * by.reshape(*by.shape, *kernel)).to(ours.dtype)).contiguous()
    return changed


def wide(x: Tensor) -> Tensor:
    """A parameter's values in at least float32, to compute with."""
    return x.detach().to(torch.promote_types(x.dtype, torch.float32))


def output_channels(layer: Layer, affine: Affine | None) -> int:
    """How many output channels a layer has."""
    name = affine.weight if affine is not None else layer.slots[0].tensor
    own = layer.module._parameters[name]
    assert own is not None
    return own.numel() if affine is not None else layer.slots[0].ours(own).shape[0]


def can_divide(layer: Layer) -> bool:
    """Whether a layer of known class has an output that its weight and bias can scale."""
    return layer.op in (LINEAR, CONV, CONV_TRANSPOSE) and any(slot.role is Role.weight for slot in layer.slots)


def spread(channels: tuple[int, ...], factors: Tensor) -> Tensor:
    """Factors of a producer's channels for each input channel of its consumers; 1 where it comes from elsewhere."""
    index = torch.tensor(channels, device=factors.device)
    return torch.where(index >= 0, factors[index.clamp(min=0)], torch.ones_like(factors[:1]))


def checked(producer: str, channels: tuple[int, ...], factors: Tensor) -> Tensor:
    """Factors fit to divide by, in float32.

    Raises:
        UsageError: a factor that is no finite number above zero (a dead channel), one for a channel that is not linked,
            or too few.
    """
    factors = factors.detach().float().flatten()
    if len(factors) <= max(channels):
        raise UsageError(
            f"{len(factors)} factors for the {max(channels) + 1} output channels of {producer}", where=producer
        )
    bad = ((factors <= 0) | ~factors.isfinite()).nonzero().flatten().tolist()
    if bad:
        raise UsageError(
            f"{len(bad)} of {len(factors)} factors for {producer} are not finite numbers above zero",
            where=f"{producer}, channels {', '.join(map(str, bad[:8]))}{' …' if len(bad) > 8 else ''}",
            expected="factors from (0, inf); 1 for a channel that is dead and cannot be scaled",
        )
    linked = torch.zeros(len(factors), dtype=torch.bool)
    linked[[channel for channel in channels if channel >= 0]] = True
    loose = ((factors.cpu() != 1) & ~linked).nonzero().flatten().tolist()
    if loose:
        raise UsageError(
            f"{len(loose)} channels of {producer} have a factor but no consumer that would undo it",
            where=f"{producer}, channels {', '.join(map(str, loose[:8]))}",
            expected="1 for every output channel that the link does not name",
        )
    return factors
