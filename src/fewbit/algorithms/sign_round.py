# SPDX-License-Identifier: Apache-2.0
"""The codes of a block tuned together, by gradients of what the block as a whole answers.

Every weight begins with what `gptq` finds for it alone. Then, a few items at a time, each element and each scale goes a
small step against the sign of the slope that the block's squared error has there, as if nothing were rounded (arXiv
2309.05516, with signs averaged over steps). From time to time the items kept aside judge; what they like best is kept,
and the start is among it. Scales that are powers of two stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, overload

import torch
from torch import Tensor

from fewbit.algorithms import gptq
from fewbit.algorithms._base import Problem, Solution
from fewbit.algorithms._block import BlockProblem, Tuned
from fewbit.algorithms._turning import Turning
from fewbit.errors import UsageError

STAGE = "tune"
NEEDS = gptq.NEEDS

_STEPS, _FEW_STEPS = 200, 50
_NARROW = 3  # bits, up to which many steps are worth their time
_WAY = 1.5  # the rate times the steps: twice the way that a sign which never changes leads
_JUDGEMENTS = 20


@overload
def solve(problem: Problem, *, iters: int | None = ..., lr: float | None = ..., batch: int = ...) -> Solution: ...
@overload
def solve(problem: BlockProblem, *, iters: int | None = ..., lr: float | None = ..., batch: int = ...) -> Tuned: ...
def solve(
    problem: Problem | BlockProblem, *, iters: int | None = None, lr: float | None = None, batch: int = 8
) -> Solution | Tuned:
    """The codes with which a block answers best; for one weight alone, those it begins with.

    Args:
        problem: the weights of a block that have codes; or one weight, as `gptq` takes it.
        iters: how many steps; by default 200 if a weight has three bits or fewer, else 50.
        lr: the size of the first step, in steps of the grid and as a share of a scale; it falls to zero linearly. By
            default 1.5 over the number of steps.
        batch: how many items each step looks at.

    Raises:
        DataError: a value is not finite.
        UsageError: shapes that do not fit together, a parameter out of its range.

    >>> from fewbit.numerics.dtypes import Dtype
    >>> from fewbit.numerics.grid import Grid
    >>> from fewbit.numerics.qparams import QParams
    >>> from fewbit.numerics.qtensor import QTensor
    >>> weight = torch.tensor([[3.3, 1.4, 1.2]])
    >>> start = QTensor.encode(weight, QParams(Grid(Dtype.int4), (1, 3), torch.ones(1, 1)))
    >>> total = lambda values, items: values["w"].sum().reshape(1, 1)  # 5 is rounded, 5.9 is wanted
    >>> problem = BlockProblem({"w": weight}, {"w": start}, total, lambda items: weight.sum().reshape(1, 1), [0])
    >>> solve(problem).codes["w"].dequantize().sum().round(decimals=1)
    tensor(5.9000)
    """
    faults = {"iters": iters is not None and iters < 0, "lr": lr is not None and not 0 < lr < inf, "batch": batch < 1}
    if any(faults.values()):
        wrong = ", ".join(name for name, is_wrong in faults.items() if is_wrong)
        raise UsageError(
            f"iters={iters!r}, lr={lr!r}, batch={batch!r}",
            where=wrong,
            expected="steps from 0 up, a rate above zero, one item at least",
        )
    if isinstance(problem, Problem):
        return gptq.solve(problem)
    problem.check()
    if iters is None:
        narrowest = min(start.grid.dtype.bits for start in problem.start.values())
        iters = _STEPS if narrowest <= _NARROW else _FEW_STEPS
    return _tuned(problem, iters, _WAY / max(iters, 1) if lr is None else lr, batch)


def _tuned(problem: BlockProblem, iters: int, lr: float, batch: int) -> Tuned:
    turning = {name: Turning(weight, problem.start[name]) for name, weight in problem.weights.items()}
    judges = problem.held_out or problem.items
    first = best = _off(problem, {name: each.values() for name, each in turning.items()}, judges, batch)
    kept = torch.zeros_like(best)
    pause = max(1, iters // _JUDGEMENTS)
    # Only signs count, so slopes may be in any unit: one in which they are far from the ends of narrow floats.
    unit = first.clamp(min=torch.finfo(torch.float32).tiny).rsqrt().float()
    for step, items in enumerate(_batches(problem.items, batch, iters), 1):
        slopes = _slopes(problem, {name: each.values() for name, each in turning.items()}, items, unit)
        for each, slope in zip(turning.values(), slopes):
            if slope is not None:
                each.turn(slope, lr * (1 - (step - 1) / iters))
        if step % pause == 0 or step == iters:
            now = _off(problem, {name: each.values() for name, each in turning.items()}, judges, batch)
            better = now < best
            best, kept = torch.where(better, now, best), torch.where(better, step, kept)
            for each in turning.values():
                each.keep(better)
    return _result(problem, turning, first, best, kept, iters)


def _slopes(
    problem: BlockProblem, values: dict[str, Tensor], items: Sequence[int], unit: Tensor
) -> tuple[Tensor | None, ...]:
    """The slope of the squared error by each weight's values; none for one that these items do not reach."""
    wanted = problem.wanted(items)
    with torch.enable_grad():
        leaves = {name: value.requires_grad_() for name, value in values.items()}
        off = problem.run(leaves, items).float() - wanted.float()
        return torch.autograd.grad((off * unit).square().sum(), list(leaves.values()), allow_unused=True)


@torch.no_grad()
def _off(problem: BlockProblem, values: dict[str, Tensor], items: Sequence[int], batch: int) -> Tensor:
    """The mean squared error over some items, float64 `[]`."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for at in range(0, len(items), batch):
        some = items[at : at + batch]
        off = problem.run(values, some).float() - problem.wanted(some).float()
        total = off.square().sum().double() + total.to(off.device)
        count += off.numel()
    return total / max(count, 1)


def _batches(items: Sequence[int], size: int, count: int) -> Iterator[list[int]]:
    """So many batches: all items in random order, then again in another."""
    draw = torch.Generator().manual_seed(0)
    waiting: list[int] = []
    for _ in range(count):
        while len(waiting) < min(size, len(items)):
            waiting += [items[index] for index in torch.randperm(len(items), generator=draw).tolist()]
        yield sorted(waiting[:size])
        waiting = waiting[size:]


def _result(
    problem: BlockProblem, turning: dict[str, Turning], first: Tensor, best: Tensor, kept: Tensor, iters: int
) -> Tuned:
    size = _energy(problem)
    side = "held_out_error" if problem.held_out else "error"
    step = int(kept)
    facts: dict[str, Any] = {side: float(best) / size, f"{side}_start": float(first) / size, "steps": iters}
    facts |= {"best_step": step, "turned": 0.0}
    if not step:
        return Tuned(dict(problem.start), facts)
    codes = {name: each.result() for name, each in turning.items()}
    turned = sum(int((codes[name].codes() != start.codes()).sum()) for name, start in problem.start.items())
    facts["turned"] = turned / max(1, sum(weight.numel() for weight in problem.weights.values()))
    return Tuned(codes, facts)


def _energy(problem: BlockProblem) -> float:
    """The mean square of what is wanted of the judges."""
    sums = [torch.zeros(2, dtype=torch.float64)]
    for item in problem.held_out or problem.items:
        wanted = problem.wanted([item]).float()
        sums.append(torch.stack((wanted.square().sum(), wanted.new_tensor(wanted.numel()))).double().cpu())
    total, count = (float(each) for each in torch.stack(sums).sum(0))
    return max(total / max(count, 1.0), torch.finfo(torch.float64).tiny)
