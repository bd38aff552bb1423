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
        make: makes the model, the same each time: two or more layers with weights, a padded convolution among them,
            and a layer without any points. The last one with a weight, a linear layer, gives the answer.
        items: what `Dataset.inputs` yields for a model of this kind.
        answer: what a model of this kind answers to an item.
    """

    make: Callable[[], Any]
    items: list[Any]
    answer: Callable[[Any, Any], Tensor]


def _module() -> nn.Module:
    torch.manual_seed(0)
    first = [nn.LayerNorm(6), nn.Linear(6, 8), nn.ReLU(), nn.Unflatten(1, (2, 4))]
    return nn.Sequential(*first, nn.Conv1d(2, 4, 3, padding=1, stride=2), nn.Flatten(), nn.Linear(8, 3)).eval()


def _call(model: Any, item: Any) -> Tensor:
    with torch.no_grad():
        return model(*item[0], **item[1])


def _batches(count: int, features: int) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    return [((torch.randn(4, features, generator=generator),), {}) for _ in range(count)]


EXAMPLES = {"torch_eager": Example(_module, _batches(3, 6), _call)}
