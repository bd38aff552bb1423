# SPDX-License-Identifier: Apache-2.0
"""The configurations that a model's modules carry, as those of Hugging Face do."""

from __future__ import annotations

from typing import Any

from torch import nn


def with_true(model: nn.Module, name: str) -> list[Any]:
    """Configurations, and parts of them such as that of a text model, in which something is said to be true; each once.

    Args:
        model: whose modules have a `config`, of whatever class; what has no attributes that could be changed is left
            out.
        name: of the attribute.
    """
    found: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, "__dict__"):
            for part in (config, *vars(config).values()):
                if hasattr(part, "__dict__") and getattr(part, name, None) is True:
                    found[id(part)] = part
    return list(found.values())
