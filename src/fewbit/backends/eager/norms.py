# SPDX-License-Identifier: Apache-2.0
"""Norms without their gains: whether they are the same in every direction, found by holding a mirror up to them."""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.backends.eager.affine import Affine
from fewbit.backends.eager.catalogue import Layer
from fewbit.backends.eager.running import inputs_of
from fewbit.backends.eager.trial import Call, forward, swapped
from fewbit.backends.eager.trials import close
from fewbit.data.tree import map_leaves
from fewbit.model.streaming import Turn


def plain_norm(layer: Layer, affine: Affine) -> dict[str, Tensor]:
    """The parameters with which a norm neither scales nor shifts."""
    weight = layer.module._parameters[affine.weight]
    assert weight is not None
    made = {affine.weight: torch.full_like(weight, 1.0 - affine.offset)}
    bias = layer.module._parameters[affine.bias] if affine.bias is not None else None
    return made if affine.bias is None or bias is None else made | {affine.bias: torch.zeros_like(bias)}


def lets_through(layer: Layer, affine: Affine, call: Call, *, centred: bool) -> bool:
    """Whether a norm without its gains gives of a mirrored input what it gives, mirrored.

    Args:
        layer: the norm.
        affine: how it scales.
        call: what it was called with.
        centred: hold the mirror so that the mean stays what it is: norms that take the mean away know that direction.
    """
    x = inputs_of(layer, *call)[0]
    turn = mirror(x.shape[-1], centred=centred)
    with swapped(layer.module, plain_norm(layer, affine)):
        plain: Tensor = forward(layer.module, call)
        given: Call = map_leaves(lambda leaf: turn(leaf) if leaf is x else leaf, call)
        other: Tensor = forward(layer.module, given)
    return close(other, turn(plain))


def mirror(width: int, *, centred: bool = False) -> Turn:
    """A reflection of so many channels in a random direction: the simplest of all turns that mix them."""
    axis = torch.randn(width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    axis = axis - axis.mean() if centred else axis
    axis = axis / axis.norm().clamp(min=1e-30)

    def turn(x: Tensor) -> Tensor:
        wide, along = x.double(), axis.to(x.device)
        turned: Tensor = wide - 2 * (wide @ along).unsqueeze(-1) * along
        return turned.to(x.dtype)

    return turn
