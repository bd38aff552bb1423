# SPDX-License-Identifier: Apache-2.0
"""A copy of a module tree that costs no second set of weights."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fewbit.errors import UsageError
from fewbit.modules.quantized import Quantized


def copied(model: nn.Module) -> nn.Module:
    """A copy whose weights share their memory with the original's and whose other tensors are its own.

    Modules, classes, hooks and configurations are new, so nothing done to the copy reaches the original. Every
    parameter is a new object too, and what is one tensor in the original is one in the copy. Only matrices that are
    parameters or codes are shared: no forward writes to them. Vectors (norms, biases) are a trifle in size and are
    written to in training; a buffer (a cache, a queue, running statistics) may be written to in any forward.

    Raises:
        UsageError: something in the model cannot be copied.
    """
    try:
        return copy.deepcopy(model, _twins(model))
    except Exception as error:
        raise UsageError(
            f"the model cannot be copied: {type(error).__name__}: {str(error)[:300]}",
            where=type(model).__name__,
            expected="a model that copy.deepcopy takes",
            try_="inplace=True, which changes the model itself",
        ) from error


def _twins(model: nn.Module) -> dict[int, Any]:
    """What deepcopy is to put in the place of some tensors, by `id`; the others it copies itself, with their ties."""
    twins: dict[int, Any] = {}
    for module in model.modules():
        codes = module.kept_buffers() if isinstance(module, Quantized) else ()
        for tensor in (*module._parameters.values(), *(module._buffers.get(name) for name in codes)):
            if tensor is not None and id(tensor) not in twins:
                twins[id(tensor)] = _twin(tensor)
        for tensor in (*module._buffers.values(), *vars(module).values()):
            if isinstance(tensor, Tensor) and id(tensor) not in twins:
                if is_lazy(tensor):
                    twins[id(tensor)] = _twin(tensor)
                elif not tensor.is_leaf or type(tensor) not in (Tensor, nn.Parameter):  # deepcopy refuses these
                    twins[id(tensor)] = tensor.detach().clone()
    return twins


def _twin(tensor: Tensor) -> Tensor:
    if is_lazy(tensor):
        kind: Any = type(tensor)
        empty: Tensor = kind(tensor.requires_grad, tensor.data.device, tensor.data.dtype)
        return empty
    if type(tensor) not in (Tensor, nn.Parameter):
        return tensor  # parameters of special classes know best what a copy of them would be; they are not changed
    data = tensor.detach()
    if data.ndim < 2:
        data = data.clone()
    twin = nn.Parameter(data, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else data
    vars(twin).update(vars(tensor))
    return twin
