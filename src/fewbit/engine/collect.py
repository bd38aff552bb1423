# SPDX-License-Identifier: Apache-2.0
"""Collect: one pass over the data gives every statistic that any algorithm of the plan asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fewbit.engine.observing import range_observer
from fewbit.engine.plan import ActivationPlan, Plan
from fewbit.errors import DataError
from fewbit.model.ops import CONV, CONV_TRANSPOSE, LINEAR
from fewbit.model.points import Point, Role
from fewbit.model.view import ModelView
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.observers._base import Observer, RangeObserver, observer_class
from fewbit.observers._finite import FiniteGuard
from fewbit.observers._layout import activation_rows

HELD_OUT_EVERY = 5
"""Of five items one is kept aside to judge what the other four suggested."""


_BY_FEATURE = Grid(Dtype.int8, QSchemeType.per_channel)


@dataclass
class Statistics:
    """What one pass found.

    Args:
        ranges: for every static activation, the observer of its range.
        inputs: for every layer whose algorithm asked for some, the observers of its input by name.
        held_out: the same, from the items kept aside; empty when there were too few.
        items: how many items were read.
    """

    ranges: dict[Point, RangeObserver] = field(default_factory=dict)
    inputs: dict[str, dict[str, Observer]] = field(default_factory=dict)
    held_out: dict[str, dict[str, Observer]] = field(default_factory=dict)
    items: int = 0


def collect(view: ModelView, plan: Plan, items: Iterable[tuple[tuple[Any, ...], dict[str, Any]]]) -> Statistics:
    """Run the model over the items and reduce what passes the watched points where it lies.

    Raises:
        DataError: a value that is not finite, with layer and item.
    """
    found = Statistics()
    points = {point.layer: point for point in view.points(lambda p: p.role is Role.input)}
    tasks: dict[Point, list[Task]] = {}
    for activation in plan.static:
        tasks.setdefault(activation.point, []).append(_range_task(activation, found))
    for layer, needs in needed(plan).items():
        if layer in points:
            tasks.setdefault(points[layer], []).append(_inputs_task(layer, needs, found))
    guards = {point: FiniteGuard() for point in tasks}
    last: list[_Batch] = []

    def watcher(point: Point) -> Callable[[Tensor, int], None]:
        def watch(values: Tensor, item: int) -> None:
            if not last or last[0].values is not values:
                last[:] = [_Batch(values)]
            finite = guards[point].admit(last[0].floats, item)
            if finite is not last[0].floats:
                last[:] = [_Batch(finite)]
            for task in tasks[point]:
                task(last[0], item)

        return watch

    found.items = view.run(items, {point: watcher(point) for point in tasks})
    _refuse_non_finite(guards)
    return found


def needed(plan: Plan) -> dict[str, tuple[str, ...]]:
    """The layers whose input is observed for the algorithm of their weight, and by which observers."""
    found: dict[str, tuple[str, ...]] = {}
    for w in plan.weights:
        takes = w.point.op in (LINEAR, CONV, CONV_TRANSPOSE) and w.point.role is Role.weight
        if takes and w.algorithm.needs:
            found[w.point.layer] = w.algorithm.needs
    return found


class _Batch:
    """What one item brings to a point; layers that read the same tensor (query, key, value) share what is made of it.

    Args:
        values: `[positions, features]`.
    """

    def __init__(self, values: Tensor) -> None:
        self.values, self.floats = values, values.float()
        self._seen: dict[str, Observer] = {}

    def seen_by(self, name: str) -> Observer:
        """An observer of this batch alone, by feature."""
        if name not in self._seen:
            self._seen[name] = observer_class(name)()
            self._seen[name].observe(activation_rows(self.floats, _BY_FEATURE))
        return self._seen[name]


Task = Callable[[_Batch, int], None]


def _range_task(activation: ActivationPlan, found: Statistics) -> Task:
    observer, grid = range_observer(activation.spec, activation.point.name), activation.grid

    def task(batch: _Batch, item: int) -> None:
        found.ranges[activation.point] = observer
        observer.observe(activation_rows(batch.floats, grid))

    return task


def _inputs_task(layer: str, needs: tuple[str, ...], found: Statistics) -> Task:
    def task(batch: _Batch, item: int) -> None:
        into = found.held_out if item % HELD_OUT_EVERY == HELD_OUT_EVERY - 1 else found.inputs
        observers = into.setdefault(layer, {name: observer_class(name)() for name in needs})
        for name, observer in observers.items():
            observer.merge(batch.seen_by(name))

    return task


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
