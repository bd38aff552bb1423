# SPDX-License-Identifier: Apache-2.0
"""Which classes are taken for which, and what that says of how well regions overlap."""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.tuning.tasks._base import NOTHING


def confusion(labels: Tensor, said: Tensor, classes: int) -> Tensor:
    """How often each class (rows) was taken for each class (columns).

    Args:
        labels: class numbers of any shape; `NOTHING` does not count.
        said: what the model says, of the same shape.
        classes: how many there are.

    >>> confusion(torch.tensor([0, 1, 1, -100]), torch.tensor([0, 1, 0, 1]), 2).tolist()
    [[1, 0], [1, 1]]
    """
    # One more bin takes what does not count: choosing pixels instead would wait for the device.
    pairs = torch.where(labels == NOTHING, classes * classes, labels * classes + said).flatten()
    return torch.bincount(pairs, minlength=classes * classes + 1)[:-1].view(classes, classes)


def overlaps(table: Tensor) -> Tensor:
    """Of each class how much of the region that is it, or is said to be, is both; NaN for classes that are nowhere.

    Args:
        table: what `confusion` gave, of all pictures together.

    >>> overlaps(torch.tensor([[1.0, 0.0], [1.0, 1.0]])).tolist()
    [0.5, 0.5]
    """
    both = table.diagonal()
    return both / (table.sum(0) + table.sum(1) - both)
