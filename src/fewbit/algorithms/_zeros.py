# SPDX-License-Identifier: Apache-2.0
"""Whether a weight was pruned before it is rounded."""

from __future__ import annotations

from torch import Tensor

from fewbit.numerics.sparsity import is_pruned


def pruned_zeros(weight: Tensor) -> int:
    """How many elements are zero, if they are so many that it is on purpose; else none.

    >>> import torch
    >>> pruned_zeros(torch.tensor([1.0, 0.0, 0.0])), pruned_zeros(torch.ones(3))
    (2, 0)
    """
    zeros = weight.numel() - int(weight.count_nonzero())
    return zeros if is_pruned(zeros, weight.numel()) else 0
