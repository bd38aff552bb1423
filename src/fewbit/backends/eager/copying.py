# SPDX-License-Identifier: Apache-2.0
"""A copy of a module tree that costs no second set of weights."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from fewbit.errors import UsageError


def copied(model: nn.Module) -> nn.Module:
    """A copy whose matrices share their memory with the original's and whose vectors and scalars are its own.

    Modules, classes, hooks and configurations are new, so nothing done to the copy reaches the original. Every
    parameter is a new object too, and what is one tensor in the original is one in the copy. Vectors (norms, biases,
    running statistics) are a trifle in size and are written to in training, so they are copied.

    Raises:
        UsageError: something in the model cannot be copied.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        kept = [*module._parameters.values(), *module._buffers.values()]
        kept += [value for value in vars(module).values() if isinstance(value, Tensor)]
        for tensor in kept:
            if tensor is not None and id(tensor) not in memo:
                memo[id(tensor)] = _twin(tensor)
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise UsageError(
            f"the model cannot be copied: {type(error).__name__}: {str(error)[:300]}",
            where=type(model).__name__,
            expected="a model that copy.deepcopy takes",
            try_="inplace=True, which changes the model itself",
        ) from error


def _twin(tensor: Tensor) -> Tensor:
    if type(tensor) not in (Tensor, nn.Parameter):
        return tensor  # tensors of special classes know best what a copy of them would be; they are not changed
    data = tensor.detach()
    if data.ndim < 2:
        data = data.clone()
    twin = nn.Parameter(data, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else data
    vars(twin).update(vars(tensor))
    return twin
