# SPDX-License-Identifier: Apache-2.0
"""A plan carried out layer by layer: prepare, round, correct, with one pass over the data for all of them.

one pass over the data
  ranges, statistics    what the plan's algorithms ask
  inputs                what preparing and correcting ask
then, without data
  prepare               channels are evened out between layers, and what was seen is divided along, if it helps
  solve                 one weight after the other gets its codes
  correct               biases make up for what rounding did to the mean of each output
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from fewbit.algorithms._members import Algorithm, algorithm
from fewbit.data.findings import Progress
from fewbit.engine.collect import Statistics, collect, needed
from fewbit.engine.correcting import FEW, correct_fast, correct_slow, correctable
from fewbit.engine.inputs import InputSeen, watch_inputs
from fewbit.engine.nearer import apart, is_judge
from fewbit.engine.options import Options
from fewbit.engine.plan import Plan
from fewbit.engine.prepared import Shown, prepare_if_nearer, solvers_of
from fewbit.engine.solve import solve
from fewbit.errors import DataError
from fewbit.model.points import Point
from fewbit.model.view import Item, ModelView
from fewbit.model.watch import TAPS, WINDOWS, Watch
from fewbit.record import Record


def execute_by_layer(
    view: ModelView,
    plan: Plan,
    items: Callable[[str], Iterator[Item]] | None,
    *,
    record: Record,
    progress: Progress,
    options: Options,
) -> None:
    """Carry a plan out on the view's model, whose layers are quantized one by one.

    Args:
        view: of the model, which is changed.
        plan: what becomes of each layer.
        items: starts a pass over the data, shown under a label; none if there is no data.
        record: takes a line about each layer.
        progress: shows how far it is.
        options: what is done before and after rounding.

    Raises:
        UsageError: an algorithm that there is not, or that runs at another stage.
        DataError: no position reached any activation, or a value is not finite.
    """
    preparing = solvers_of(view, plan, options)
    correcting = None if options.correct is None else algorithm(options.correct, "correct")
    if items is None:
        solve(view, plan, Statistics(), record, progress)
        _note_no_data(preparing, correcting, record)
        return
    rounded = [] if correcting is None else correctable(view, plan, record)
    kept: dict[int, Item] = {}
    shown = Shown()
    if plan.static or needed(plan) or preparing or rounded:
        watch, seen = _watch(view, plan, preparing, correcting)
        first = FEW if correcting is not None and TAPS not in correcting.needs else 1
        statistics = collect(view, plan, _keeping(items("calibration"), kept, first), watch)
        _require_positions(plan, statistics)
        if needed(plan) and not statistics.held_out:
            record.note("no-held-out", f"{statistics.items} items are too few to keep one in five aside as a judge")
        record.facts["items"] = statistics.items
        shown = Shown(statistics, seen)
    if preparing and kept:
        asked = options.prepare is not None
        shown = prepare_if_nearer(view, plan, preparing, kept, items, shown, record, asked=asked)
    before = view.copy() if rounded else view
    solve(view, plan, shown.statistics, record, progress)
    if correcting is not None and rounded:
        _correct(before, view, correcting, rounded, kept, shown.inputs, record, progress)


def _watch(
    view: ModelView, plan: Plan, preparing: Sequence[Algorithm], correcting: Algorithm | None
) -> tuple[dict[Point, Watch], dict[str, InputSeen]]:
    """What preparing and correcting ask in the pass, and where the answers will be."""
    needs = {need for each in preparing for need in each.needs}
    needs |= {TAPS, WINDOWS} & set(correcting.needs if correcting is not None else ())
    layers = {w.point.layer for w in plan.weights} | {a.point.layer for a in plan.activations}
    return watch_inputs(view, layers, needs)


def _correct(
    before: ModelView,
    view: ModelView,
    solver: Algorithm,
    rounded: Sequence[Point],
    kept: Mapping[int, Item],
    seen: Mapping[str, InputSeen],
    record: Record,
    progress: Progress,
) -> None:
    """Correct biases, unless the whole model's answers on items kept aside speak against it."""
    plain = view
    if "place" in view.can:  # codes are written into a graph when all is known; what they stand for can be at once
        plain = before.copy()
        for point in rounded:
            plain.write(point, view.read(point))
    corrected, tried = plain.copy(), Record("correct")
    if TAPS in solver.needs:
        taps = {layer: each.taps for layer, each in seen.items()}
        shifts = correct_fast(corrected, solver, rounded, before.read, plain.read, taps, tried)
    else:
        few = [item for index, item in kept.items() if index < FEW]
        shifts = correct_slow(before, corrected, solver, rounded, few, tried, progress)
    judges = [item for index, item in kept.items() if is_judge(index)]
    without, found = apart(before, (plain, corrected), judges)
    record.facts["correction"] = {"items": len(judges), "error": found, "error_uncorrected": without}
    if found > without:
        reason = "the answers would be farther from the float model's on the items kept aside: no bias was changed"
        record.note("bias-not-corrected", reason, algorithm=solver.name)
        return
    record.lines += tried.lines
    for layer, amount in shifts.items():
        view.shift(layer, amount)


def _keeping(items: Iterator[Item], kept: dict[int, Item], first: int) -> Iterator[Item]:
    """Pass items on, and keep the first ones and those to judge by."""
    for index, item in enumerate(items):
        if index < first or is_judge(index):
            kept[index] = item
        yield item


def _note_no_data(preparing: Sequence[Algorithm], correcting: Algorithm | None, record: Record) -> None:
    for each in preparing:
        record.note("not-scaled", "there is no calibration data", algorithm=each.name)
    if correcting is not None:
        record.note("bias-not-corrected", "there is no calibration data", algorithm=correcting.name)


def _require_positions(plan: Plan, statistics: Statistics) -> None:
    if plan.static and not statistics.ranges:
        raise DataError(
            f"{statistics.items} calibration items hold nothing to observe: no position reached any watched layer",
            code="no-samples",
            where="calibration data",
            expected="items with at least one sample, and at least one position that the attention mask keeps",
        )
