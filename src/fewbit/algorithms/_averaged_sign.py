# SPDX-License-Identifier: Apache-2.0
"""The sign of a slope, averaged over steps: one where it stays, near zero where it changes all the time.

The bare sign of every step's own slope sends elements that stand near a border back and forth, all at once; what that
adds to the error hides what the others gain. It is the direction of Adam (arXiv 1412.6980).
"""

from __future__ import annotations

import torch
from torch import Tensor

_MEAN, _SQUARE = 0.9, 0.99


class AveragedSign:
    """Of the slopes of one tensor.

    Args:
        like: a tensor of their shape.

    >>> sign = AveragedSign(torch.zeros(2))
    >>> sign.after(torch.tensor([3.0, -0.1])).round(), sign.after(torch.tensor([3.0, 0.1])).round(decimals=2)
    (tensor([ 1., -1.]), tensor([1.0000, 0.0500]))
    """

    def __init__(self, like: Tensor):
        self._mean, self._square = torch.zeros_like(like), torch.zeros_like(like)
        self._count = 0

    def after(self, slope: Tensor) -> Tensor:
        """The sign, about -1 to 1, when one more slope is known; what is not finite says nothing."""
        slope = slope.nan_to_num(0.0, 0.0, 0.0)
        self._count += 1
        self._mean.lerp_(slope, 1 - _MEAN)
        self._square.lerp_(slope.square_(), 1 - _SQUARE)
        # Both began with nothing, which counts for less and less.
        size = self._square.div(1 - _SQUARE**self._count).sqrt_().clamp_(min=torch.finfo(slope.dtype).tiny)
        return self._mean.div(1 - _MEAN**self._count).div_(size)
