# SPDX-License-Identifier: Apache-2.0
"""Scales that were found, held against plain rounding block by block, on what will really be stored."""

from __future__ import annotations

from typing import Any

import torch

from fewbit.algorithms._base import Problem
from fewbit.algorithms._error import errors, relative
from fewbit.algorithms._tiles import Tiles
from fewbit.numerics.qparams import QParams


def guarded(problem: Problem, found: QParams, plain: QParams) -> tuple[QParams, torch.Tensor, dict[str, Any]]:
    """The scales found where they lose no more than plain rounding, the plain ones elsewhere.

    Args:
        problem: the weight, and how much its elements matter.
        found: scales, in the flat order of `Tiles`.
        plain: those of plain rounding, in the same order.

    Returns:
        Scales for the weight; which blocks have those that were found, flat; the errors as facts name them.
    """
    tiles = Tiles(problem.blocks)
    before, after, silence = errors(problem, tiles.shaped_qparams(plain), tiles.shaped_qparams(found), None)
    kept = (after <= before).all(0)
    zero = plain.zero_point
    if zero is not None and found.zero_point is not None:
        zero = torch.where(kept, found.zero_point, zero)
    mixed = QParams(plain.grid, plain.block, torch.where(kept, found.scale, plain.scale), zero, plain.super_scale)
    facts: dict[str, Any] = {}
    ours, theirs = relative(torch.where(kept, after, before), silence), relative(before, silence)
    for name, mine, rounded in zip(("error", "held_out_error"), ours, theirs):
        facts[name], facts[f"{name}_rtn"] = mine, rounded
    return tiles.shaped_qparams(mixed), kept, facts
