# SPDX-License-Identifier: Apache-2.0
"""Round to nearest, with the range of an observer: the yardstick of every other algorithm.

With the default observer nothing is clipped and no data is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fewbit.algorithms._base import Problem, Solution
from fewbit.algorithms._error import errors, relative
from fewbit.algorithms._parallel import each, one_thread
from fewbit.algorithms._tiles import Tiles
from fewbit.errors import UsageError
from fewbit.numerics.qparams import QParams, from_range
from fewbit.numerics.qtensor import QTensor
from fewbit.observers._base import RangeObserver, observer_class, range_observers
from fewbit.observers.min_max import MinMaxObserver

STAGE = "round"
NEEDS: tuple[str, ...] = ()

# What one observer sees: elements, so that what it puts aside stays in the cache; and blocks, for each of which it may
# keep a histogram. Elsewhere than on a CPU only these count: a quarter of a gigabyte, and five times that in between.
_ELEMENTS, _BLOCKS = 1 << 18, 1 << 12
_DEVICE_BLOCKS = 1 << 14


@one_thread()
def solve(
    problem: Problem, observer: str | type = "min_max", observer_parameters: Mapping[str, Any] | None = None
) -> Solution:
    """Every element on the nearest value of the grid, the scales from the range of each block.

    Args:
        problem: the weight.
        observer: which observer says the range.
        observer_parameters: its parameters, by name.

    >>> from fewbit.numerics.dtypes import Dtype
    >>> from fewbit.numerics.grid import Grid
    >>> solve(Problem(torch.tensor([[3.0, 1.1]]), Grid(Dtype.int2), (1, 2))).qtensor.dequantize()
    tensor([[2., 2.]])
    """
    problem.check()
    found = qparams(problem, observer, observer_parameters)
    facts = dict(zip(("error", "held_out_error"), relative(*errors(problem, found, None))))
    return Solution(QTensor.encode(problem.weight.detach(), found), facts)


@one_thread()
def qparams(
    problem: Problem, observer: str | type = "min_max", observer_parameters: Mapping[str, Any] | None = None
) -> QParams:
    """Scales and zero points from the range of each block, as an observer sees it.

    A scale above all blocks is that of the whole weight, clipped or not: it has to be known before any block's range
    is looked for, and no observer sees more than a tile.
    """
    make = observer_class(observer)
    if not issubclass(make, RangeObserver):
        what = f"the observer {observer!r} says no range"
        raise UsageError(what, where=problem.name or None, expected=f"one of {', '.join(range_observers())}")
    above = problem.super_scale
    if above is None and problem.grid.two_level and make is not MinMaxObserver:
        above = _from_ranges(problem, MinMaxObserver).super_scale
    return _from_ranges(problem, partial(make, **(observer_parameters or {})), above)


def _from_ranges(problem: Problem, make: Callable[[], RangeObserver], super_scale: Tensor | None = None) -> QParams:
    """The same from new observers, one a tile; under a scale that is known, if there is one."""
    grid, weight, tiles = problem.grid, problem.weight.detach(), Tiles(problem.blocks)
    low, high = (torch.empty(tiles.count, device=weight.device) for _ in range(2))
    size, most = (_ELEMENTS, _BLOCKS) if weight.device.type == "cpu" else (weight.numel(), _DEVICE_BLOCKS)

    def watch(place: slice, rows: Callable[[], Tensor]) -> None:
        watcher = make()
        watcher.observe(rows())
        found = watcher.range(grid) if super_scale is None else watcher.range_under(grid, super_scale)
        low[place], high[place] = found

    each(watch, tiles.walk(size, weight, most=most), weight.device)
    return from_range(tiles.shaped(low), tiles.shaped(high), grid, problem.block, super_scale=super_scale)
