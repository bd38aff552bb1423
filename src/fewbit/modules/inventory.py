# SPDX-License-Identifier: Apache-2.0
"""Every tensor of a module tree by name, each once: parameters, buffers of both kinds, codes, plain attributes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from fewbit.errors import UsageError
from fewbit.modules.coded import PARTS, Quantized
from fewbit.modules.quantized import get_weight
from fewbit.modules.tensor_file import Entry

KINDS = ("parameter", "buffer", "code", "attribute")


@dataclass
class Inventory:
    """What was found.

    Args:
        entries: one for each tensor, under the first of its names.
        aliases: every further name, and the first name it stands for.
        kinds: for each entry, what it is: one of `KINDS`.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)


def take(model: nn.Module) -> Inventory:
    """The inventory of a model. Weights of frozen layers are listed as the codes they stand for.

    Raises:
        UsageError: a tensor without values, a layout no file has, state that is not a tensor.
    """
    inventory = Inventory()
    seen: dict[Hashable, str] = {}
    for path, module in named_modules(model):
        _refuse_extra_state(path, module)
        for name, kind, key, entry in _of_module(f"{path}." if path else "", module):
            first = seen.setdefault((kind, key), name)
            if first == name:
                inventory.entries[name], inventory.kinds[name] = entry, kind
            else:
                inventory.aliases[name] = first
    return inventory


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module under each of its names, kernels left out: what they hold is a second form of the codes."""
    skip: list[str] = []
    for path, module in model.named_modules(remove_duplicate=False):
        if any(path == prefix or path.startswith(f"{prefix}.") for prefix in skip):
            continue
        if isinstance(module, Quantized) and isinstance(module.kernel, nn.Module):
            skip.append(f"{path}.kernel".lstrip("."))
        yield path, module


def slots(module: nn.Module) -> dict[str, tuple[str, Tensor]]:
    """A module's own tensors by name, with their kind; codes and their parts left out."""
    parts = _part_names(module)
    found: dict[str, tuple[str, Tensor]] = {}
    for name, parameter in module._parameters.items():
        if parameter is not None:
            found[name] = ("parameter", parameter)
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in parts:
            found[name] = ("buffer", buffer)
    for name, value in vars(module).items():
        if isinstance(value, Tensor):
            found[name] = ("attribute", value)
    return found


def _of_module(prefix: str, module: nn.Module) -> Iterator[tuple[str, str, Hashable, Entry]]:
    if isinstance(module, Quantized):
        for weight in module.coded:
            yield from _codes(prefix, module, weight)
    for own, (kind, tensor) in slots(module).items():
        name = prefix + own
        _refuse_unwritable(name, tensor)
        yield name, kind, _identity(tensor), _entry(name, tensor, partial(_itself, tensor))


def _codes(prefix: str, module: nn.Module, weight: str) -> Iterator[tuple[str, str, Hashable, Entry]]:
    """The parts of one quantized weight.

    A kernel gives them back from its own layout: as copies, so that the layer says which they are. No other layer has
    them: codes that several share stay where they are. The large copy is not kept here but asked for again when it is
    its turn.
    """
    for part, tensor in get_weight(module, weight).tensors().items():
        name, read = f"{prefix}{weight}_{part}", partial(_itself, tensor)
        if module._buffers.get(f"{weight}_{part}") is tensor:
            _refuse_unwritable(name, tensor)
            yield name, "code", _identity(tensor), _entry(name, tensor, read)
        else:
            read = partial(_restored, module, weight) if part == "packed" else read
            yield name, "code", (id(module), weight, part), _entry(name, tensor, read)


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _restored(module: nn.Module, weight: str) -> Tensor:
    return get_weight(module, weight).packed


def _entry(name: str, tensor: Tensor, read: Callable[[], Tensor]) -> Entry:
    return Entry(name, tensor.dtype, tuple(tensor.shape), read)


def _part_names(module: nn.Module) -> set[str]:
    if not isinstance(module, Quantized):
        return set()
    return {f"{weight}_{part}" for weight in module.coded for part in PARTS}


def _identity(tensor: Tensor) -> Hashable:
    """Equal for two tensors that are one: the same elements of the same memory."""
    if not tensor.numel():
        return id(tensor)
    place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.device)
    return (*place, tensor.dtype, tuple(tensor.shape), tensor.stride())


def _refuse_unwritable(name: str, tensor: Tensor) -> None:
    if tensor.is_meta:
        raise UsageError("the tensor has no values: it is on the meta device", where=name, expected="a loaded model")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        kind = f"layout {tensor.layout}" if tensor.layout is not torch.strided else f"dtype {tensor.dtype}"
        raise UsageError(f"the tensor has {kind}, which no file keeps", where=name, expected="a dense tensor")
    if type(tensor) not in (Tensor, nn.Parameter):
        raise UsageError(
            f"the tensor is a {type(tensor).__name__}, whose meaning a file cannot keep",
            where=name,
            expected="a plain torch.Tensor",
            try_="gather or dequantize the model first",
        )


def _refuse_extra_state(path: str, module: nn.Module) -> None:
    if type(module).get_extra_state is not nn.Module.get_extra_state:
        raise UsageError(
            f"{type(module).__name__} keeps state that is not a tensor (get_extra_state)",
            where=path or "the model itself",
            expected="modules whose state is tensors",
            try_="keep it in a buffer, so that a file can hold it",
        )
