# SPDX-License-Identifier: Apache-2.0
"""Collect: one pass over the data gives every statistic that any algorithm of the plan asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fewbit.data import stratified
from fewbit.engine.batches import Batch, Batches
from fewbit.engine.observing import range_observer
from fewbit.engine.plan import ActivationPlan, Plan, WeightPlan
from fewbit.errors import DataError
from fewbit.model.ops import CONV, CONV_TRANSPOSE, LINEAR
from fewbit.model.points import Point, Role
from fewbit.model.view import ModelView
from fewbit.model.watch import PRODUCTS, VALUES, WINDOWS, Watch
from fewbit.observers._base import Observer, RangeObserver, observer_class
from fewbit.observers._finite import FiniteGuard
from fewbit.observers.gram import GramObserver

HELD_OUT_EVERY = stratified.HELD_OUT_EVERY
"""Of five items one is kept aside to judge what the other four suggested."""


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


def collect(
    view: ModelView, plan: Plan, items: Iterable[Any], extra: Mapping[Point, Watch] | None = None
) -> Statistics:
    """Run the model once over the items; whoever asks something about an activation is told in this pass.

    Args:
        view: of the model.
        plan: says which ranges are looked for, and which algorithms ask for statistics of a layer's input.
        items: what the model is called with.
        extra: what else is asked, such as the `taps` of a layer's input; `is_held_out` tells which items judge.

    Raises:
        DataError: a value that is not finite, with layer and item.
    """
    found = Statistics()
    points = {point.layer: point for point in view.points(lambda p: p.role is Role.input)}
    tasks: dict[Point, list[_Task]] = {}
    for activation in plan.static:
        tasks.setdefault(activation.point, []).append(_range_task(activation, found))
    windows = {w.point.layer for w in plan.weights if by_window(w)}
    pruned = {w.point.layer for w in plan.weights if w.pattern is not None and w.point.op is LINEAR}
    for layer, names in needed(plan).items():
        if layer in points:
            named = [name for name in names if name != "gram" or layer not in windows]
            task = _inputs_task(layer, named, found, values=layer in pruned)
            tasks.setdefault(points[layer], []).append(task)
        if layer in points and layer in windows:
            tasks[points[layer]].append(_windows_task(layer, found))
    for point, watch in (extra or {}).items():
        tasks.setdefault(point, []).append(_extra_task(watch))
    guards = {point: FiniteGuard() for point in tasks}
    batches = Batches()

    def watching(mine: list[_Task], guard: FiniteGuard) -> Watch:
        def take(known: Mapping[str, Tensor], item: int) -> None:
            batch = batches.take(known, guard, item)
            for task in mine:
                task.take(batch, item)

        needs = frozenset[str]().union(*(task.needs for task in mine))
        return Watch(needs, take, max(task.sample for task in mine))

    found.items = view.run(items, {point: watching(mine, guards[point]) for point, mine in tasks.items()})
    refuse_non_finite(guards)
    return found


def is_held_out(item: int) -> bool:
    """Whether an item is one of those kept aside to judge."""
    return stratified.is_held_out(item)


def needed(plan: Plan) -> dict[str, tuple[str, ...]]:
    """The layers whose input is observed for the algorithm of their weight, and by which observers."""
    found: dict[str, tuple[str, ...]] = {}
    for w in plan.weights:
        takes = w.point.op in (LINEAR, CONV, CONV_TRANSPOSE) and w.point.role is Role.weight
        if takes and w.algorithm.needs:
            found[w.point.layer] = w.algorithm.needs
    return found


def by_window(w: WeightPlan) -> bool:
    """Whether the second moments that settle a weight are those of the windows its kernel meets.

    A pruned convolution can make up for what is gone in all places of its kernel. Rounding looks at features alone.
    """
    kernel = w.point.op in (CONV, CONV_TRANSPOSE) and w.point.groups == 1
    return kernel and w.pattern is not None and "gram" in w.algorithm.needs


@dataclass(frozen=True)
class _Task:
    """Who takes in what at a point."""

    needs: frozenset[str]
    take: Callable[[Batch, int], None]
    sample: int = 1


def _range_task(activation: ActivationPlan, found: Statistics) -> _Task:
    observer, grid = range_observer(activation.spec, activation.point.name), activation.grid

    def take(batch: Batch, item: int) -> None:
        found.ranges[activation.point] = observer
        batch.show(observer, grid)

    return _Task(observer.needs, take)


def _inputs_task(layer: str, names: Sequence[str], found: Statistics, *, values: bool) -> _Task:
    """Who takes in what algorithms ask about a layer's input.

    Args:
        layer: the layer.
        names: of observers.
        found: takes what they see.
        values: whether sums are to be made of the values themselves: those that a graph makes count padding in, which
            matters more the fewer of the inputs are left.
    """

    def take(batch: Batch, item: int) -> None:
        observers = _observers(found, layer, item)
        for name in names:
            observers.setdefault(name, observer_class(name)()).merge(batch.seen_by(name))

    needs = frozenset[str]().union(*(observer_class(name).needs for name in names))
    return _Task(needs | {VALUES} if values else needs, take)


def _windows_task(layer: str, found: Statistics) -> _Task:
    def take(batch: Batch, item: int) -> None:
        if PRODUCTS in batch.known:  # a convolution with a forward of its own does not say what its kernel meets
            observer = _observers(found, layer, item).setdefault("gram", GramObserver())
            new = {"gram": batch.known[PRODUCTS], "count": batch.known[WINDOWS]}
            if observer.empty:
                observer.load_state(new)
            else:
                for name, x in new.items():  # in place: they are as large as the square of a kernel
                    observer.seen[name].add_(x)

    return _Task(frozenset({PRODUCTS, WINDOWS}), take)


def _observers(found: Statistics, layer: str, item: int) -> dict[str, Observer]:
    """The observers of a layer's input, of the side that an item belongs to."""
    return (found.held_out if is_held_out(item) else found.inputs).setdefault(layer, {})


def _extra_task(watch: Watch) -> _Task:
    return _Task(watch.needs, lambda batch, item: watch.take(batch.known, item), watch.sample)


def refuse_non_finite(guards: dict[Point, FiniteGuard]) -> None:
    """Refuse what guards saw, all at once, with layer and item."""
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
