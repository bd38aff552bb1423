# SPDX-License-Identifier: Apache-2.0
"""What rounding costs: the weighted squared error of every block, measured on what will really be stored."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fewbit.algorithms._base import Problem
from fewbit.algorithms._parallel import each, one_thread
from fewbit.algorithms._tiles import Tiles, total
from fewbit.numerics.qparams import QParams
from fewbit.numerics.quantize import fake_quantize
from fewbit.numerics.rounding import RoundType

_HOST, _DEVICE = 1 << 17, 1 << 22


@one_thread()
def errors(problem: Problem, *choices: QParams | None) -> list[Tensor]:
    """How far rounding with some scales is off.

    Args:
        problem: the weight and how much its elements matter.
        choices: scales for the whole weight; none means that all of it becomes zero.

    Returns:
        For each choice the sums of h (w - ŵ)² over every block: float32 `[weighings, blocks]`, flat as in `Tiles`.
        One weighing is by the importance (all ones without), a second by what was kept aside, if there is any.
    """
    weight, tiles = problem.weight.detach(), Tiles(problem.blocks)
    weights = [problem.importance] if problem.held_out is None else [problem.importance, problem.held_out]
    size = _HOST if weight.device.type == "cpu" else _DEVICE
    roundings = [_Rounding(problem, tiles, choice) for choice in choices]
    found = torch.zeros(len(choices), len(weights), tiles.count, device=weight.device)

    def measure(place: slice, *rows: Callable[[], Tensor | None]) -> None:
        w, *others = (get() for get in rows)
        assert w is not None
        for start in range(0, w.shape[1], size):
            columns = slice(start, start + size)
            piece = w[:, columns].float()
            rest = [None if x is None else x[:, columns] for x in others]
            for rounding, done, sums in zip(roundings, rest[len(weights) :], found):
                square = rounding.off(place, piece, done).square_()
                for h, row in zip(rest, sums):
                    row[place] += total(square if h is None else square * h)

    wholes = (rounding.whole for rounding in roundings)
    each(measure, tiles.walk(size, weight, *weights, *wholes), weight.device)
    return list(found)


def relative(squares: Tensor, silence: Tensor) -> list[float]:
    """The errors of all blocks over those of a weight of zeros, one for each weighing."""
    tiny = torch.finfo(torch.float64).tiny
    return (total(squares.double()) / total(silence.double()).clamp(min=tiny)).tolist()  # type: ignore[no-any-return]


class _Rounding:
    """One choice of scales: what it makes of the weight, tile by tile.

    Stochastic rounding depends on the place in the whole tensor, so there `whole` is all of it, rounded at once.
    """

    def __init__(self, problem: Problem, tiles: Tiles, choice: QParams | None) -> None:
        self.flat = None if choice is None else tiles.flat_qparams(choice)
        self.whole = None
        if choice is not None and problem.grid.rounding is RoundType.stochastic:
            self.whole = fake_quantize(problem.weight.detach().float(), choice)

    def off(self, place: slice, w: Tensor, done: Tensor | None) -> Tensor:
        """The rounded weight less the weight, `[b, e]`, as a new tensor."""
        if self.flat is None:
            return w.clone()
        if done is not None:
            return done - w
        return fake_quantize(w, self.flat.part(place).reshape((1, w.shape[1]), (len(w), 1))).sub_(w)
