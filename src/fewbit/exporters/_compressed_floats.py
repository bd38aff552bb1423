# SPDX-License-Identifier: Apache-2.0
"""The tensors of a model that a checkpoint has as floats."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.coded import Quantized
from fewbit.modules.inventory import Inventory
from fewbit.modules.layout import to_own
from fewbit.modules.tensor_file import Entry


def coded_entry(layer: Quantized, name: str, weight: str) -> Entry:
    """A coded parameter as the floats it stands for, in its own layout and dtype; made when it is its turn."""
    coded = layer.coded[weight]
    return Entry(name, coded.dtype, coded.own_shape, partial(_dequantized, layer, weight))


def saved_entries(model: Any, inventory: Inventory) -> tuple[list[Entry], dict[str, str]]:
    """The parameters and buffers that are saved as they are.

    Returns:
        The tensors, a second name with a copy of its own unless a new model ties it by itself; and the names it ties.
    """
    found = {
        name: entry
        for name, entry in inventory.entries.items()
        if inventory.kinds[name] in ("parameter", "buffer") and _is_saved(model, name)
    }
    modules = {path for path, _ in model.named_modules()}  # each once, under its first name
    tied = {}
    for name, first in inventory.aliases.items():
        if first not in found:
            continue
        if name in getattr(model, "all_tied_weights_keys", {}) or name.rpartition(".")[0] not in modules:
            tied[name] = first
        else:
            found[name] = Entry(name, found[first].dtype, found[first].shape, found[first].read)
    return list(found.values()), tied


def _is_saved(model: Any, name: str) -> bool:
    path, _, own = name.rpartition(".")
    owner = model.get_submodule(path)
    skipped = own in owner._non_persistent_buffers_set or name in (model._keys_to_ignore_on_save or ())
    return not skipped and not isinstance(owner, ActivationQuantizer)


def _dequantized(layer: Quantized, weight: str) -> Tensor:
    coded = layer.coded[weight]
    return to_own(layer.codes_of(weight).dequantize(coded.dtype), coded.axes, coded.groups)
