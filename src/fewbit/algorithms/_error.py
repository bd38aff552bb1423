# SPDX-License-Identifier: Apache-2.0
"""What rounding costs: the weighted squared error of every block, measured on what will really be stored."""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.algorithms._base import Problem
from fewbit.algorithms._tiles import Tiles, total
from fewbit.numerics.qparams import QParams
from fewbit.numerics.quantize import dequantize, quantize
from fewbit.numerics.rounding import RoundType

_HOST, _DEVICE = 1 << 18, 1 << 26


def tile_size(device: torch.device, host: int = _HOST) -> int:
    """Elements of a tile: what the cache holds on a CPU, few and large launches elsewhere."""
    return host if device.type == "cpu" else _DEVICE


def weighings(problem: Problem) -> list[Tensor | None]:
    """The importances to judge by: that of the samples (none is all ones), then the one kept aside if there is one."""
    return [problem.importance] if problem.held_out is None else [problem.importance, problem.held_out]


def errors(problem: Problem, *choices: QParams) -> tuple[list[Tensor], Tensor]:
    """How far rounding with some scales is off.

    Args:
        problem: the weight and how much its elements matter.
        choices: scales for the whole weight, any number of them.

    Returns:
        For each choice the sum of h (w - ŵ)² of every block, float32 `[weighings, blocks]` in the flat order of `Tiles`;
        and the sum of h w², float64 `[weighings]`.
    """
    weight, tiles, weights = problem.weight.detach(), Tiles(problem.blocks), weighings(problem)
    size = tile_size(weight.device)
    flats = [flattened(tiles, choice) for choice in choices]
    # Stochastic rounding depends on the place in the whole tensor: it is done at once, everything else tile by tile.
    whole = [quantize(weight, choice) for choice in choices] if problem.grid.rounding is RoundType.stochastic else []
    found = [torch.zeros(len(weights), flat.scale.numel(), device=weight.device) for flat in flats]
    signals = [torch.zeros(len(weights), dtype=torch.float64, device=weight.device)]
    for place, (rows, *others) in tiles.walk(size, weight, *weights, *whole):
        assert rows is not None
        for start in range(0, rows.shape[1], size):
            w, *rest = (None if x is None else x[:, start : start + size] for x in (rows, *others))
            assert w is not None
            w = w.float()
            own = rest[: len(weights)]
            signals.append(total(_weigh(w.square(), own).double()))
            for index, flat in enumerate(flats):
                some = flat.part(place, (1, w.shape[1])).reshape((1, w.shape[1]), (len(w), 1))
                codes = rest[len(weights) + index] if whole else quantize(w, some)
                assert codes is not None
                found[index][:, place] += _weigh(dequantize(codes, some).sub_(w).square_(), own)
    return found, total(torch.stack(signals, -1))


def relative(squares: Tensor, signal: Tensor) -> Tensor:
    """The errors of all blocks over the signal: float64 `[weighings]`, zero for a weight of zeros."""
    return total(squares.double()) / signal.clamp(min=torch.finfo(torch.float64).tiny)


def flattened(tiles: Tiles, qparams: QParams) -> QParams:
    """Scales and zero points in the flat order of `Tiles`."""
    zero = None if qparams.zero_point is None else tiles.flat(qparams.zero_point)
    return QParams(qparams.grid, qparams.block, tiles.flat(qparams.scale), zero, qparams.super_scale)


def _weigh(square: Tensor, weights: list[Tensor | None]) -> Tensor:
    """Weighted sums over the rows: `[weighings, blocks]`."""
    return torch.stack([total(square if h is None else square * h) for h in weights])
