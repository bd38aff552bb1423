# SPDX-License-Identifier: Apache-2.0
"""How often the right class is among the likeliest."""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.tuning.tasks._base import NOTHING


def hits(logits: Tensor, labels: Tensor, k: int) -> Tensor:
    """Of how many rows the label is one of the `k` likeliest classes.

    Where classes are equally likely the label's rank is the worst it can be: a model that says the same of all classes
    knows nothing.

    Args:
        logits: `[rows, classes]`.
        labels: `[rows]`; rows with `NOTHING` do not count.
        k: how many classes may be named.

    >>> hits(torch.tensor([[0.1, 0.9, 0.5], [0.2, 0.2, 0.2]]), torch.tensor([2, 0]), 2).item()
    1
    """
    known = labels != NOTHING
    own = logits.gather(-1, labels.clamp(min=0)[:, None])
    before = (logits >= own).sum(-1) - 1
    # A row of NaN is before nobody, and right about nothing.
    return ((before < k) & known & torch.isfinite(own[:, 0])).sum()
