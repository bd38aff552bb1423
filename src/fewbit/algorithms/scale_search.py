# SPDX-License-Identifier: Apache-2.0
"""Round to nearest with the scales that lose least: the default for weights.

Every block gets the scale (and zero point) that minimises the sum of h (w - ŵ)², where h is E[x²] of the input each
weight is multiplied with, or 1 without data. What is found is kept block by block, where it is better than plain
rounding on what will really be stored: stored scales, true rounding. If samples were kept aside, it must not be worse
on them either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fewbit.algorithms import rtn
from fewbit.algorithms._base import Problem, Solution
from fewbit.algorithms._error import errors, relative
from fewbit.algorithms._parallel import each, one_thread
from fewbit.algorithms._search import STAGES, Effort, Search, effort
from fewbit.algorithms._sums import Rows, Scratch
from fewbit.algorithms._tiles import Tiles, total
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import round_scale

STAGE = "round"
NEEDS = ("moments",)

# Features that no sample lit may be lit later: they count this share of the mean.
_DAMPING = 0.01
# Of a tile: elements, and blocks, so that neither these nor what is known of those leaves the cache.
_ELEMENTS, _BLOCKS = 1 << 19, 1 << 13


@one_thread()
def solve(problem: Problem, *, candidates: int | None = None, refits: int = 1) -> Solution:
    """The scales that lose least, and every element on the nearest value of the grid.

    Types of more than eight bits, and floats of more than three mantissa bits, are rounded plainly: no scale is better
    by more than float32 can tell.

    Args:
        problem: the weight, and how much its elements matter.
        candidates: how many factors the search begins with; by default five, eight with data, four for eight bits.
        refits: how often the codes are found once more with the scale that fits them best.

    >>> from fewbit.numerics.dtypes import Dtype
    >>> from fewbit.numerics.grid import Grid
    >>> facts = solve(Problem(torch.tensor([[0.2, 0.1, -0.7, 0.3]]), Grid(Dtype.int2), (1, 4))).facts
    >>> round(facts["error"], 3), round(facts["error_rtn"], 3)
    (0.045, 0.21)
    """
    problem.check()
    base, work = rtn.qparams(problem), effort(problem.grid, weighted=problem.importance is not None)
    tiles = Tiles(problem.blocks)
    plain = tiles.flat_qparams(base)
    found, stage = plain, torch.zeros(tiles.count, dtype=torch.int64, device=plain.scale.device)
    if work is not None:
        found, stage = _search(problem, plain, Effort(candidates or work.coarse, work.fine, refits))
    before, after, silence = errors(problem, base, tiles.shaped_qparams(found), None)
    better = after[0] < before[0]
    kept = better & (after[-1] <= before[-1])  # the last weighing is by what was kept aside, if there is any
    chosen = tiles.shaped_qparams(_mixed(kept, found, plain))
    facts = _facts(before, torch.where(kept, after, before), silence)
    facts["won"] = _shares(stage.masked_fill(~kept, 0))
    if problem.held_out is not None:
        facts["reverted"] = int((better & ~kept).sum())
    return Solution(QTensor.encode(problem.weight.detach(), chosen), facts)


def _search(problem: Problem, base: QParams, effort: Effort) -> tuple[QParams, Tensor]:
    """The best scales found, and the stage of the search that found them, in the flat order of `Tiles`."""
    weight = problem.weight.detach()
    scale, stage = base.scale.clone(), torch.zeros_like(base.scale, dtype=torch.int64)
    zero = None if base.zero_point is None else base.zero_point.clone()
    scratch = Scratch(weight.device)
    size, most = (_ELEMENTS, _BLOCKS) if weight.device.type == "cpu" else (scratch.size, None)

    def improve(place: slice, rows: Callable[[], Tensor], h: Callable[[], Tensor | None]) -> None:
        search = Search(Rows(rows(), base.part(place), h(), scratch))
        search.run(effort)
        scale[place] *= search.factor
        if zero is not None and search.zero is not None:
            zero[place] = search.zero
        stage[place] = search.stage

    each(improve, Tiles(problem.blocks).walk(size, weight, _damped(problem), most=most), weight.device)
    scale = torch.where(stage > 0, round_scale(scale, base.grid.scale_type), base.scale)
    return QParams(base.grid, base.block, scale, zero, base.super_scale), stage


def _damped(problem: Problem) -> Tensor | None:
    """The importance in units of its mean, nowhere zero."""
    if problem.importance is None:
        return None
    h = problem.importance.float()
    mean = total(h.flatten()) / max(h.numel(), 1)
    return torch.where(mean > 0, h / mean + _DAMPING, 1.0)


def _mixed(kept: Tensor, found: QParams, base: QParams) -> QParams:
    zero = base.zero_point
    if zero is not None and found.zero_point is not None:
        zero = torch.where(kept, found.zero_point, zero)
    return QParams(base.grid, base.block, torch.where(kept, found.scale, base.scale), zero, base.super_scale)


def _facts(before: Tensor, after: Tensor, silence: Tensor) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for name, ours, plain in zip(("error", "held_out_error"), relative(after, silence), relative(before, silence)):
        facts[name], facts[f"{name}_rtn"] = ours, plain
    return facts


def _shares(stage: Tensor) -> dict[str, float]:
    """The share of blocks that each stage settled."""
    counts = torch.bincount(stage, minlength=len(STAGES)).tolist()
    return {name: count / max(len(stage), 1) for name, count in zip(STAGES, counts)}
