# SPDX-License-Identifier: Apache-2.0
"""Round to nearest, with the range of an observer: the yardstick of every other algorithm.

With the default observer nothing is clipped and no data is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from fewbit.observers._base import RangeObserver, observer_class

STAGE = "round"
NEEDS: tuple[str, ...] = ()

# What one observer sees: elements, so that what it puts aside stays in the cache; and blocks, for each of which it may
# keep a histogram.
_ELEMENTS, _BLOCKS = 1 << 18, 1 << 12


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
    """Scales and zero points from the range of each block, as an observer sees it."""
    make = observer_class(observer)
    weight, tiles = problem.weight.detach(), Tiles(problem.blocks)
    low, high = (torch.empty(tiles.count, device=weight.device) for _ in range(2))
    size, most = (_ELEMENTS, _BLOCKS) if weight.device.type == "cpu" else (weight.numel(), None)

    def watch(place: slice, rows: Callable[[], Tensor]) -> None:
        watcher = make(**(observer_parameters or {}))
        if not isinstance(watcher, RangeObserver):
            raise UsageError(f"the observer {observer!r} says no range", expected="one that does, such as 'min_max'")
        watcher.observe(rows())
        low[place], high[place] = watcher.range(problem.grid)

    each(watch, tiles.walk(size, weight, most=most), weight.device)
    return from_range(tiles.shaped(low), tiles.shaped(high), problem.grid, problem.block)
