# SPDX-License-Identifier: Apache-2.0
"""Smaller tensors in the place of larger ones, and zeros in the place of what is taken out, to compare with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.sparsity.shrinking.groups import Group, Member
from fewbit.sparsity.shrinking.tracing import named_tensors


def kept_places(member: Member, gone: Iterable[int]) -> Tensor:
    """Which places along an axis stay."""
    return ~torch.isin(member.classes, torch.tensor(sorted(gone), dtype=torch.int64))


def cuts(groups: Iterable[Group], gone: Iterable[int]) -> dict[str, dict[int, Tensor]]:
    """For each tensor that changes, the places that stay along each of its axes.

    Args:
        groups: of the module.
        gone: the classes that are taken out.
    """
    gone = set(gone)
    found: dict[str, dict[int, Tensor]] = {}
    for group in groups:
        for member in group.members:
            stay = kept_places(member, gone)
            if not bool(stay.all()):
                found.setdefault(member.tensor, {})[member.axis] = stay
    return found


def cut(model: nn.Module, places: Mapping[str, Mapping[int, Tensor]]) -> None:
    """Take out of a module's tensors what does not stay."""
    smaller = {}
    for name, axes in places.items():
        tensor = smaller[name] = named_tensors(model)[name]
        for axis, stay in axes.items():
            smaller[name] = smaller[name].detach().index_select(axis, stay.nonzero().flatten().to(tensor.device))
    put(model, smaller)


def zeroed(model: nn.Module, groups: Iterable[Group], gone: Iterable[int]) -> None:
    """Let nothing read the channels that are to be taken out."""
    gone = set(gone)
    changed: dict[str, Tensor] = {}
    tensors = named_tensors(model)
    for member in (member for group in groups for member in group.readers):
        stay = kept_places(member, gone)
        if not bool(stay.all()):
            tensor = changed.get(member.tensor, tensors[member.tensor].detach())
            along = [-1 if axis == member.axis else 1 for axis in range(tensor.ndim)]
            changed[member.tensor] = tensor * stay.view(along).to(tensor)
    put(model, changed)


def put(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put other tensors in the place of a module's, wherever they are shared."""
    old = named_tensors(model)
    new = {id(old[name]): tensor for name, tensor in tensors.items()}
    made: dict[int, Tensor] = {}
    for module in model.modules():
        tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for table in tables:
            for name, tensor in table.items():
                if tensor is None or id(tensor) not in new:
                    continue
                if id(tensor) not in made:
                    fresh = new[id(tensor)].detach().clone()
                    is_parameter = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = nn.Parameter(fresh, tensor.requires_grad) if is_parameter else fresh
                table[name] = made[id(tensor)]
