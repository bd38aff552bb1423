# SPDX-License-Identifier: Apache-2.0
"""AdaRound: each weight up or down, so that the errors of a row cancel in the output.

With scales from `scale_search`, every element is rounded to one of its two neighbours such that (W - Ŵ) H (W - Ŵ)ᵀ is
least, H = E[x xᵀ]. What is learned is kept row by row, where it beats nearest rounding on H and is not worse on the
items kept aside; rows that share a scale are then held against plain rounding in the same way.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fewbit.algorithms import rtn, scale_search
from fewbit.algorithms._base import Problem, Solution
from fewbit.algorithms._error import errors, relative
from fewbit.algorithms._gram import no_gram
from fewbit.algorithms._parallel import each, one_thread
from fewbit.algorithms._relaxation import Choice, best
from fewbit.algorithms._zeros import pruned_zeros
from fewbit.errors import UsageError
from fewbit.numerics.blocks import Blocks
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.rounding import RoundType, round_to_integer

STAGE = "round"
NEEDS = ("moments", "gram")

# Features that no sample lit may be lit later: they count this share of the mean.
_DAMPING = 0.01
_ELEMENTS = 1 << 17  # of a tile, which one thread learns by itself


@one_thread()
def solve(problem: Problem, *, steps: int = 300) -> Solution:
    """Codes whose errors cancel where the inputs go together.

    Args:
        problem: the weight of a linear layer or a 1x1 convolution, with the `gram` of its input. Without, or for other
            weights, the result is that of `scale_search`, and `facts["fallback"]` says why.
        steps: of Adam.

    Raises:
        DataError: a value is not finite.
        UsageError: shapes that do not fit together, or steps below zero.

    >>> from fewbit.numerics.dtypes import Dtype
    >>> from fewbit.numerics.grid import Grid
    >>> same = {"gram": {"gram": torch.full((4, 4), 10.0), "count": torch.tensor(10)}}  # the inputs are all alike
    >>> problem = Problem(torch.tensor([[7.0, 0.3, 0.3, 0.3]]), Grid(Dtype.int4), (1, 4), statistics=same)
    >>> nearest, learned = scale_search.solve(problem).qtensor.codes(), solve(problem).qtensor.codes()
    >>> nearest, int(learned.sum())  # one of the three goes up, whichever: 7 + 0.9 is nearer to 8
    (tensor([[7, 0, 0, 0]], dtype=torch.int8), 8)
    """
    if steps < 0:
        raise UsageError(f"steps={steps!r}", where="steps", expected="a number of steps, such as 300")
    searched = scale_search.solve(problem)
    reason = _why_not(problem)
    if reason is not None:
        return Solution(searched.qtensor, {**searched.facts, "fallback": reason})
    weight, plain = problem.weight.detach(), rtn.qparams(problem)
    sides = [seen["gram"] for seen in (problem.statistics, problem.held_out_statistics) if "gram" in seen]
    moments = [_by_group(seen["gram"].to(weight.device) / seen["count"], weight) for seen in sides]
    nearest, off = searched.qtensor, partial(_off, weight, moments)
    learned = QTensor.from_codes(_learned(weight, nearest, moments[0], steps), nearest.qparams)
    found = _better(_better(learned, nearest, off, 1), QTensor.encode(weight, plain), off, problem.block[0])

    mine, theirs, silence = errors(problem, found, plain, None)
    facts: dict[str, object] = {}
    for name, ours, rounded in zip(("error", "held_out_error"), relative(mine, silence), relative(theirs, silence)):
        facts[name], facts[f"{name}_rtn"] = ours, rounded
    choices = (("", found), ("_search", nearest), ("_rtn", QTensor.encode(weight, plain)))
    for name, choice in choices:
        for side, value in zip(("output_error", "held_out_output_error"), relative(off(choice), off(None))):
            facts[f"{side}{name}"] = value
    facts["turned"] = float((found.codes() != nearest.codes()).double().mean())
    return Solution(found, facts)


def _why_not(problem: Problem) -> str | None:
    """Why there is nothing to learn for a weight."""
    if (reason := no_gram(problem)) is not None:
        return reason
    shape, dtype, seen = problem.weight.shape, problem.grid.dtype, problem.statistics["gram"]
    features = len(seen["gram"])
    if features % shape[1] or shape[0] % (features // shape[1]):
        return f"the layer reads {features} features, which its weight of shape {list(shape)} is not multiplied with"
    if not dtype.is_integer or dtype.bits > 8:
        return f"{dtype.name} has no two neighbours worth choosing between"
    return None


def _by_group(moment: Tensor, weight: Tensor) -> Tensor:
    """The second moment of the features each group of a weight reads: `[groups, in, in]` in float64."""
    width = weight.shape[1]
    return torch.stack([moment[at : at + width, at : at + width] for at in range(0, len(moment), width)]).double()


def _off(weight: Tensor, moments: list[Tensor], choice: QTensor | None) -> Tensor:
    """What the output of each row is off, `[moments, rows]` in float64; by all there is, if none is chosen."""
    off = weight.double() if choice is None else weight.double() - choice.dequantize().double()
    off = off.reshape(len(moments[0]), -1, weight.shape[1])
    return torch.stack([((off @ moment) * off).sum(2).flatten() for moment in moments])


def _learned(weight: Tensor, nearest: QTensor, moment: Tensor, steps: int) -> Tensor:
    """Codes as learned, all on one of the two neighbours that the scales allow."""
    qparams, dtype = nearest.qparams, nearest.grid.dtype
    step = _spread(nearest, qparams.step)
    zero = 0.0 if qparams.zero_point is None else _spread(nearest, qparams.zero_point)
    w = weight.float().reshape(step.shape)
    floor = round_to_integer(w / step + zero, RoundType.floor)
    down, up = floor.clamp(dtype.lowest, dtype.highest), (floor + 1).clamp(dtype.lowest, dtype.highest)
    choice = Choice(w - (down - zero) * step, (up - down) * step)
    near = nearest.codes().reshape(step.shape).float() > down
    turned = torch.zeros_like(near)
    height, tile = len(w) // len(moment), max(1, _ELEMENTS // w.shape[1])

    def work(first: int, last: int, gram: Tensor) -> None:
        turned[first:last] = best(choice.part(first, last), near[first:last], gram, steps)

    eye = torch.eye(w.shape[1], device=w.device)
    todo = []
    for group, own in enumerate(moment):
        mean = own.diagonal().mean()
        gram = (own / mean).float() + _DAMPING * eye if bool(mean > 0) else eye
        start = group * height
        todo += [(at, min(at + tile, start + height), gram) for at in range(start, start + height, tile)]
    each(work, todo, w.device)
    if pruned_zeros(weight) and not nearest.grid.free_zero:
        turned &= w != 0
    return torch.where(turned, up, down).to(dtype.storage).reshape(weight.shape)


def _spread(qtensor: QTensor, scales: Tensor) -> Tensor:
    """What belongs to blocks, for every element, `[out, in]`."""
    blocks = qtensor.blocks
    whole = blocks.lay(torch.ones(qtensor.shape, device=scales.device)) * blocks.over(scales)
    return whole.reshape(qtensor.shape[:2])


def _better(ours: QTensor, theirs: QTensor, off: partial[Tensor], height: int) -> QTensor:
    """Ours where it is better, and no worse by what was kept aside; decided for so many rows together."""
    a, b = off(ours), off(theirs)
    bands = Blocks(tuple(a.shape), (1, height))
    a, b = bands.split(a).sum((1, 3)), bands.split(b).sum((1, 3))
    rows = ((a[0] < b[0]) & (a[-1] <= b[-1])).repeat_interleave(height)[: ours.shape[0]]
    beside = (-1, *(1,) * (len(ours.shape) - 1))
    codes = torch.where(rows.reshape(beside), ours.codes(), theirs.codes())
    # Blocks of several rows go together, unless both have the same scales anyway.
    pick, p, q = rows[:: ours.block[0]].reshape(beside), ours.qparams, theirs.qparams
    zero = None
    if p.zero_point is not None and q.zero_point is not None:
        zero = torch.where(pick, p.zero_point, q.zero_point)
    scale = torch.where(pick, p.scale, q.scale)
    return QTensor.from_codes(codes, QParams(ours.grid, ours.block, scale, zero, ours.super_scale))
