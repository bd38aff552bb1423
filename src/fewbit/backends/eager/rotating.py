# SPDX-License-Identifier: Apache-2.0
"""Turning a stream: the parameters of everyone who writes to it or reads it, each computed once in float64."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.backends.eager.affine import Affine
from fewbit.backends.eager.catalogue import Layer
from fewbit.backends.eager.configs import with_true
from fewbit.backends.eager.heads import by_heads, turned_outputs
from fewbit.backends.eager.norms import plain_norm
from fewbit.backends.eager.streaming import output_slots
from fewbit.backends.eager.ties import identity
from fewbit.model.ops import EMBEDDING
from fewbit.model.points import Role
from fewbit.model.streaming import Heads, Stream, Turn


@dataclass
class _Ends:
    """What becomes of a layer: of its inputs, and of its outputs."""

    inputs: Turn | None = None
    outputs: Turn | None = None
    width: int | None = None  # of outputs that are added to the stream


def rotated(
    layers: Mapping[str, Layer], affine: Mapping[str, Affine], stream: Stream, by: Turn, heads: Mapping[int, Turn]
) -> dict[tuple[str, str], Tensor]:
    """New parameters, by layer and name, in the module's own layout and type.

    Args:
        layers: of the model.
        affine: how its norms scale.
        stream: which is turned.
        by: its turn.
        heads: the turns of heads, by their size.
    """
    ends: dict[str, _Ends] = {}
    changed: dict[tuple[str, str], Tensor] = {}
    for name in stream.readers:
        ends.setdefault(name, _Ends()).inputs = by
    for norm, names in stream.norms.items():
        gain, shift = _gains(layers[norm], affine[norm])
        for name in names:
            ends.setdefault(name, _Ends()).inputs = _scaled(gain, by)
        for tensor, value in plain_norm(layers[norm], affine[norm]).items():
            changed[norm, tensor] = value
        if affine[norm].bias is not None and shift is not None:
            changed[norm, str(affine[norm].bias)] = by(torch.where(gain != 0, shift / gain, 0.0)).to(
                changed[norm, str(affine[norm].bias)].dtype
            )
    for name in stream.writers:
        end = ends.setdefault(name, _Ends())
        end.outputs, end.width = by, stream.width
    for each in stream.heads:
        if each.size in heads:
            ends.setdefault(each.link.producer, _Ends()).outputs = _in_outputs(each, heads[each.size])
            for name in each.link.consumers:
                ends.setdefault(name, _Ends()).inputs = _in_inputs(each, heads[each.size])
    for name, end in ends.items():
        changed |= {(name, tensor): value for tensor, value in _turned(layers[name], end)}
    return changed


def untie(model: nn.Module, layers: Mapping[str, Layer], changed: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The names of parameters that are one tensor with others, and will be one no more.

    A Hugging Face configuration that says they are one is told otherwise: whoever opens the model by it has to know.
    """
    users: dict[Any, list[str]] = {}
    for name, tensor in changed:
        own = layers[name].module._parameters[tensor]
        assert own is not None
        users.setdefault(identity(own), []).append(f"{name}.{tensor}")
    parted = tuple(user for names in users.values() if len(names) > 1 for user in names)
    for config in with_true(model, "tie_word_embeddings") if parted else ():
        config.tie_word_embeddings = False
    return parted


def _gains(layer: Layer, affine: Affine) -> tuple[Tensor, Tensor | None]:
    """What a norm multiplies with, and what it adds, in float64."""
    weight = layer.module._parameters[affine.weight]
    assert weight is not None
    bias = layer.module._parameters[affine.bias] if affine.bias is not None else None
    return weight.detach().double() + affine.offset, None if bias is None else bias.detach().double()


def _turned(layer: Layer, end: _Ends) -> Iterable[tuple[str, Tensor]]:
    made = layer.slots if end.width is None else output_slots(layer, end.width)
    for slot in layer.slots:
        own = layer.module._parameters[slot.tensor]
        assert own is not None
        x = slot.ours(own.detach())
        plain = x
        if slot.fed and end.inputs is not None:
            x = end.inputs(x.double())
        if end.outputs is not None and slot in made:
            along = slot.role is Role.bias or layer.op is EMBEDDING
            wide = x if layer.op is EMBEDDING else x.double()
            x = end.outputs(wide) if along else end.outputs(wide.transpose(-1, -2).contiguous()).transpose(-1, -2)
        if x is not plain:
            yield slot.tensor, slot.own(x.to(own.dtype)).contiguous()


def _scaled(gain: Tensor, by: Turn) -> Turn:
    return lambda x: by(x * gain.to(x.device))


def _in_outputs(heads: Heads, turn: Turn) -> Turn:
    return lambda x: turned_outputs(x, heads, turn)


def _in_inputs(heads: Heads, turn: Turn) -> Turn:
    return lambda x: by_heads(x, heads.size, turn)
