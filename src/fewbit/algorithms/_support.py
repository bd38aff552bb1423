# SPDX-License-Identifier: Apache-2.0
"""The best values of the weights that are kept, for a mask that stays: least squares on the support of each row.

Minimises (v - w) H (v - w)ᵀ over the v that a mask frees, the others being what they are: zero, or rounded already.
Every row has another system, H on its own support; conjugate gradients need only products with H, which all rows share,
and every step brings every row nearer.
"""

from __future__ import annotations

import torch
from torch import Tensor

_NEAR = 1e-9  # of a row's first slope, squared: what is left is float32's


def refined(start: Tensor, aim: Tensor, mask: Tensor, gram: Tensor, steps: int) -> Tensor:
    """Values on the support that answer most like a weight.

    Args:
        start: where to begin, `[rows, in]`; what the mask does not free stays as it is there.
        aim: the weight, `[rows, in]`.
        mask: which values are free, `[rows, in]`.
        gram: H, damped, `[in, in]`.
        steps: how many at most; as many as a row has weights bring it there, but for rounding.

    >>> gram = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    >>> refined(torch.zeros(1, 2), torch.ones(1, 2), torch.tensor([[True, False]]), gram, 4)
    tensor([[1.5000, 0.0000]])
    """
    free = mask.to(start.dtype)
    inverse = gram.diagonal().reciprocal()
    values = start.clone()
    rest = torch.matmul(aim - values, gram).mul_(free)
    way = rest * inverse
    size = (rest * way).sum(1, keepdim=True)
    enough, asks = size * _NEAR, _asks(start.device)
    for _ in range(steps):
        if asks and bool((size <= enough).all()):
            break
        bent = torch.matmul(way, gram).mul_(free)
        # A row that is there stays there: beyond float32's rounding a step leads anywhere.
        length = torch.where(size > enough, _over(size, (way * bent).sum(1, keepdim=True)), 0.0)
        values.addcmul_(way, length)
        rest.addcmul_(bent, length, value=-1)
        near = rest * inverse
        before, size = size, (rest * near).sum(1, keepdim=True)
        way = near.addcmul_(way, _over(size, before))
    return values


def _over(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and nothing where a row is there already."""
    return torch.where(b > 0, a / b, 0.0)


def _asks(device: torch.device) -> bool:
    """Whether it is asked after each step if all rows are there; on a GPU the answer takes longer than a step."""
    return device.type == "cpu"
