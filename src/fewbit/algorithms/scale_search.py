# SPDX-License-Identifier: Apache-2.0
"""Round to nearest with the scales that lose least: the default for weights.

Every block gets the scale (and zero point) that minimises the sum of h (w - ŵ)², where h is E[x²] of the input each weight
is multiplied with, or 1 without data. What is found is kept block by block, where it is better than plain rounding on
what will really be stored: stored scales, true rounding. If samples were kept aside, it must not be worse on them either.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.algorithms import rtn
from fewbit.algorithms._base import Problem, Solution
from fewbit.algorithms._error import errors, flattened, relative, tile_size
from fewbit.algorithms._search import STAGES, Effort, Search, effort
from fewbit.algorithms._sums import Rows, Scratch
from fewbit.algorithms._tiles import Tiles, total
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import round_scale

STAGE = "round"
NEEDS = ("moments",)

_DAMPING = 0.01
_TILE = 1 << 20


def solve(problem: Problem, *, candidates: int | None = None, refits: int = 1) -> Solution:
    """The scales that lose least, and every element on the nearest value of the grid.

    Args:
        problem: the weight, and how much its elements matter.
        candidates: how many factors the search begins with; by default six, four for eight bits.
        refits: how often the best codes are found once more with the scale that fits them best.

    >>> from fewbit.numerics.dtypes import Dtype
    >>> from fewbit.numerics.grid import Grid
    >>> solve(Problem(torch.tensor([[3.0, 1.5]]), Grid(Dtype.int3), (1, 2))).qtensor.dequantize()
    tensor([[3.0000, 1.5000]])
    """
    problem.check()
    base = rtn.qparams(problem)
    tiles, flat = Tiles(problem.blocks), flattened(Tiles(problem.blocks), base)
    work = effort(problem.grid, weighted=problem.importance is not None)
    if work is None:
        return rtn.solve(problem)
    found, stage = _propose(problem, tiles, flat, Effort(candidates or work.coarse, work.fine, refits))
    (plain, searched), signal = errors(problem, base, _shaped(tiles, base, found))
    better = searched[0] < plain[0]
    kept = better & (searched[-1] <= plain[-1])
    chosen = QParams(
        base.grid,
        base.block,
        torch.where(kept, found.scale, flat.scale),
        None if found.zero_point is None else torch.where(kept, found.zero_point, flat.zero_point),
        base.super_scale,
    )
    qtensor = QTensor.encode(problem.weight.detach(), _shaped(tiles, base, chosen))
    after = torch.where(kept, searched, plain)
    won = torch.bincount(torch.where(kept, stage, 0), minlength=len(STAGES))
    facts = {}
    names = ["error", "held_out_error"]
    for name, plain_, after_ in zip(names, relative(plain, signal).tolist(), relative(after, signal).tolist()):
        facts[name] = after_
        facts[f"{name}_rtn"] = plain_
    facts["won"] = dict(zip(STAGES, (won/len(kept)).tolist()))
    facts["reverted"] = int((better&~kept).sum())
    return Solution(qtensor, facts)


def _propose(problem, tiles, base, effort):
    scale, zero, stage = base.scale.clone(), None if base.zero_point is None else base.zero_point.clone(), torch.zeros(len(base.scale), dtype=torch.int64)
    size = tile_size(problem.weight.device, _TILE)
    h = problem.importance
    if h is not None:
        mean = total(h.float().flatten()) / h.numel()
        h = torch.where(mean > 0, h / mean + _DAMPING, 1.0)
    scratch = Scratch(problem.weight.device)
    for place, (rows, own) in tiles.walk(size, problem.weight.detach(), h):
        search = Search(Rows(rows, base.part(place), own, scratch))
        search.run(effort)
        scale[place] = torch.where(search.stage > 0, round_scale(search.factor * scale[place], problem.grid.scale_type), scale[place])
        if search.zero is not None:
            zero[place] = search.zero
        stage[place] = search.stage.long()
    return QParams(base.grid, base.block, scale, zero, base.super_scale), stage


def _shaped(tiles, base, flat):
    return QParams(base.grid, base.block, tiles.shaped(flat.scale), None if flat.zero_point is None else tiles.shaped(flat.zero_point), base.super_scale)
