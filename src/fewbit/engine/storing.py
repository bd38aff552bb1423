# SPDX-License-Identifier: Apache-2.0
"""Which weights of layers that compute in float are kept as codes all the same, because the file is then smaller."""

from __future__ import annotations

from collections.abc import Mapping

from fewbit.algorithms import scale_search
from fewbit.algorithms._base import Problem
from fewbit.engine.plan import Plan
from fewbit.model.ops import EMBEDDING
from fewbit.model.placing import Placed, PlacingView
from fewbit.model.points import Point, Role
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qtensor import QTensor

_ROWS = Grid(Dtype.int8, QSchemeType.per_channel)
_SMALL = 1 << 14  # elements: less is not worth two nodes
_SHARE = 0.25  # of the error that was taken for speed, what may be added for size
_QUIET = 2e-4  # the relative error of a table's rows that nobody notices


def storable(view: PlacingView, plan: Plan, placed: Placed, codes: Mapping[str, QTensor]) -> dict[Point, QTensor]:
    """The weights to be stored as codes, and the codes.

    Layers come by what they add to the error for each byte they save, the least first, until a share of the error that
    the placement takes is used up; a layer whose effect on the answers was not measured stays as it is. Tables are
    stored where rounding their rows changes them by next to nothing.

    Args:
        view: of the float model.
        plan: says which weights may be touched at all.
        placed: what computes in integers.
        codes: of the planned weights, by layer.
    """
    found: dict[Point, QTensor] = {}
    left = _SHARE * placed.harm
    waiting = [w.point for w in plan.weights if w.point.layer not in placed.layers and w.point.elements >= _SMALL]
    measured = [point for point in waiting if point.layer in placed.weight_harm]
    for point in sorted(measured, key=lambda point: placed.weight_harm[point.layer] / point.elements):
        left -= placed.weight_harm[point.layer]
        if left < 0:
            break
        found[point] = codes[point.layer]
    done: set[str] = set()
    for point in view.points(lambda p: p.role is Role.weight and p.op is EMBEDDING and p.elements >= _SMALL):
        if done & set(point.users) or plan.config.resolve(point.layer, view.types(point.layer)).source == "excluded":
            continue
        done |= set(point.users)
        weight = view.read(point)
        solution = scale_search.solve(Problem(weight, _ROWS, _ROWS.weight_block(point.shape), name=point.name))
        if solution.facts["error"] <= _QUIET:
            found[point] = solution.qtensor
    return found
