# SPDX-License-Identifier: Apache-2.0
"""Trying other values of a module's parameters: in place for the duration of a block, then put back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

Call = tuple[tuple[Any, ...], dict[str, Any]]


@contextmanager
def swapped(module: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Within the block, parameters of the module have other values."""
    before = {name: module._parameters[name] for name in values}
    try:
        for name, value in values.items():
            # By setattr: a recurrent layer keeps a list of its parameters beside them, and notices.
            setattr(module, name, nn.Parameter(value, requires_grad=False))
        yield
    finally:
        for name, parameter in before.items():
            setattr(module, name, parameter)


def forward(module: nn.Module, call: Call) -> Any:
    """What a module computes, hooks left aside."""
    return module.forward(*call[0], **call[1])
