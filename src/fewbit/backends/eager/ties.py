# SPDX-License-Identifier: Apache-2.0
"""Ties: parameters of several layers that are one tensor, the same way round or transposed."""

from __future__ import annotations

from collections.abc import Hashable

from torch import Tensor, nn


def identity(tensor: Tensor) -> Hashable:
    """Equal for two tensors that are the same numbers in the same memory, whatever the order of their axes."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.device.type in ("cpu", "cuda")
    if not plain or not tensor.numel():
        return id(tensor)
    storage = tensor.untyped_storage()
    sides = sorted(zip(tensor.stride(), tensor.shape))
    return (str(tensor.device), storage.data_ptr(), tensor.storage_offset(), tensor.dtype, tuple(sides))


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same identity; quick for those that have not."""
    plain = type(other) in (Tensor, nn.Parameter) and not one.is_meta and not other.is_meta
    if not plain or one.data_ptr() != other.data_ptr():
        return one is other
    return identity(one) == identity(other)


def users(model: nn.Module) -> dict[Hashable, list[str]]:
    """Every parameter, or the codes that replaced it, with all the names `layer.tensor` it goes by, in model order."""
    found: dict[Hashable, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for name, tensor in held(module).items():
            found.setdefault(identity(tensor), []).append(f"{path}.{name}".lstrip("."))
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
