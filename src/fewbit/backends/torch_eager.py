# SPDX-License-Identifier: Apache-2.0
"""PyTorch modules as they are: any `nn.Module`, run eagerly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fewbit.model.view import ModelView


def accepts(model: object) -> bool:
    """Whether this is an `nn.Module` with Python code of its own; by the names of its base classes."""
    names = {f"{base.__module__}.{base.__name__}" for base in type(model).__mro__}
    return "torch.nn.modules.module.Module" in names and "torch.jit._script.ScriptModule" not in names


def view(model: Any) -> ModelView:
    """The view of a module."""
    from fewbit.backends.eager.view import EagerView

    return EagerView(model)
