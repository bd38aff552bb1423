# SPDX-License-Identifier: Apache-2.0
"""What a run has learned, as tensors by name: weights, buffers, moments, masks; out of a model and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fewbit.errors import DataError
from fewbit.modules.quantized import Quantized
from fewbit.tuning.masks import Masks

_WEIGHT, _BUFFER, _MOMENT, _MASK = "weight/", "buffer/", "optimizer/", "mask/"


def learned(model: nn.Module) -> dict[str, Tensor]:
    """Parameters that learn and buffers, whole: where processes hold parts, each of them has to call this.

    Codes of quantized layers are left out: they do not change while others learn.
    """
    _put_parts_back(model)
    found = {f"{_WEIGHT}{name}": _whole(each) for name, each in model.named_parameters() if each.requires_grad}
    return found | {f"{_BUFFER}{name}": _whole(each) for name, each in _buffers(model)}


def learn(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put what `learned` gave into a model of the same build, in place.

    Raises:
        DataError: another model's.
    """
    _put_parts_back(model)
    own: dict[str, Tensor] = {f"{_WEIGHT}{name}": each for name, each in model.named_parameters() if each.requires_grad}
    own |= {f"{_BUFFER}{name}": each for name, each in _buffers(model)}
    given = {name: each for name, each in tensors.items() if not name.startswith((_MOMENT, _MASK))}
    differs = sorted(own.keys() ^ given.keys())
    differs += [name for name in own.keys() & given.keys() if own[name].shape != given[name].shape]
    if differs:
        raise DataError(
            f"the checkpoint is of another model: {', '.join(differs[:5])}",
            code="checkpoint",
            expected="the same names and shapes in both",
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(_like(given[name], tensor))


def moments(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by the names of parameters, whole."""
    _put_parts_back(model)
    return {
        f"{_MOMENT}{name}/{key}": _whole(torch.as_tensor(value))
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def set_moments(model: nn.Module, optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put what `moments` gave into an optimizer of the same parameters, in place."""
    _put_parts_back(model)
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        if not key.startswith(_MOMENT):
            continue
        name, _, kind = key.removeprefix(_MOMENT).rpartition("/")
        parameter = parameters[name]
        shaped = value.shape == parameter.shape and value.ndim > 0
        made = _like(value, parameter).clone() if shaped else value.to(parameter.device)
        optimizer.state[parameter][kind] = made


def masks(held: Masks) -> dict[str, Tensor]:
    """The elements that are zero for good, by the names of parameters, whole."""
    return {f"{_MASK}{name}": _whole(pruned) for name, pruned in held.state_dict().items()}


def set_masks(model: nn.Module, held: Masks, tensors: Mapping[str, Tensor]) -> None:
    """Put what `masks` gave into the masks of the same model, in place."""
    _put_parts_back(model)
    found = {key.removeprefix(_MASK): pruned for key, pruned in tensors.items() if key.startswith(_MASK)}
    held.load_state_dict(found, model)


def _put_parts_back(model: nn.Module) -> None:
    """Where processes share parameters, let each hold its part again: after a forward some are whole for the moment."""
    for module in model.modules():
        put_back = getattr(module, "reshard", None) if hasattr(module, "unshard") else None  # as FSDP's modules have
        if put_back is not None:
            put_back()


def _buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for path, module in model.named_modules():
        codes = module.kept_buffers() if isinstance(module, Quantized) else ()
        for name, buffer in module.named_buffers(recurse=False):
            if name not in codes:
                yield f"{path}.{name}".lstrip("."), buffer


def _whole(tensor: Any) -> Tensor:
    """A tensor that several processes hold parts of, put together."""
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found.detach()


def _like(tensor: Tensor, model: Any) -> Tensor:
    """A whole tensor as the model holds it: on its device, or this process's part."""
    tensor = tensor.to(model.device, model.dtype)
    if not hasattr(model, "full_tensor"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, model.device_mesh, model.placements)
