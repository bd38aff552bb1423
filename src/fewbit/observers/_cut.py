# SPDX-License-Identifier: Apache-2.0
"""From where a distribution is cut to the range that a grid shall cover."""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.numerics.grid import Grid
from fewbit.observers._base import State


def cut(state: State, grid: Grid, bottom: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """The range that is left of what was seen.

    Args:
        state: has `low` and `high`, what was seen.
        grid: asymmetric, both ends count; otherwise `top` alone does, as a magnitude.
        bottom: where the lower end is cut, `[R]`.
        top: where the upper end is cut, `[R]`.
    """
    low, high = state["low"], state["high"]
    # The side that is cut less stays as it was: a grid with a signed scale wants to know which one that is.
    ends = (bottom, top) if grid.asymmetric else (low.clamp(-top, top), high.clamp(-top, top))
    # Where nearly all values are zeros, the cut may leave nothing else; no range at all would lose every other value.
    nothing = (ends[0] == 0) & (ends[1] == 0)
    return torch.where(nothing, low, ends[0]), torch.where(nothing, high, ends[1])
