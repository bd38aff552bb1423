# SPDX-License-Identifier: Apache-2.0
"""GPTQ: columns are rounded one after the other, and those to come make up for what each lost.

Scales are those of `scale_search` and stay as they are, so that columns can be taken in any order: within a group those
that matter most first, then group after group. Nothing about the order is left in the result.

Where it is known what the layer shall answer (`wanted`: sums of the wanted output times the input, of a model whose
layers before this one are rounded already), the weight is moved first to the one that answers best, W' = (C + λW)(H +
λI)⁻¹, and W' is rounded. What is kept is chosen row by row, on the items kept aside: the rounding of W', that of W, or
what `scale_search` finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fewbit.algorithms import rtn, scale_search
from fewbit.algorithms._base import Problem, Solution
from fewbit.algorithms._columns import Columns, factor, in_order
from fewbit.algorithms._error import errors, relative
from fewbit.algorithms._gram import no_gram
from fewbit.algorithms._parallel import one_thread
from fewbit.errors import UsageError
from fewbit.numerics.blocks import Blocks
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor

STAGE = "round"
NEEDS = ("moments", "gram")


def solve(
    problem: Problem, *, damping: float = 0.05, pull: float = 0.2, blends: Sequence[float] = (1.0,), sweeps: int = 1
) -> Solution:
    """Codes whose errors cancel where the inputs go together.

    Args:
        problem: the weight of a linear layer or a 1x1 convolution, with the `gram` of its input. Without, or for other
            weights, the result is that of `scale_search`, and `facts["fallback"]` says why.
        damping: what is added to the diagonal of the second moment, as a share of its mean: how little it is believed.
        pull: λ as such a share: how far the weight may move towards what is wanted.
        blends: how much of that way is tried.
        sweeps: how often every code is looked at once more, the others being what they are.

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
        return Solution(searched.qtensor, {**searched.facts, "fallback": reason})
    return _solve(problem, damping, pull, blends, sweeps)


@one_thread()
def _solve(problem: Problem, damping: float, pull: float, blends: Sequence[float], sweeps: int) -> Solution:
    weight = problem.weight.detach().float().reshape(problem.weight.shape[:2])
    teach, judge = _Side(problem, weight, aside=False), _Side(problem, weight, aside=True)
    columns = in_order(teach.gram, weight.shape[1] if problem.block[1] > weight.shape[1] else problem.block[1])
    upper, raised = factor(teach.gram, columns, damping)
    moved = teach.moved(weight, pull) - weight if teach.wanted is not None else None
    plain = rtn.qparams(problem)
    searched = scale_search.solve(problem).qtensor
    found = [QTensor.encode(problem.weight.detach(), plain), searched]
    for blend in blends if moved is not None else blends[:1]:
        aim = weight if moved is None or not blend else weight + blend * moved
        scales = searched.qparams if aim is weight else _scales(problem, aim)
        work = Columns(aim, scales, columns, upper, damping)
        codes = work.rounded()
        if sweeps:
            codes = work.swept(codes, teach.gram, sweeps)
        found.append(QTensor.from_codes(codes.reshape(problem.weight.shape), scales))
    losses = torch.stack([judge.loss(each) for each in found])
    chosen, picks = _chosen(found, losses, problem.block[0])
    sides = {"output_error": teach} | ({"held_out_output_error": judge} if problem.held_out_statistics else {})
    facts = _facts(problem, weight, plain, chosen, sides)
    names = ("rtn", "scale_search", *(f"blend {blend:g}" for blend in blends))
    facts["won"] = {name: float((picks == index).double().mean()) for index, name in enumerate(names[: len(found)])}
    if raised != damping:
        facts["damping"] = raised
    return Solution(chosen, facts)


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


