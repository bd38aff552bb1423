# SPDX-License-Identifier: Apache-2.0
"""Settled weights, shared out to workers and handed over."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fewbit.algorithms._base import Solution
from fewbit.engine.plan import WeightPlan
from fewbit.engine.workers import Workers
from fewbit.numerics.qtensor import QTensor


def dealt(costs: Sequence[float], workers: int) -> list[int]:
    """Who gets which piece of work: the largest first, each to the one that has least to do so far.

    >>> dealt([1, 4, 2, 2], 2)
    [0, 0, 1, 1]
    """
    owners, load = [0] * len(costs), [0.0] * workers
    for piece in sorted(range(len(costs)), key=lambda piece: -costs[piece]):
        owners[piece] = load.index(min(load))
        load[owners[piece]] += costs[piece]
    return owners


def handed_over(
    solution: Solution | None, w: WeightPlan, workers: Workers, place: torch.device, giver: int = 0
) -> Solution | None:
    """A settled weight of one worker, for all of them; none if it has none.

    Args:
        solution: the giver's; of no meaning for others.
        w: the weight.
        workers: all of them.
        place: where the weight lies, and what is handed over shall.
        giver: who settled it.
    """
    given = solution if workers.rank == giver else None
    facts = workers.say(None if given is None else given.facts)[giver]
    if facts is None:
        return None
    parts = workers.handed(None if given is None else given.qtensor.tensors(), giver=giver, taker=-1)
    placed = {name: part.to(place) for name, part in parts.items()}
    return Solution(QTensor.from_tensors(w.grid, w.point.shape, w.block, placed), facts)
