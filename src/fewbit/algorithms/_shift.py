# SPDX-License-Identifier: Apache-2.0
"""Which channels of a shift are kept: those whose mean it brings nearer on items it was not made from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fewbit.algorithms._base import Shift


def gated(off: Tensor, held_out: Tensor | None, mean_square: Tensor | None) -> Shift:
    """What is missing from the mean, for the channels where adding it helps.

    Args:
        off: the wanted mean less the one there is, in calibration, `[out]`.
        held_out: the same on items kept aside; without, every channel is kept.
        mean_square: E[y²] of the output by channel, which errors are divided by; without, they are absolute.

    >>> gated(torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0.6, 0.4, 0.1]), None).amount
    tensor([1., 0., 0.])
    """
    off = off.double()
    judge = off if held_out is None else held_out.double().to(off.device)
    amount = torch.where((judge - off).abs() < judge.abs(), off, 0.0).float()
    kept = int((amount != 0).sum())
    facts: dict[str, Any] = {"kept": kept, "channels": len(off), "relative": mean_square is not None}
    sides = {"mean_error": off} | ({} if held_out is None else {"held_out_mean_error": judge})
    for name, missing in sides.items():
        facts[f"{name}_before"] = _size(missing, mean_square)
        facts[name] = _size(missing - amount.double(), mean_square)
    if held_out is None:
        facts["reason"] = "no items were kept aside to judge by, so every channel is corrected"
    elif kept < len(off):
        facts["reason"] = "the other channels are no nearer to their mean on the items kept aside"
    return Shift(amount if kept else None, facts)


def _size(missing: Tensor, mean_square: Tensor | None) -> float:
    """The sum of squares over that of the output; or the mean of squares."""
    square = missing.square()
    if mean_square is None:
        return float(square.mean())
    tiny = torch.finfo(torch.float64).tiny
    return float(square.sum() / mean_square.double().to(square.device).sum().clamp(min=tiny))
