# SPDX-License-Identifier: Apache-2.0
"""Positions of a text that are padding, as the item's attention mask says, and values without them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewbit.model.watch import TAPS, WINDOWS, reductions

_MASK = "attention_mask"


def real_positions(item: Mapping[str, Any]) -> Tensor | None:
    """Which positions are no padding, `[samples, positions]`; none where all are, or the item does not say.

    >>> real_positions({"attention_mask": np.array([[1, 1, 0]])})
    tensor([[ True,  True, False]])
    """
    mask = item.get(_MASK)
    if mask is None or np.ndim(mask) != 2 or bool(np.all(mask)):
        return None
    return torch.from_numpy(np.asarray(mask) != 0)


def without_padding(
    found: Mapping[str, Tensor], rows: Tensor, real: Tensor, needs: frozenset[str], sample: int
) -> dict[str, Tensor]:
    """What was found, of real positions alone; nothing where there is none.

    Args:
        found: what is known with padding.
        rows: the value itself, `[samples, positions, features]`.
        real: of `real_positions`.
        needs: what was asked.
        sample: how many values a sample is to hold.
    """
    kept = rows[real]
    if not len(kept):
        return {}
    taps = needs & {TAPS, WINDOWS}
    new = reductions(kept, needs - taps, sample)
    if taps:
        new[TAPS] = kept.sum(0, dtype=torch.float64).reshape(found[TAPS].shape)
        new[WINDOWS] = torch.tensor(len(kept))
    return new
