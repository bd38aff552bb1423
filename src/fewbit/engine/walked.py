# SPDX-License-Identifier: Apache-2.0
"""A plan carried out on a walk: block by block, every layer is settled for the inputs it will really have.

first          channels are evened out between layers, if algorithms are named for it and it helps
               ranges of activations whose scales are fixed, from one pass; activations are rounded from here on
               what is looked up in tables, which no input tells anything about
block by block
  stage        layers that read the same tensor: second moments of it, as it is rounded, one forward of every item
  settle       the codes of each, by the algorithm of the plan
  go on        the same forwards, through the new weights
  tune         the codes of the block together, where the plan says so, and the block once more
last           what no item reached

From a store of such moments weights are settled again without data, and without running the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fewbit.data.findings import Progress
from fewbit.engine.block_tuning import BlockTuning
from fewbit.engine.collect import Statistics, by_window, collect
from fewbit.engine.journal import Journal, job_digest
from fewbit.engine.lanes import Lanes
from fewbit.engine.options import Options
from fewbit.engine.plan import Plan, WeightPlan
from fewbit.engine.prepared import prepare_before_walk
from fewbit.engine.rounded_inputs import RoundedInputs
from fewbit.engine.scarce import Scarce, Sent, Work
from fewbit.engine.second_moments import Gathered
from fewbit.engine.settling import Settling
from fewbit.engine.solve import settle_activations
from fewbit.engine.store import Store
from fewbit.engine.workers import Workers
from fewbit.errors import DataError, UsageError
from fewbit.model.ops import EXPERTS
from fewbit.model.view import Item, ModelView
from fewbit.model.walking import Stage, WalkingView
from fewbit.numerics.qtensor import QTensor
from fewbit.record import Record


def wants_walk(view: ModelView, plan: Plan, *, keeps: bool = False) -> bool:
    """Whether second moments are to be kept, or an algorithm of the plan asks for them, and the model can be walked.

    A walk shows features, not windows: where these are asked for, all layers are settled from one pass. It alone shows
    what experts that are one tensor read, which matters where they are pruned.
    """
    experts = any(w.point.op is EXPERTS and w.pattern is not None and w.algorithm.needs for w in plan.weights)
    asked = experts or any("gram" in w.algorithm.needs for w in plan.weights)
    return "walk" in view.can and (keeps or (asked and not any(map(by_window, plan.weights))))


def execute_walked(
    view: Any,
    plan: Plan,
    items: Callable[[str], Iterator[Item]],
    *,
    record: Record,
    progress: Progress,
    work: Path | None = None,
    statistics: Path | None = None,
    workers: Workers | None = None,
    options: Options | None = None,
) -> None:
    """Carry a plan out on a model that can be walked.

    Args:
        view: of the model, which is changed.
        plan: what becomes of each weight.
        items: starts a pass over the data, shown under a label.
        record: takes a line about each layer.
        progress: shows how far it is.
        work: a folder for finished weights, from which the same run goes on if it is stopped.
        statistics: a new folder for what was seen of every stage.
        workers: who share the items and the layers; the first has the journal and the statistics.
        options: what is done before rounding.

    Raises:
        DataError: no items, or a value that is not finite.
        UsageError: workers with different jobs.
    """
    workers = workers or Workers()
    kept = list(items("calibration"))
    if not kept:
        raise DataError("the calibration data is empty", code="no-samples", where="calibration data")
    record.facts["items"] = len(kept)
    prepare_before_walk(view, plan, options or Options(), kept, record, progress)
    facts = {
        "config": plan.config.fingerprint,
        "weights": [(w.point.name, w.algorithm.name, dict(w.parameters), str(w.pattern)) for w in plan.weights],
    }
    named = work is not None or statistics is not None or workers.count > 1
    model = view.digest() if named else ""
    job = job_digest(model, kept, facts) if named else ""
    _refuse_different(workers.say(job))
    journal = Journal(work, job) if work is not None and workers.is_first else None
    store = None
    if statistics is not None and workers.is_first:
        store = Store.create(statistics, model, len(kept), facts, [job])
    settling, lanes = Settling(view, plan, record, journal, workers), Lanes(len(kept), workers)
    tuning = BlockTuning(view, plan, record, journal, workers)
    walking: WalkingView = view
    ranges = _ranges(view, plan, kept, progress)
    room = (options or Options()).activation_budget
    with walking.walk(kept, mine=lanes.mine, agree=workers.first, budget=room, folder=work) as walk:
        # The float model beside it was set apart when the walk began, and keeps its activations as they are.
        rounding = RoundedInputs(settle_activations(view, plan, ranges, record))
        settling.tables()
        for block in progress.track(walk.blocks, total=len(walk.blocks), label="blocks"):
            if settling.is_done and statistics is None:
                break  # nobody asks what the rest of the model would read: often the head, a fifth of a small one
            # Weights are floats until the block is through: codes would be decoded at every call.
            codes: list[tuple[WeightPlan, QTensor | None]] = []
            tuning.begin(block)
            scarce = Scarce(settling.inside(block) if block else [])
            keeps = statistics is not None or not all(settling.is_finished(w) for w in scarce.experts)
            for stage in walk.through(block):
                codes += _settled(view, stage, settling, rounding, lanes, scarce, store, keeps=keeps)
            codes += _written(view, settling, scarce.ready(settling.inside(block)))
            for w, found in tuning.tuned(block, walk, codes):
                settling.keep(w, found)
    tuning.close()
    settling.rest()
    if store is not None:
        store.close()


def execute_stored(
    view: Any, plan: Plan, statistics: Path, *, record: Record, progress: Progress, workers: Workers | None = None
) -> None:
    """Carry a plan out from a store, without data.

    Raises:
        UsageError: statistics of another model.
        DataError: a store that is damaged.
    """
    store = Store.open(statistics)
    if store.model != view.digest():
        raise UsageError(
            "the statistics are of another model, or of another state of this one",
            where=statistics,
            expected="the model they were collected with, bit by bit",
        )
    record.facts |= {"items": store.items, "statistics": str(statistics)}
    settling, sent = Settling(view, plan, record, workers=workers), Sent(store.stages, store.get, list(plan.weights))
    settling.tables()
    for layers in progress.track(list(store), total=len(store.stages), label="stages"):
        mine = settling.of(layers)
        seen = store.get(layers) if mine else Gathered()
        work = [(w, sent.of(w, seen)) for w in mine]
        settling.share_out(work)
        for w, each in work:
            settling.keep(w, settling.codes(w, each))
    settling.rest()


def _refuse_different(jobs: list[str]) -> None:
    """Refuse workers that do not do the same job, which would add up what does not belong together."""
    others = [worker for worker, job in enumerate(jobs) if job != jobs[0]]
    if others:
        raise UsageError(
            "the workers have different models, data or options",
            where=f"worker{'s' if len(others) > 1 else ''} {', '.join(map(str, others))}, beside worker 0",
            expected="the same call in every process, and data that comes in the same order each time",
        )


def _ranges(view: ModelView, plan: Plan, items: list[Item], progress: Progress) -> Statistics:
    """What the float model shows of activations whose scales are fixed beforehand; one pass, if there are any."""
    if not plan.static:
        return Statistics()
    return collect(view, replace(plan, weights=()), progress.track(items, total=len(items), label="ranges"))


def _settled(
    view: Any,
    stage: Stage,
    settling: Settling,
    rounding: RoundedInputs,
    lanes: Lanes,
    scarce: Scarce,
    store: Store | None,
    *,
    keeps: bool,
) -> list[tuple[WeightPlan, QTensor | None]]:
    """The codes of a stage's layers, whose weights are what the codes stand for from then on."""
    mine = settling.of(stage.layers)
    if not mine:
        return []
    groups = rounding.groups(mine)
    seen = [Gathered() for _ in groups]
    if keeps or not all(settling.is_finished(w) for w in mine):
        seen = rounding.gather(stage, groups, lanes, view.read)
    if store is not None:
        store.put(stage.layers, seen[0])
    for group, each in zip(groups, seen):
        scarce.sees(group, each)
    work = [(w, each) for group, each in zip(groups, seen) for w in group]
    return _written(view, settling, [(w, each) for w, each in work if not scarce.waits(w, each, settling.saw_few(w))])


def _written(view: Any, settling: Settling, work: list[Work]) -> list[tuple[WeightPlan, QTensor | None]]:
    """Settle weights for what they read, and let them be what their codes stand for."""
    settling.share_out(work)
    found = [(w, settling.codes(w, seen)) for w, seen in work]
    for w, codes in found:
        if codes is not None:
            view.write(w.point, codes.dequantize())
    return found
