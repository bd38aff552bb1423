# SPDX-License-Identifier: Apache-2.0
"""GPTQ: columns are rounded one after the other, and those to come make up for what each lost.

Scales are those of `scale_search` and stay as they are, so that columns can be taken in any order: within a group those
that matter most first, then group after group. Nothing about the order is left in the result.

Where it is known what the layer shall answer (`wanted`: sums of the wanted output times the input, of a model whose
layers before this one are rounded already), the weight is moved first to the one that answers best, W' = (C + λW)(H +
λI)⁻¹, and W' is rounded. What is kept is chosen row by row, on the items kept aside: the rounding of W', that of W, or
what `scale_search` finds.

The zeros of a weight that was pruned stay zeros: W' is the best there is with them, and no column makes up for others
where it is zero. Only a grid whose zero need not be exact loses them, and `facts["zeros_lost"]` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewbit.algorithms import rtn, scale_search
from fewbit.algorithms._answers import Answers
from fewbit.algorithms._base import Problem, Solution
from fewbit.algorithms._columns import Columns, factor, in_order
from fewbit.algorithms._error import errors, relative
from fewbit.algorithms._gram import no_gram
from fewbit.algorithms._parallel import each, one_thread
from fewbit.algorithms._refit import can_refit, refit
from fewbit.algorithms._rows import best, lanes, mixed, stacked
from fewbit.algorithms._support import refined
from fewbit.algorithms._zeros import pruned_zeros
from fewbit.errors import UsageError
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor

STAGE = "round"
NEEDS = ("moments", "gram")

_STEPS = 16  # towards the best weight with the zeros there are
_FEW, _REFITS = 3, 2  # bits, and how often their scales are fitted to the codes


def solve(
    problem: Problem,
    *,
    damping: float = 0.1,
    pull: float = 0.5,
    blends: Sequence[float] = (1.0,),
    sweeps: int = 1,
    refits: int | None = None,
) -> Solution:
    """Codes whose errors cancel where the inputs go together.

    Args:
        problem: the weight of a linear layer or a 1x1 convolution, with the `gram` of its input. Without, or for other
            weights, the result is that of `scale_search`, and `facts["fallback"]` says why.
        damping: what is added to the diagonal of the second moment, as a share of its mean: how little it is believed.
        pull: λ as such a share: how far the weight may move towards what is wanted.
        blends: how much of that way is tried.
        sweeps: how often every code is looked at once more, the others being what they are.
        refits: how often scales are fitted to the codes, and these swept again; by default where codes are so few that
            the first scales are a guess, up to three bits.

    Raises:
        DataError: a value is not finite.
        UsageError: shapes that do not fit together, a share that is not above zero.

    >>> from fewbit.numerics.dtypes import Dtype
    >>> from fewbit.numerics.grid import Grid
    >>> same = {"gram": {"gram": torch.full((4, 4), 10.0), "count": torch.tensor(10)}}  # the inputs are all alike
    >>> problem = Problem(torch.tensor([[7.0, 0.3, 0.3, 0.3]]), Grid(Dtype.int4), (1, 4), statistics=same)
    >>> solve(problem).qtensor.codes().sum(), scale_search.solve(problem).qtensor.codes().sum()
    (tensor(8), tensor(7))
    """
    for name, share in (("damping", damping), ("pull", pull)):
        if not 0 < share < float("inf"):
            raise UsageError(f"{name}={share!r}", where=name, expected="a number above zero, such as 0.05")
    problem.check()
    reason = why_not(problem)
    if reason is not None:
        searched = scale_search.solve(problem)
        return Solution(searched.qtensor, {**searched.facts, "fallback": reason, **_of_zeros(problem)})
    refits = refits if refits is not None else _REFITS if problem.grid.dtype.bits <= _FEW else 0
    return _solve(problem, damping, pull, blends, sweeps, refits)


@one_thread()
def _solve(
    problem: Problem, damping: float, pull: float, blends: Sequence[float], sweeps: int, refits: int
) -> Solution:
    teach, judge = Answers(problem), Answers(problem, aside=True)
    plain = rtn.qparams(problem)
    known = _known(problem, teach, damping, pull if any(blends) and teach.wanted is not None else None)
    blends = blends if known.factor is not None else blends[:1]
    height, found = problem.block[0], list[_Lane]()
    pruned = pruned_zeros(problem.weight) > 0 and not problem.grid.free_zero
    parts = lanes(len(problem.weight), height, problem.weight.device)

    def settle(at: int, rows: slice) -> None:
        part = _part(problem, rows, plain.super_scale)
        found[at] = _settle(part, rows, teach, judge, known, blends, (sweeps, refits), pruned)

    found += [None] * len(parts)  # type: ignore[list-item]
    each(settle, enumerate(parts), problem.weight.device)
    chosen = stacked([lane.chosen for lane in found], tuple(problem.weight.shape))
    picks = torch.cat([lane.picks for lane in found])
    nearest, kept = (torch.cat(losses) for losses in zip(*((lane.plain, lane.kept) for lane in found)))
    facts = _facts(problem, chosen, plain)
    aside = "held_out_" if "gram" in problem.held_out_statistics else ""
    facts |= judge.facts(f"{aside}output_error", nearest, kept)
    if aside and teach.wanted is None:
        everything = slice(None)
        values = (QTensor.encode(problem.weight.detach(), plain).dequantize(), chosen.dequantize())
        facts |= teach.facts("output_error", *(teach.loss(v.reshape(v.shape[:2]), everything) for v in values))
    facts |= _of_zeros(problem)
    names = ("rtn", "scale_search", *(f"blend {blend:g}" for blend in blends))
    facts["won"] = {name: float((picks == index).double().mean()) for index, name in enumerate(names)}
    if known.damping != damping:
        facts["damping"] = known.damping
    return Solution(chosen, facts)


@dataclass(frozen=True)
class _Known:
    """What is the same for all weights that read the same input: see `_columns` and `Answers`."""

    order: Tensor
    feedback: Tensor
    damping: float
    factor: tuple[Tensor, float] | None


def _known(problem: Problem, teach: Answers, damping: float, pull: float | None) -> _Known:
    width = min(problem.block[1], problem.weight.shape[1])
    key = ("gptq", damping, pull, width)
    if key not in problem.shared:
        order, found = in_order(teach.gram, width), dict[str, Any]()

        def compute(name: str) -> None:
            found[name] = factor(teach.gram, order, damping) if name == "columns" else teach.damped_factor(pull or 0)

        each(compute, [("columns",)] + ([] if pull is None else [("best",)]), problem.weight.device)
        feedback, used = found["columns"]
        problem.shared[key] = _Known(order, feedback, used, found.get("best"))
    known: _Known = problem.shared[key]
    return known


def _part(problem: Problem, rows: slice, super_scale: Tensor | None) -> Problem:
    def cut(importance: Tensor | None) -> Tensor | None:
        by_row = importance is not None and importance.ndim == problem.weight.ndim and len(importance) > 1
        return importance[rows] if importance is not None and by_row else importance

    return Problem(
        problem.weight[rows],
        problem.grid,
        problem.block,
        cut(problem.importance),
        cut(problem.held_out),
        name=problem.name,
        super_scale=super_scale,
    )


@dataclass(frozen=True)
class _Lane:
    """Some rows: what was chosen, of which choice each is, and what plain rounding and the choice lose by row."""

    chosen: QTensor
    picks: Tensor
    plain: Tensor
    kept: Tensor


def _settle(
    part: Problem,
    rows: slice,
    teach: Answers,
    judge: Answers,
    known: _Known,
    blends: Sequence[float],
    rounds: tuple[int, int],
    pruned: bool,
) -> _Lane:
    """All choices for some rows, and of them what loses least."""
    (sweeps, refits), shape = rounds, part.weight.shape[:2]
    weight = part.weight.detach().float().reshape(shape)
    mask = weight != 0 if pruned else None
    moved = None if known.factor is None else _best(teach, rows, weight, known.factor, mask) - weight
    searched = scale_search.solve(part).qtensor
    found = [QTensor.encode(part.weight.detach(), rtn.qparams(part)), searched]
    for blend in blends:
        aim = weight if moved is None or not blend else weight + blend * moved
        scales = searched.qparams if aim is weight else _scales(part, aim)
        work = Columns(aim, scales, known.order, known.feedback, known.damping, mask)
        codes = work.rounded()
        if sweeps:
            codes = work.swept(codes, teach.gram, sweeps)
        for _ in range(refits if can_refit(scales) else 0):
            scales = refit(work.values(codes), aim, teach.gram, scales)
            work = Columns(aim, scales, known.order, known.feedback, known.damping, mask)
            codes = work.swept(codes, teach.gram, max(sweeps, 1))
        found.append(QTensor.from_codes(codes.reshape(part.weight.shape), scales))
    losses = torch.stack([judge.loss(choice.dequantize().reshape(shape), rows) for choice in found])
    picks = best(losses, part.block[0])
    chosen = mixed(found, picks)
    return _Lane(chosen, picks, losses[0], losses.gather(0, picks[None])[0])


def _best(teach: Answers, rows: slice, weight: Tensor, factor: tuple[Tensor, float], mask: Tensor | None) -> Tensor:
    """The rows that answer best; of those that were pruned, with the zeros they have."""
    free = teach.best(rows, *factor)
    if mask is None:
        return free
    held = teach.gram.clone()
    held.diagonal().add_(factor[1])
    return refined(weight, free, mask, held, _STEPS)


def _of_zeros(problem: Problem) -> dict[str, int]:
    """Of a pruned weight, how many zeros its codes keep, or lose."""
    zeros = pruned_zeros(problem.weight)
    return {"zeros_lost" if problem.grid.free_zero else "zeros_kept": zeros} if zeros else {}


def why_not(problem: Problem) -> str | None:
    """Why the second moment of the input says nothing about a weight, or none of its errors can cancel."""
    if (reason := no_gram(problem)) is not None:
        return reason
    shape, dtype, seen = problem.weight.shape, problem.grid.dtype, problem.statistics["gram"]
    if len(seen["gram"]) != shape[1]:
        return (
            f"the layer reads {len(seen['gram'])} features, which its weight of shape {list(shape)} is not "
            f"multiplied with"
        )
    if dtype.is_cast or dtype.bits > 8:
        return f"{dtype.name} is so fine that no other value than the nearest is worth a look"
    return None


def _scales(problem: Problem, aim: Tensor) -> QParams:
    """The scales that suit a weight, by the importance of the problem's."""
    mine = Problem(
        aim.reshape(problem.weight.shape),
        problem.grid,
        problem.block,
        problem.importance,
        name=problem.name,
        super_scale=problem.super_scale,
    )
    return scale_search.solve(mine).qtensor.qparams


def _facts(problem: Problem, chosen: QTensor, plain: QParams) -> dict[str, Any]:
    mine, theirs, silence = errors(problem, chosen, plain, None)
    facts: dict[str, Any] = {}
    for name, ours, rounded in zip(("error", "held_out_error"), relative(mine, silence), relative(theirs, silence)):
        facts[name], facts[f"{name}_rtn"] = ours, rounded
    return facts
