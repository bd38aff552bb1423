# SPDX-License-Identifier: Apache-2.0
"""Ties: parameters of several layers that are one tensor, the same way round or transposed."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from torch import Tensor, nn


@dataclass
class Tie:
    """One tensor and everyone who uses it.

    Args:
        names: every `layer.tensor` it goes by, in model order.
        holders: every module that has it, once, with its name there.
    """

    names: list[str] = field(default_factory=list)
    holders: list[tuple[nn.Module, str]] = field(default_factory=list)

    def users(self, tensor: Tensor) -> list[tuple[nn.Module, str]]:
        """The holders that have this very tensor now: a cast of the model parts those who only shared its memory."""
        now = [(module, name, held(module).get(name)) for module, name in self.holders]
        return [(module, name) for module, name, t in now if t is not None and identity(t) == identity(tensor)]


Ties = dict[tuple[int, str], Tie]
"""By the `id` of a module and the name of its parameter."""


def ties(model: nn.Module) -> Ties:
    """The tie of every parameter, or of the codes that replaced it; a tensor that one module uses is a tie too.

    Who shares a tensor stays the same when all of them are given another in its place, so one look is enough.
    """
    found: Ties = {}
    by_identity: dict[Hashable, Tie] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for name, tensor in held(module).items():
            tie = by_identity.setdefault(identity(tensor), Tie())
            tie.names.append(f"{path}.{name}".lstrip("."))
            if (id(module), name) not in found:
                found[id(module), name] = tie
                tie.holders.append((module, name))
    return found


def sharing(model: nn.Module) -> set[str]:
    """The names of modules with a parameter that another module uses too."""
    found: dict[Hashable, list[str]] = {}
    for path, module in model.named_modules():
        for tensor in held(module).values():
            found.setdefault(identity(tensor), []).append(path)
    return {path for paths in found.values() if len(set(paths)) > 1 for path in paths}


def held(module: nn.Module) -> dict[str, Tensor]:
    """A module's own parameters by name; of quantized ones the tensor that stands for them."""
    tensors: dict[str, Tensor] = {
        name: parameter for name, parameter in module._parameters.items() if parameter is not None
    }
    for name in getattr(module, "coded", ()):
        packed = module._buffers.get(f"{name}_packed")
        if packed is not None:
            tensors[name] = packed
    return tensors


def identity(tensor: Tensor) -> Hashable:
    """Equal for two tensors that are the same numbers in the same memory, whatever the order of their axes."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.device.type in ("cpu", "cuda")
    if not plain or not tensor.numel():
        return id(tensor)
    storage = tensor.untyped_storage()
    sides = sorted(zip(tensor.stride(), tensor.shape))
    return (str(tensor.device), storage.data_ptr(), tensor.storage_offset(), tensor.dtype, tuple(sides))


def between(one: Tensor, other: Tensor) -> tuple[int, ...]:
    """The permutation that makes one view of a tensor the other: `other = one.permute(axes)`.

    >>> import torch
    >>> weight = torch.zeros(2, 3)
    >>> between(weight, weight.T)
    (1, 0)
    """
    left = list(range(one.ndim))
    axes = []
    for stride, side in zip(other.stride(), other.shape):
        axis = next(axis for axis in left if one.stride(axis) == stride and one.shape[axis] == side)
        left.remove(axis)
        axes.append(axis)
    return tuple(axes)
