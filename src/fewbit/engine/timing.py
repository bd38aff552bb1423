# SPDX-License-Identifier: Apache-2.0
"""How long the weights will take, from a small piece of one of them."""

from __future__ import annotations

import time
from dataclasses import replace

from fewbit.engine.collect import Statistics
from fewbit.engine.plan import Plan, WeightPlan
from fewbit.engine.solve import settle
from fewbit.model.view import ModelView

_PIECE = 1 << 18


def seconds_to_solve(view: ModelView, plan: Plan) -> float | None:
    """An estimate; none for a model on the meta device, which has no weights.

    A piece of the largest weight of each scheme is solved, and its time is carried over to the rest.
    """
    total = 0.0
    groups: dict[tuple[object, str], list[WeightPlan]] = {}
    for w in plan.weights:
        groups.setdefault((w.grid, w.algorithm.name), []).append(w)
    for members in groups.values():
        largest = max(members, key=lambda w: w.point.elements)
        weight = view.read(largest.point)
        if weight.is_meta:
            return None
        rows = max(1, min(weight.shape[0], _PIECE * weight.shape[0] // max(1, weight.numel())))
        piece = weight[:rows]
        block = tuple(min(b, s) for b, s in zip(largest.block, piece.shape))
        start = time.perf_counter()
        settle(piece, replace(largest, block=block), Statistics())
        total += (time.perf_counter() - start) * sum(w.point.elements for w in members) / max(1, piece.numel())
    return total
