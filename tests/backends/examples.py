# SPDX-License-Identifier: Apache-2.0
"""A small model of each backend. A backend joins the contract tests by an entry here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Example:
    """One model to hold a backend to its contract.

    Args:
        make: makes the model, the same each time: two or more layers with weights, and a layer without any points.
        items: what it is called with.
        answer: what a model of this kind answers to an item.
    """

    make: Callable[[], Any]
    items: list[tuple[tuple[Any, ...], dict[str, Any]]]
    answer: Callable[[Any, Any], Tensor]


def _module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def _call(model: Any, item: Any) -> Tensor:
    with torch.no_grad():
        return model(*item[0], **item[1])


def _batches(count: int, features: int) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    return [((torch.randn(4, features, generator=generator),), {}) for _ in range(count)]


EXAMPLES = {"torch_eager": Example(_module, _batches(3, 6), _call)}
