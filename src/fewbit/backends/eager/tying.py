# SPDX-License-Identifier: Apache-2.0
"""Layers that runtimes make one of, found by one forward.

Layers that read the very same tensor become one wider layer (queries, keys and values; the two halves of a gated MLP).
Modules in a list, of which each reads rows of what the module around the list reads, are experts, and run as one; the
blocks of a model, which are a list too, read one another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.backends.eager.calling import Item, call, on_device, small
from fewbit.backends.eager.catalogue import Catalogue
from fewbit.backends.eager.guest import guest
from fewbit.backends.eager.padding import masks_of
from fewbit.backends.eager.running import inputs_of
from fewbit.data.tree import flatten
from fewbit.errors import DataError
from fewbit.model.sensing import merged

Read = tuple[Tensor, int]
"""A tensor, and how often it had been written to when it was read."""


def tied_layers(model: nn.Module, found: Catalogue, item: Item) -> list[tuple[str, ...]]:
    """The groups, of two layers or more.

    Args:
        model: the model.
        found: its catalogue.
        item: what it is called with; a small part of it is enough, if the model takes it.
    """
    with guest(model):
        item = on_device(model, item)
        masks = masks_of(model, item)
        try:
            return _tied(model, found, small(item, masks[0] if masks else None))
        except DataError:
            return _tied(model, found, item)


def _tied(model: nn.Module, found: Catalogue, item: Item) -> list[tuple[str, ...]]:
    layers = {name: layer for name, layer in found.layers.items() if any(slot.fed for slot in layer.slots)}
    lists = {name: each for name, each in model.named_modules() if isinstance(each, nn.ModuleList | nn.ModuleDict)}
    reads: dict[str, list[Read]] = {}
    handles = []
    for name, layer in layers.items():
        take = partial(inputs_of, layer)
        handles.append(layer.module.register_forward_pre_hook(_reading(reads, name, take), with_kwargs=True))
    for name, holder in lists.items():
        around = name.rpartition(".")[0]
        for path in (around, *(f"{name}.{key}" for key, _ in holder.named_children())):
            if path not in layers:
                module = model.get_submodule(path)
                handles.append(module.register_forward_pre_hook(_reading(reads, path, _tensors), with_kwargs=True))
    try:
        call(model, item)
    finally:
        for handle in handles:
            handle.remove()
    same: dict[tuple[int, int], list[str]] = {}
    for name in layers:
        for x, version in reads.get(name, ())[:1]:
            same.setdefault((id(x), version), []).append(name)
    alike = [name for name in lists if _are_experts(name, lists, reads)]
    experts = [[layer for layer in found.layers if layer.startswith(f"{name}.")] for name in alike]
    return merged([*same.values(), *experts])


def _are_experts(name: str, lists: Mapping[str, nn.Module], reads: Mapping[str, list[Read]]) -> bool:
    """Whether two modules of a list read rows of what the module around it reads."""
    given = [x for x, _ in reads.get(name.rpartition(".")[0], ())]
    members = [reads.get(f"{name}.{key}", []) for key, _ in lists[name].named_children()]
    return sum(any(_is_row(x, y) for x, _ in member[:1] for y in given) for member in members) > 1


def _is_row(x: Tensor, of: Tensor) -> bool:
    """Whether the first row of one tensor is a row of another."""
    if not (x.ndim and of.ndim and x.numel() and x.is_floating_point()) or x.dtype != of.dtype or x.device != of.device:
        return False
    first = x.reshape(-1, x.shape[-1])[0]
    return x.shape[-1] == of.shape[-1] and bool((of.reshape(-1, of.shape[-1]) == first).all(-1).any())


def _reading(reads: dict[str, list[Read]], name: str, take: Callable[..., list[Tensor]]) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name not in reads:
            reads[name] = [(x, x._version) for x in take(args, kwargs)]

    return hook


def _tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    return [leaf for _, leaf in flatten((args, dict(kwargs))) if isinstance(leaf, torch.Tensor)]
