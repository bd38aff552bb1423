# SPDX-License-Identifier: Apache-2.0
"""Collect: one pass over the data gives every statistic that any algorithm of the plan asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fewbit import registry
from fewbit.engine.observing import range_observer
from fewbit.engine.plan import ActivationPlan, Plan
from fewbit.errors import DataError
from fewbit.model.ops import CONV, CONV_TRANSPOSE, LINEAR
from fewbit.model.points import Point, Role
from fewbit.model.view import ModelView
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.observers._base import RangeObserver
from fewbit.observers._finite import FiniteGuard
from fewbit.observers._layout import activation_rows
from fewbit.observers.moments import MomentsObserver

HELD_OUT_EVERY = 5
"""Of five items one is kept aside to judge what the other four suggested."""


_BY_FEATURE = Grid(Dtype.int8, QSchemeType.per_channel)


@dataclass
class Statistics:
    """What one pass found.

    Args:
        ranges: for every static activation, the observer of its range.
        moments: for every layer whose weights are weighed by their input, the observer of E[x²] by feature.
        held_out: the same, from the items kept aside; empty when there were too few.
        items: how many items were read.
    """

    ranges: dict[Point, RangeObserver] = field(default_factory=dict)
    moments: dict[str, MomentsObserver] = field(default_factory=dict)
    held_out: dict[str, MomentsObserver] = field(default_factory=dict)
    items: int = 0


def collect(view: ModelView, plan: Plan, items: Iterable[tuple[tuple[Any, ...], dict[str, Any]]]) -> Statistics:
    """Run the model over the items and reduce what passes the watched points where it lies.

    Raises:
        DataError: a value that is not finite, with layer and item.
    """
    found = Statistics()
    inputs = {point.layer: point for point in view.points(lambda p: p.role is Role.input)}
    tasks: dict[Point, list[Callable[[Tensor, int], None]]] = {}
    for activation in plan.static:
        tasks.setdefault(activation.point, []).append(_range_task(activation, found))
    moments = _SharedMoments()
    for layer in weighed_layers(plan):
        if layer in inputs:
            tasks.setdefault(inputs[layer], []).append(_moments_task(layer, moments, found))
    guards = {point: FiniteGuard() for point in tasks}

    def watcher(point: Point) -> Callable[[Tensor, int], None]:
        def watch(values: Tensor, item: int) -> None:
            finite = guards[point].admit(values.float(), item)
            for task in tasks[point]:
                task(finite, item)

        return watch

    found.items = view.run(items, {point: watcher(point) for point in tasks})
    _refuse_non_finite(guards)
    return found


def weighed_layers(plan: Plan) -> list[str]:
    """Layers whose weights' errors are weighed by their input, because the algorithm can use it."""
    layers = []
    for w in plan.weights:
        takes = w.point.op in (LINEAR, CONV, CONV_TRANSPOSE) and w.point.role is Role.weight
        if takes and "moments" in registry.get("algorithms", w.algorithm).NEEDS:
            layers.append(w.point.layer)
    return layers


def _range_task(activation: ActivationPlan, found: Statistics) -> Callable[[Tensor, int], None]:
    observer, grid = range_observer(activation.spec), activation.grid

    def task(values: Tensor, item: int) -> None:
        found.ranges[activation.point] = observer
        observer.observe(activation_rows(values, grid))

    return task


def _moments_task(layer: str, shared: _SharedMoments, found: Statistics) -> Callable[[Tensor, int], None]:
    def task(values: Tensor, item: int) -> None:
        into = found.held_out if item % HELD_OUT_EVERY == HELD_OUT_EVERY - 1 else found.moments
        into.setdefault(layer, MomentsObserver()).merge(shared.of(values))

    return task


class _SharedMoments:
    """Layers that read the same tensor (query, key and value projections) share its moments."""

    def __init__(self) -> None:
        self._last: tuple[Tensor, MomentsObserver] | None = None

    def of(self, values: Tensor) -> MomentsObserver:
        """The moments of `[positions, features]`, by feature."""
        if self._last is None or self._last[0] is not values:
            observer = MomentsObserver()
            observer.observe(activation_rows(values, _BY_FEATURE))
            self._last = (values, observer)
        return self._last[1]


def _refuse_non_finite(guards: dict[Point, FiniteGuard]) -> None:
    faults = [(point, found) for point, guard in guards.items() if (found := guard.found()) is not None]
    if faults:
        lines = [f"{point.name} from item {found.item} on ({found})" for point, found in faults[:5]]
        raise DataError(
            f"{len(faults)} activation{'s are' if len(faults) > 1 else ' is'} not finite during calibration",
            code="not-finite",
            where="; ".join(lines),
            expected="finite numbers from the float model on every calibration sample",
            try_="run the float model on that sample; leave it out, or use bfloat16/float32 if float16 overflows",
        )
