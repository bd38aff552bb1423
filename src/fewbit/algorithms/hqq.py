# SPDX-License-Identifier: Apache-2.0
"""HQQ: zero points and scales that leave few elements far off, found without data.

Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models" (2023). Errors count as |w - ŵ|^p, p
below one, so that a few large ones are let go and the many are made small. That is no sum of squares, but it becomes
one when the part e of each error that is let go is a variable of its own:

    e = shrink(w - ŵ)              the closed form of the least |e|^p + β/2 (w - ŵ - e)²
    z, s = least Σ (w - e - ŵ)²    with the codes as they are: the mean for z, a quotient for s

turn by turn, with a β that grows; after each turn the codes are those nearest to w. The paper moves z alone. Here the
grid says what is free: a zero point that need not be an integer moves freely, one that must be is rounded, and s moves
too, which is all there is where zero is in the middle. Errors are measured in steps of plain rounding: so β means the
same for weights of any size.

Of a weight that was pruned every zero stays one: there a zero point that could be any number is an integer, so that it
is a code, and plain rounding with such zero points is what the result is held against.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fewbit.algorithms import rtn
from fewbit.algorithms._base import Problem, Solution
from fewbit.algorithms._guard import guarded
from fewbit.algorithms._parallel import each, one_thread
from fewbit.algorithms._search import effort
from fewbit.algorithms._tiles import Tiles, total
from fewbit.algorithms._zeros import pruned_zeros
from fewbit.errors import UsageError
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import fake_quantize
from fewbit.numerics.scales import round_scale

STAGE = "round"
NEEDS: tuple[str, ...] = ()

_ELEMENTS = 1 << 17  # of a tile, of which some ten copies are in use at a time
_BETA, _GROWTH = 10.0, 1.01
_TINY = 1e-30


@one_thread()
def solve(problem: Problem, *, p: float = 0.7, iterations: int = 20) -> Solution:
    """The scales and zero points of the least sum of |w - ŵ|^p, where they lose no more than plain rounding does.

    Args:
        problem: the weight; importance and what was kept aside only judge the result.
        p: how little large errors count, from (0, 1).
        iterations: how many turns.

    Raises:
        DataError: a value is not finite.
        UsageError: shapes that do not fit together, a p or a number of turns that cannot be.

    >>> from fewbit.numerics.dtypes import Dtype
    >>> from fewbit.numerics.grid import Grid
    >>> grid = Grid(Dtype.uint2, symmetric=False, float_zero=True)
    >>> facts = solve(Problem(torch.tensor([[0.1, 0.12, 0.11, 0.22, 0.21, 0.9]]), grid, (1, 6))).facts
    >>> round(facts["p_error"], 2), round(facts["p_error_rtn"], 2)
    (0.23, 0.24)
    """
    if not 0 < p < 1 or iterations < 0:
        raise UsageError(f"p={p!r}, iterations={iterations!r}", where="hqq", expected="p from (0, 1), turns from 0 up")
    problem.check()
    tiles, zeros = Tiles(problem.blocks), pruned_zeros(problem.weight)
    plain = tiles.flat_qparams(_with_zero(problem) if zeros else rtn.qparams(problem))
    found, norms = plain, None
    if effort(problem.grid, weighted=False) is not None:
        found, norms = _searched(problem, plain, p, iterations, free=problem.grid.free_zero and not zeros)
    chosen, kept, facts = guarded(problem, found, plain)
    if norms is not None:
        silence = total(norms[2].double()).clamp(min=_TINY)
        ours = torch.where(kept, norms[1], norms[0])
        facts |= {"p_error": float(total(ours.double()) / silence)}
        facts |= {"p_error_rtn": float(total(norms[0].double()) / silence)}
    facts["won"] = float((kept & _moved(found, plain)).double().mean()) if tiles.count else 0.0
    facts |= {"zeros_kept": zeros} if zeros else {}
    return Solution(QTensor.encode(problem.weight.detach(), chosen), facts)


def _with_zero(problem: Problem) -> QParams:
    """Plain rounding to a grid on which zero lies, whatever the grid of the problem allows."""
    found = rtn.qparams(replace(problem, grid=problem.grid.replace(float_zero=False)))
    zero = None if found.zero_point is None else found.zero_point.to(found.scale.dtype)
    return replace(found, grid=problem.grid, zero_point=zero)


def _searched(problem: Problem, plain: QParams, p: float, iterations: int, *, free: bool) -> tuple[QParams, Tensor]:
    """The best of all turns, block by block, and sums of |w - ŵ|^p: before, then, and if all were zero; `[3, B]`."""
    weight = problem.weight.detach()
    scale = plain.scale.clone()
    zero = None if plain.zero_point is None else plain.zero_point.clone()
    norms = torch.zeros(3, len(scale), device=scale.device)

    def improve(place: slice, rows: Callable[[], Tensor]) -> None:
        found = _Turns(rows().float(), plain.part(place), p, free=free)
        norms[0, place], norms[2, place] = found.norm, found.silence
        for turn in range(iterations):
            found.turn(_BETA * _GROWTH**turn)
        norms[1, place], scale[place] = found.norm, found.best.scale
        if zero is not None and found.best.zero_point is not None:
            zero[place] = found.best.zero_point

    size = _ELEMENTS if weight.device.type == "cpu" else weight.numel()
    each(improve, Tiles(problem.blocks).walk(max(size, 1), weight), weight.device)
    return replace(plain, scale=scale, zero_point=zero), norms


def _moved(found: QParams, plain: QParams) -> Tensor:
    moved = found.scale != plain.scale
    if found.zero_point is not None and plain.zero_point is not None:
        moved = moved | (found.zero_point != plain.zero_point)
    return moved


class _Turns:
    """Some blocks, `w` `[B, E]`, on their way; `free` says whether a zero point may be any number.

    Attributes:
        best: the scales of the least norm so far.
        norm: that norm, Σ |w - ŵ|^p in steps of plain rounding, `[B]`.
        silence: the norm of ŵ = 0.
    """

    def __init__(self, w: Tensor, plain: QParams, p: float, *, free: bool) -> None:
        self._free = free
        self._w, self._unit, self._p = w, plain.step.abs().unsqueeze(1), p
        self._now = self.best = plain
        self.silence = total((w / self._unit).abs().pow_(p))
        self._rounded, self._off, self._slope = self._look()
        self.norm = self._norm()

    def turn(self, beta: float) -> None:
        """Let go of what is far off, fit the rest, round anew."""
        size = self._off.abs()
        let_go = (size - self._slope / beta).clamp_(min=0).copysign_(self._off)
        self._fit(self._w - let_go.mul_(self._unit))
        self._rounded, self._off, self._slope = self._look()
        norm = self._norm()
        better = norm < self.norm
        self.norm = torch.where(better, norm, self.norm)
        now, best, zero = self._now, self.best, self.best.zero_point
        if zero is not None and now.zero_point is not None:
            zero = torch.where(better, now.zero_point, zero)
        self.best = replace(best, scale=torch.where(better, now.scale, best.scale), zero_point=zero)

    def _look(self) -> tuple[Tensor, Tensor, Tensor]:
        """What the elements become, how many steps each is off, and |off|^(p - 1)."""
        count, elements = self._w.shape
        rounded = fake_quantize(self._w, self._now.reshape((1, elements), (count, 1)))
        off = (self._w - rounded).div_(self._unit)
        return rounded, off, off.abs().clamp_(min=_TINY).pow_(self._p - 1)

    def _norm(self) -> Tensor:
        return total(self._off.abs() * self._slope)

    def _fit(self, aim: Tensor) -> None:
        """The zero point, and then the scale, with which the codes as they are come nearest to an aim."""
        now, grid = self._now, self._now.grid
        steps = self._rounded / now.step.unsqueeze(1)  # codes, counted from the zero point
        zero = now.zero_point
        if grid.asymmetric and zero is not None:
            moved = total(steps - aim / now.step.unsqueeze(1)) / steps.shape[1]
            if not self._free:
                moved = (zero + moved).round().clamp(grid.dtype.lowest, grid.dtype.highest) - zero
            zero, steps = zero + moved, steps - moved.unsqueeze(1)
        energy, fit = total(steps.square()), total(steps * aim)
        step = torch.where(energy > _TINY, fit / energy.clamp(min=_TINY), now.step)
        usable = step.isfinite() & (step != 0) & ((step > 0) == (now.step > 0))
        scale = step if now.super_scale is None else step / now.super_scale
        scale = torch.where(usable, round_scale(scale, grid.scale_type), now.scale)
        self._now = replace(now, scale=scale, zero_point=zero)
