# SPDX-License-Identifier: Apache-2.0
"""Solve and apply: one weight after the other gets its codes, so that memory follows the largest layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fewbit.algorithms._base import Problem, Solution
from fewbit.data.findings import Progress
from fewbit.engine.collect import Statistics
from fewbit.engine.experts import merged, patterns_of_each, stacked
from fewbit.engine.plan import ActivationPlan, Plan, WeightPlan
from fewbit.engine.super_scales import super_scales
from fewbit.model.points import Point, Role
from fewbit.model.view import ModelView
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams, from_range
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import round_scale
from fewbit.observers._base import Observer
from fewbit.observers.moments import MomentsObserver
from fewbit.record import Record

_LOST = 0.5  # of the energy of a layer's answers; two bits lose a fifth


def solve(view: ModelView, plan: Plan, statistics: Statistics, record: Record, progress: Progress) -> None:
    """Settle every weight and activation of a plan and put the result into the view's model."""
    above = super_scales(view.read, plan.weights)
    for w in progress.track(plan.weights, total=len(plan.weights), label="weights"):
        solution = settle(view.read(w.point), w, statistics, above.get(w.point.name))
        if w.pattern is None and is_lost(solution):
            note_lost(record, w, solution)
            continue
        put_back(view, w, solution.qtensor)
        record.note(done(w), w.why, where=w.point.name, algorithm=w.algorithm.name, **solution.facts)
    settle_activations(view, plan, statistics, record)


def settle_activations(
    view: ModelView, plan: Plan, statistics: Statistics, record: Record
) -> dict[Point, QParams | Grid]:
    """Put every activation of a plan on its grid; returns those that are, with scales or with the grid alone."""
    found: dict[Point, QParams | Grid] = {}
    for activation in plan.activations:
        how = _activation(activation, statistics, plan.config.min_kv_scale)
        if how is None:
            reason = "no calibration sample reached this layer, so its activation stays in float"
            record.note("not-reached", reason, where=activation.point.name)
        else:
            view.quantize(activation.point, how)
            found[activation.point] = how
            record.note("activation", activation.why, where=activation.point.name, scheme=activation.text)
    return found


def put_back(view: ModelView, w: WeightPlan, codes: QTensor) -> None:
    """Put a settled weight into the model: as codes, or as floats with zeros in them."""
    if w.stays_float:
        view.write(w.point, codes.dequantize())
    else:
        view.quantize(w.point, codes)


def done(w: WeightPlan) -> str:
    """What the record calls it."""
    return "quantized" if w.pattern is None else "pruned"


def is_lost(solution: Solution) -> bool:
    """Whether the best codes there are lose more of what a layer answers than is left; zeros that are asked for may."""
    error = solution.facts.get("held_out_error", solution.facts.get("error", 0.0))
    return bool(error > _LOST)


def note_lost(record: Record, w: WeightPlan, solution: Solution) -> None:
    """Say that a weight stays in float, and count its bytes so."""
    reason = "its codes would lose more than half of what it answers"
    record.note("float", reason, where=w.point.name, bytes=w.bytes_before, **solution.facts)
    if "bytes_after" in record.facts:
        record.facts["bytes_after"] += w.bytes_before - w.bytes_after


@dataclass(frozen=True)
class Known:
    """Statistics of a layer that no observer took, as an observer hands them over."""

    seen: Mapping[str, Tensor]
    empty: bool = False


def settle(
    weight: Tensor,
    planned: WeightPlan,
    statistics: Statistics,
    super_scale: Tensor | None = None,
    shared: dict[Any, Any] | None = None,
) -> Solution:
    """The codes and scales of one weight.

    Args:
        weight: the weight.
        planned: what becomes of it.
        statistics: with those of its layer.
        super_scale: a scale above those of blocks that it shares with others, if there is one.
        shared: what was found out for other weights that read the same input.
    """
    if planned.pattern is not None and planned.point.stack:
        return _settle_each(weight, planned, statistics)
    if planned.grid.dtype.is_cast and planned.pattern is None:
        return Solution(QTensor.encode(weight, _unit(planned.grid, planned.block, weight.device)))
    seen = statistics.inputs.get(planned.point.layer, {})
    judges = statistics.held_out.get(planned.point.layer, {})
    problem = Problem(
        weight,
        planned.grid,
        planned.block,
        _importance(seen, planned.point),
        _importance(judges, planned.point),
        {name: observer.seen for name, observer in seen.items() if not observer.empty},
        {name: observer.seen for name, observer in judges.items() if not observer.empty},
        name=planned.point.name,
        super_scale=super_scale,
        shared={} if shared is None else shared,
        pattern=planned.pattern,
    )
    return planned.algorithm.solve(problem, **planned.parameters)


def _settle_each(weight: Tensor, planned: WeightPlan, statistics: Statistics) -> Solution:
    """A stack of weights, of which each has the zeros that its pattern asks for."""
    deep, point = planned.point.stack, planned.point
    alone = replace(point, shape=point.shape[deep:], stack=0)
    block, matrices = planned.block[deep:], weight.flatten(0, deep - 1)
    patterns = patterns_of_each(planned.pattern, matrices)
    found = [
        settle(matrix, replace(planned, point=alone, block=block, pattern=pattern), statistics)
        for matrix, pattern in zip(matrices, patterns)
    ]
    joined = stacked([solution.qtensor for solution in found], (1, *block)).tensors()
    parts = {name: x.reshape(*point.shape[:deep], *x.shape[1:]) if x.ndim else x for name, x in joined.items()}
    facts = merged([solution.facts for solution in found])
    return Solution(QTensor.from_tensors(planned.grid, point.shape, planned.block, parts), facts)


def _importance(seen: Mapping[str, Observer], point: Point) -> Tensor | None:
    """E[x²] by input feature, shaped to be broadcast against the weight `[out, in, kernel…]`."""
    moments = seen.get("moments")
    if not isinstance(moments, MomentsObserver) or moments.empty or point.role is Role.bias:
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
    if planned.grid.dtype.is_cast:
        return _unit(planned.grid, (1,))
    if planned.dynamic:
        return planned.grid
    observer = statistics.ranges.get(planned.point)
    if observer is None:
        return None
    low, high = observer.range(planned.grid)
    found = from_range(low, high, planned.grid, (1,))
    return replace(found, scale=_at_least(found.scale, least, planned.grid)) if planned.is_cache else found


def _at_least(scale: Tensor, least: float, grid: Grid) -> Tensor:
    """Scales no smaller than a size, of the sign they had and of their type."""
    return round_scale(
        torch.where(scale.abs() < least, torch.full_like(scale, least).copysign(scale), scale), grid.scale_type
    )


def _unit(grid: Grid, block: tuple[int, ...], device: torch.device | None = None) -> QParams:
    return QParams(grid, block, torch.ones((1,) * len(block), device=device))
