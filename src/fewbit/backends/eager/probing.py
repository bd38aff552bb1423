# SPDX-License-Identifier: Apache-2.0
"""Probing: one item shows how modules of unknown class use their matrices."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fewbit.backends.eager.calling import Item, call, on_device
from fewbit.backends.eager.catalogue import Catalogue
from fewbit.backends.eager.contraction import slot_of
from fewbit.backends.eager.guest import guest
from fewbit.backends.eager.slots import Slot
from fewbit.backends.eager.trial import Call
from fewbit.errors import DataError

Seen = dict[tuple[str, str], Slot | str]


def probe(model: nn.Module, found: Catalogue, item: Item) -> Seen:
    """How each parameter in `found.unknown` is used, or in words why that is not to be told.

    Raises:
        DataError: the model fails on the item.
    """
    calls: dict[str, Call] = {}
    names = dict.fromkeys(layer for layer, _ in found.unknown)
    modules = {name: found.layers[name].module for name in names}
    with guest(model):
        handles = [m.register_forward_pre_hook(_keeper(name, calls), with_kwargs=True) for name, m in modules.items()]
        try:
            call(model, on_device(model, item))
        finally:
            for handle in handles:
                handle.remove()
        return {(layer, tensor): _use(found, layer, tensor, calls) for layer, tensor in found.unknown}


def own_example(model: nn.Module) -> Item | None:
    """An item that the model itself offers, as Hugging Face's do; none if it does not."""
    try:
        inputs = getattr(model, "dummy_inputs", None)
    except Exception:  # a property of somebody's class
        return None
    tensors = isinstance(inputs, dict) and inputs and all(isinstance(value, Tensor) for value in inputs.values())
    return ((), dict(inputs)) if tensors and inputs is not None else None


def _keeper(name: str, calls: dict[str, Call]) -> Any:
    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.setdefault(name, (args, kwargs))

    return before


def _use(found: Catalogue, layer: str, tensor: str, calls: dict[str, Call]) -> Slot | str:
    if layer not in calls:
        return "the sample did not reach it"
    try:
        return slot_of(found.layers[layer].module, tensor, calls[layer])
    except Exception as error:
        return f"trying it failed ({type(error).__name__}: {str(error)[:120]})"


def probe_with_own_example(model: nn.Module, found: Catalogue) -> Seen:
    """The same with the model's own example; nothing where it has none or fails on it."""
    item = own_example(model)
    if item is None:
        return {}
    try:
        return probe(model, found, item)
    except DataError:
        return {}
