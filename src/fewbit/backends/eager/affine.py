# SPDX-License-Identifier: Apache-2.0
"""Norms of any class: which parameter multiplies each output channel, which is added, found by trying.

A norm computes n(x) · (weight + offset) + bias. The offset is zero in most classes and one in some (Gemma's), and the
names are whatever their authors liked. Adding one to a parameter shows which is which.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.backends.eager.trial import Call, forward, swapped
from fewbit.data.tree import map_leaves


@dataclass(frozen=True)
class Affine:
    """How the output channels of a norm are scaled.

    Args:
        weight: the parameter that multiplies.
        bias: the parameter that is added, or none.
        offset: what is added to the weight before it multiplies.
        features: the output's channel axis, counted from the end.
    """

    weight: str
    bias: str | None
    offset: float
    features: int


def affine_of(module: nn.Module, call: Call) -> Affine | None:
    """How a module scales its output channels by vectors, or none if it does not.

    Args:
        module: of any class; its own parameters are looked at.
        call: what it was called with.
    """
    vectors = {name: p for name, p in module._parameters.items() if p is not None and p.is_floating_point()}
    sizes = {tuple(p.shape) for p in vectors.values()}
    if len(sizes) != 1 or len(vectors) > 2 or len(sizes.pop()) != 1:
        return None
    if any(p.element_size() < 4 for p in vectors.values()):  # half types lose what one more adds to a large gain
        with swapped(module, {name: p.detach().float() for name, p in vectors.items()}), suppress(RuntimeError):
            return affine_of(module, map_leaves(_in_float32, call))
    out = forward(module, call)
    if not isinstance(out, Tensor) or not out.is_floating_point():
        return None
    side = next(iter(vectors.values())).numel()
    axis = next((axis for axis in (-1, 1 - out.ndim) if out.ndim > 1 and out.shape[axis] == side > 1), None)
    if axis is None:
        return None
    changes = {name: _change(module, name, call, out) for name in vectors}
    added = [name for name, change in changes.items() if torch.allclose(change, torch.ones_like(change), atol=0.02)]
    scaled = [name for name in changes if name not in added]
    if len(scaled) != 1 or len(added) != len(vectors) - 1:
        return None
    bias = added[0] if added else None
    offset = _offset(out, changes[scaled[0]], vectors[scaled[0]], vectors.get(str(bias)), axis)
    return None if offset is None else Affine(scaled[0], bias, offset, axis)


def _in_float32(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def along(vector: Tensor, axis: int, like: Tensor) -> Tensor:
    """A vector shaped to be broadcast along one axis of a tensor."""
    return vector.reshape([-1 if place == axis % like.ndim else 1 for place in range(like.ndim)])


def _change(module: nn.Module, name: str, call: Call, out: Tensor) -> Tensor:
    parameter: Any = module._parameters[name]
    with swapped(module, {name: parameter.detach() + 1}):
        changed: Tensor = forward(module, call)
    return changed.float() - out.float()


def _offset(out: Tensor, normal: Tensor, weight: Tensor, bias: Tensor | None, axis: int) -> float | None:
    """What has to be added to the weight so that out = normal · (weight + offset) + bias; none if nothing does."""
    rest = out.float() if bias is None else out.float() - along(bias.float(), axis, out)
    rest = rest - normal * along(weight.float(), axis, out)
    offset = float((rest * normal).sum() / (normal * normal).sum().clamp(min=1e-30))
    offset = float(round(offset)) if abs(offset - round(offset)) < 0.02 else offset
    tolerance = 0.05 if out.element_size() < 4 else 1e-3
    error = (rest - offset * normal).abs().max()
    return offset if bool(error <= tolerance * out.float().abs().max().clamp(min=1e-6)) else None