class _Side:
    """What one part of the items says of the layer's input and of what it shall answer."""

    def __init__(self, problem: Problem, weight: Tensor, *, aside: bool):
        given = problem.held_out_statistics if aside and "gram" in problem.held_out_statistics else problem.statistics
        count = given["gram"]["count"].to(weight.device)
        self.gram = given["gram"]["gram"].to(weight.device).float() / count
        wanted = given.get("wanted")
        self.wanted = None if wanted is None else wanted["wanted"].to(weight.device).float() / count
        self._target = weight @ self.gram if self.wanted is None else self.wanted
        self.energy = ((weight @ self.gram) * weight).sum().double()

    def moved(self, weight: Tensor, pull: float) -> Tensor:
        """The weight that answers best, held back towards the one it was."""
        assert self.wanted is not None
        share = pull * self.gram.diagonal().mean().double()
        eye = torch.eye(len(self.gram), dtype=torch.float64, device=weight.device)
        lower = torch.linalg.cholesky(self.gram.double() + share * eye)
        return torch.cholesky_solve((self.wanted.double() + share * weight.double()).T, lower).T.float()

    def loss(self, choice: QTensor) -> Tensor:
        """What the answers of each row are off, but for a term that is the same for all choices; float64 `[rows]`."""
        values = choice.dequantize().reshape(self._target.shape)
        return ((values @ self.gram) * values).sum(1).double() - 2 * (values * self._target).sum(1).double()

    def off(self, choice: QTensor, weight: Tensor) -> float:
        """What its answers are off from the float weight's in all, over what these are."""
        values = choice.dequantize().reshape(weight.shape) - weight
        error = ((values @ self.gram) * values).sum().double()
        return float(error / self.energy.clamp(min=torch.finfo(torch.float64).tiny))


def _scales(problem: Problem, aim: Tensor) -> QParams:
    """The scales that suit a weight, by the importance of the problem's."""
    mine = Problem(
        aim.reshape(problem.weight.shape), problem.grid, problem.block, problem.importance, name=problem.name
    )
    return scale_search.solve(mine).qtensor.qparams


def _chosen(found: list[QTensor], losses: Tensor, height: int) -> tuple[QTensor, Tensor]:
    """For each row, or rows that share a scale, the choice that loses least; the first of equals."""
    rows = losses.shape[1]
    bands = Blocks(tuple(losses.shape), (1, height)).split(losses).sum((1, 3))
    picks = bands.argmin(0).repeat_interleave(height)[:rows]
    beside = (-1, *(1,) * (len(found[0].shape) - 1))
    blocks = picks[::height].reshape(beside)
    codes, params = found[0].codes(), found[0].qparams
    scale, zero = params.scale, params.zero_point
    for index, each in enumerate(found[1:], 1):
        codes = torch.where((picks == index).reshape(beside), each.codes(), codes)
        scale = torch.where(blocks == index, each.qparams.scale, scale)
        other = each.qparams.zero_point
        if zero is not None and other is not None:
            zero = torch.where(blocks == index, other, zero)
    return QTensor.from_codes(codes, QParams(params.grid, params.block, scale, zero, params.super_scale)), picks


def _facts(
    problem: Problem, weight: Tensor, plain: QParams, chosen: QTensor, sides: Mapping[str, _Side]
) -> dict[str, Any]:
    mine, theirs, silence = errors(problem, chosen, plain, None)
    facts: dict[str, Any] = {}
    for name, ours, rounded in zip(("error", "held_out_error"), relative(mine, silence), relative(theirs, silence)):
        facts[name], facts[f"{name}_rtn"] = ours, rounded
    nearest = QTensor.encode(problem.weight.detach(), plain)
    for name, side in sides.items():
        if side.wanted is None:
            facts[name], facts[f"{name}_rtn"] = side.off(chosen, weight), side.off(nearest, weight)
        else:  # errors of the layers before it are made up for, so it has not the float weight's answers to give
            saved = (side.loss(nearest) - side.loss(chosen)).sum() / side.energy.clamp(min=1e-300)
            facts[f"{name}_saved"] = float(saved)
    return facts
