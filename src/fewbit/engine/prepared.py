# SPDX-License-Identifier: Apache-2.0
"""Preparing where it helps: the model is rounded as it is and as it was prepared, and items kept aside decide.

What a link is expected to lose says little about a whole model, so it is the model's answers that are compared. Weights
that a walk will settle are rounded each for itself here: cheap, and near enough to tell which of two models suffers
less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

from fewbit.algorithms._members import Algorithm, algorithm
from fewbit.data.findings import Progress
from fewbit.engine.carrying import carry_over
from fewbit.engine.collect import Statistics, collect
from fewbit.engine.inputs import InputSeen, watch_inputs
from fewbit.engine.nearer import is_judge, judged
from fewbit.engine.options import Options
from fewbit.engine.plan import Plan, WeightPlan
from fewbit.engine.preparing import Prepared, prepare
from fewbit.engine.usual import language_head
from fewbit.model.points import Role
from fewbit.model.view import Item, ModelView
from fewbit.record import Record


@dataclass
class Shown:
    """What one pass showed of a model: to rounding, and to preparing."""

    statistics: Statistics = field(default_factory=Statistics)
    inputs: Mapping[str, InputSeen] = field(default_factory=dict)

    def copy(self) -> Shown:
        """The same, to be changed."""
        mine = self.statistics
        ranges = {point: deepcopy(observer) for point, observer in mine.ranges.items()}
        copied = Statistics(ranges, deepcopy(mine.inputs), deepcopy(mine.held_out), mine.items)
        return Shown(copied, deepcopy(self.inputs))


def solvers_of(view: ModelView, plan: Plan, options: Options) -> list[Algorithm]:
    """The algorithms that prepare a model: those that were named, or those that it calls for.

    Activations of a language model have a few channels far above the others. As integers they are smoothed first.

    Raises:
        UsageError: an algorithm that there is not, or that runs at another stage.
    """
    names = options.prepare
    if names is None:
        whole = any(a.point.role is Role.input and a.grid.dtype.is_integer for a in plan.activations)
        names = ("smooth_quant",) if whole and language_head(view) is not None else ()
    return [algorithm(name, "prepare") for name in names]


def prepare_if_nearer(
    view: ModelView,
    plan: Plan,
    solvers: Sequence[Algorithm],
    kept: Mapping[int, Item],
    again: Callable[[str], Iterator[Item]],
    shown: Shown,
    record: Record,
    *,
    asked: bool = True,
) -> Shown:
    """Prepare a model, if what rounding makes of it then is nearer to what it answers now.

    Args:
        view: of the float model, which is changed.
        plan: how it will be rounded.
        solvers: algorithms of the stage `"prepare"`.
        kept: some items by their number, the first and the judges among them.
        again: starts a second pass over the data, for ranges that do not follow from the first.
        shown: what was seen of it.
        record: takes a line about each link, and what the judges found.
        asked: whether somebody named the solvers: then, if no item was kept aside, the expected error decides alone.

    Returns:
        What a pass would show of the model as it is from now on.
    """
    judges = [item for index, item in kept.items() if is_judge(index)]
    named = ", ".join(each.name for each in solvers)
    if not judges and not asked:
        reason = "too few items to keep one in five aside as a judge, and nobody asked for it"
        record.note("not-scaled", reason, algorithm=named)
        return shown
    links = view.structure(kept[0]).links
    trial, tried = view.copy(), Record("prepare")
    other = shown.copy()
    done = prepare(trial, plan, solvers, links, other.inputs, tried)
    if done.steps:
        _carry(trial, plan, done, again, other, tried)
    if done.steps and judges:
        facts, why_not = judged(view, trial, plan, (shown.statistics, other.statistics), judges)
        record.facts["preparing"] = {"algorithm": named, **facts, "kept": why_not is None}
        if why_not is not None:
            record.note("not-scaled", f"{why_not}: no link was scaled", algorithm=named, **facts)
            return shown
    record.lines += tried.lines
    done.repeat(view)
    return other if done.steps else shown


def prepare_before_walk(
    view: ModelView, plan: Plan, options: Options, items: Sequence[Item], record: Record, progress: Progress
) -> None:
    """Prepare a model that will be walked; one pass over the items, if there is an algorithm to prepare it.

    Raises:
        UsageError: an algorithm that there is not, or that runs at another stage.
        DataError: a value that is not finite.
    """
    solvers = solvers_of(view, plan, options)
    if not solvers:
        return
    quick = replace(plan, weights=tuple(map(_each_for_itself, plan.weights)))
    needs = {need for each in solvers for need in each.needs}
    watch, seen = watch_inputs(view, {w.point.layer for w in quick.weights}, needs)

    def passing(label: str) -> Iterator[Item]:
        return progress.track(items, total=len(items), label=label)

    statistics = collect(view, quick, passing("channels"), watch)
    kept = {index: item for index, item in enumerate(items) if index == 0 or is_judge(index)}
    shown = Shown(statistics, seen)
    prepare_if_nearer(view, quick, solvers, kept, passing, shown, record, asked=options.prepare is not None)


def _each_for_itself(w: WeightPlan) -> WeightPlan:
    """A weight whose algorithm would need a walk, rounded without."""
    if w.algorithm.stage == "round" and "gram" not in w.algorithm.needs:
        return w
    return replace(w, algorithm=algorithm("scale_search"), parameters={})


def _carry(
    view: ModelView, plan: Plan, done: Prepared, again: Callable[[str], Iterator[Item]], shown: Shown, record: Record
) -> None:
    """Change what was seen along with the model; what does not follow is collected again."""
    left = carry_over(shown.statistics, plan, done.factors, shown.inputs)
    if not (left.weights or left.static):
        return
    names = [*(w.point.name for w in left.weights), *(a.point.name for a in left.static)]
    reason = "what was seen of a whole tensor does not say what its channels, scaled, would have shown"
    record.note("second-pass", reason, where=", ".join(names))
    more = collect(view, left, again("ranges again"))
    shown.statistics.ranges |= more.ranges
    shown.statistics.inputs |= more.inputs
    shown.statistics.held_out |= more.held_out
