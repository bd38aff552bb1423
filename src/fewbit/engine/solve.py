# SPDX-License-Identifier: Apache-2.0
"""Solve and apply: one weight after the other gets its codes, so that memory follows the largest layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fewbit import registry
from fewbit.algorithms._base import Problem, Solution
from fewbit.data.findings import Progress
from fewbit.engine.collect import Statistics
from fewbit.engine.plan import ActivationPlan, Plan, WeightPlan
from fewbit.model.points import Point, Role
from fewbit.model.view import ModelView
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams, from_range
from fewbit.numerics.qtensor import QTensor
from fewbit.observers.moments import MomentsObserver
from fewbit.record import Record


def solve(view: ModelView, plan: Plan, statistics: Statistics, record: Record, progress: Progress) -> None:
    """Settle every weight and activation of a plan and put the result into the view's model."""
    for w in progress.track(plan.weights, total=len(plan.weights), label="weights"):
        solution = settle(view.read(w.point), w, statistics)
        view.quantize(w.point, solution.qtensor)
        record.note("quantized", w.why, where=w.point.name, algorithm=w.algorithm, **solution.facts)
    for activation in plan.activations:
        how = _activation(activation, statistics, plan.config.min_kv_scale)
        if how is None:
            reason = "no calibration sample reached this layer, so its activation stays in float"
            record.note("not-reached", reason, where=activation.point.name)
        else:
            view.quantize(activation.point, how)


def settle(weight: Tensor, planned: WeightPlan, statistics: Statistics) -> Solution:
    """The codes and scales of one weight."""
    if planned.point.dtype and planned.grid.dtype.name in ("float16", "bfloat16"):
        return Solution(QTensor.encode(weight, _unit(planned.grid, planned.block)))
    importance = _importance(statistics.moments.get(planned.point.layer), planned.point)
    held_out = _importance(statistics.held_out.get(planned.point.layer), planned.point)
    problem = Problem(weight, planned.grid, planned.block, importance, held_out, name=planned.point.name)
    parameters: dict[str, Any] = {}
    if planned.algorithm == "rtn" and planned.spec.observer_cls:
        parameters = {"observer": planned.spec.observer_cls, "observer_parameters": planned.spec.observer_parameters}
    solution: Solution = registry.get("algorithms", planned.algorithm).solve(problem, **parameters)
    return solution


def _importance(moments: MomentsObserver | None, point: Point) -> Tensor | None:
    """E[x²] by input feature, shaped to be broadcast against the weight `[out, in, kernel…]`."""
    if moments is None or moments.empty or point.role is Role.bias:
        return None
    mean = moments.mean_square
    out, inner = point.shape[point.stack], point.shape[point.stack + 1]
    if mean.numel() != inner * point.groups:
        return None  # the layer reads something else than what its weight is multiplied with
    kernel = (1,) * (len(point.shape) - point.stack - 2)
    if point.groups == 1:
        return mean.reshape(1, inner, *kernel)
    return mean.reshape(point.groups, inner).repeat_interleave(out // point.groups, 0).reshape(out, inner, *kernel)


def _activation(planned: ActivationPlan, statistics: Statistics, least: float) -> QParams | Grid | None:
    if planned.is_cast:
        return _unit(planned.grid, (1,))
    if planned.dynamic:
        return planned.grid
    observer = statistics.ranges.get(planned.point)
    if observer is None:
        return None
    low, high = observer.range(planned.grid)
    found = from_range(low, high, planned.grid, (1,))
    if planned.point.role in (Role.key, Role.value):
        return replace(found, scale=found.scale.clamp(min=least))
    return found


def _unit(grid: Grid, block: tuple[int, ...]) -> QParams:
    return QParams(grid, block, torch.ones((1,) * len(block)))
