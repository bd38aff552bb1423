# SPDX-License-Identifier: Apache-2.0
"""What rounding costs: the weighted squared error of every block, measured on what will really be stored."""

from __future__ import annotations

from collections.abc import Callable
from math import frexp, ldexp

import torch
from torch import Tensor

from fewbit.algorithms._base import Problem
from fewbit.algorithms._parallel import each, one_thread
from fewbit.algorithms._tiles import Tiles, total
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import fake_quantize
from fewbit.numerics.rounding import RoundType

_HOST, _DEVICE = 1 << 19, 1 << 22
# Exponents: up to the first, squares of weights and sums of them are far from the ends of float32; up to the second, a
# unit and its reciprocal are.
_ORDINARY, _FARTHEST = 24, 100


@one_thread()
def errors(problem: Problem, *choices: QParams | QTensor | None) -> list[Tensor]:
    """How far what becomes of a weight is off.

    Args:
        problem: the weight and how much its elements matter.
        choices: scales for the whole weight, to whose grid it is rounded; codes, which are judged as they are; or none:
            all of it becomes zero.

    Returns:
        For each choice the sums of h (w - ŵ)² over every block: float32 `[weighings, blocks]`, flat as in `Tiles`.
        One weighing is by the importance (all ones without), a second by what was kept aside, if there is any. Weights
        of a size whose squares are no float32 numbers are measured in a unit of their own.
    """
    weight, tiles = problem.weight.detach(), Tiles(problem.blocks)
    weights = [problem.importance] if problem.held_out is None else [problem.importance, problem.held_out]
    size = _HOST if weight.device.type == "cpu" else _DEVICE
    roundings = [_Rounding(problem, tiles, choice) for choice in choices]
    found = torch.zeros(len(choices), len(weights), tiles.count, device=weight.device)
    unit = _unit(weight)

    def measure(place: slice, *rows: Callable[[], Tensor | None]) -> None:
        w, *others = (get() for get in rows)
        assert w is not None
        for start in range(0, w.shape[1], size):
            columns = slice(start, start + size)
            piece = w[:, columns].float()
            rest = [None if x is None else x[:, columns] for x in others]
            for rounding, done, sums in zip(roundings, rest[len(weights) :], found):
                off = rounding.off(place, piece, done)
                square = (off if unit == 1 else off.div_(unit)).square_()
                for h, row in zip(rest, sums):
                    row[place] += total(square if h is None else square * h)

    wholes = (rounding.whole for rounding in roundings)
    each(measure, tiles.walk(size, weight, *weights, *wholes), weight.device)
    return list(found)


def _unit(weight: Tensor) -> float:
    """What errors are measured in: a power of two where the squares of weights leave float32, else 1."""
    size = float(torch.stack(weight.aminmax()).abs().amax()) if weight.numel() else 0.0
    exponent = frexp(size)[1]
    return 1.0 if abs(exponent) <= _ORDINARY else ldexp(1.0, max(-_FARTHEST, min(exponent, _FARTHEST)))


def relative(squares: Tensor, silence: Tensor) -> list[float]:
    """The errors of all blocks over those of a weight of zeros, one for each weighing."""
    tiny = torch.finfo(torch.float64).tiny
    return (total(squares.double()) / total(silence.double()).clamp(min=tiny)).tolist()  # type: ignore[no-any-return]


class _Rounding:
    """One choice: what it makes of the weight, tile by tile.

    Stochastic rounding depends on the place in the whole tensor, so there `whole` is all of it, rounded at once; it is
    also where codes come from elsewhere.
    """

    def __init__(self, problem: Problem, tiles: Tiles, choice: QParams | QTensor | None) -> None:
        self.flat = tiles.flat_qparams(choice) if isinstance(choice, QParams) else None
        self.whole = choice.dequantize() if isinstance(choice, QTensor) else None
        if isinstance(choice, QParams) and problem.grid.rounding is RoundType.stochastic:
            self.whole = fake_quantize(problem.weight.detach().float(), choice)

    def off(self, place: slice, w: Tensor, done: Tensor | None) -> Tensor:
        """The rounded weight less the weight, `[b, e]`, as a new tensor."""
        if done is not None:
            return done - w
        if self.flat is None:
            return w.clone()
        return fake_quantize(w, self.flat.part(place).reshape((1, w.shape[1]), (len(w), 1))).sub_(w)
