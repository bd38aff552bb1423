# SPDX-License-Identifier: Apache-2.0
"""So many zeros dealt to several parts, of which some may have zeros already."""

from __future__ import annotations

import torch
from torch import Tensor


def dealt(zeros: int, there: Tensor) -> Tensor:
    """How many zeros each part gets: as evenly as whole numbers can be, but none fewer than it has.

    Args:
        zeros: in all; where there are more already, it is as many as there are.
        there: how many each part has, `[parts]`.

    Returns:
        Whole numbers `[parts]`, on the CPU.

    >>> dealt(5, torch.tensor([0, 0])), dealt(9, torch.tensor([0, 7, 1]))
    (tensor([3, 2]), tensor([1, 7, 1]))
    """
    found = there.detach().cpu().long()
    left, fits = max(zeros, int(found.sum())), torch.ones(len(found), dtype=torch.bool)
    while bool(fits.any()):
        parts = int(fits.sum())
        ends = (2 * left * torch.arange(parts + 1) + parts) // (2 * parts)
        even = ends.diff()
        above = found[fits] > even
        if not bool(above.any()):
            return found.masked_scatter(fits, even)
        # A part that has more already keeps what it has, and the others share what is left.
        left -= int(found[fits][above].sum())
        fits = fits.masked_scatter(fits, ~above)
    return found
