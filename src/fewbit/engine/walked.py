# SPDX-License-Identifier: Apache-2.0
"""A plan carried out on a walk: block by block, every layer is settled for the inputs it will really have.

first          what is looked up in tables, which no input tells anything about
block by block
  stage        layers that read the same tensor: second moments of it, one forward of every item
  settle       the codes of each, by the algorithm of the plan
  go on        the same forwards, through the new weights
last           what no item reached

From a store of such moments weights are settled again without data, and without running the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fewbit.data.findings import Progress
from fewbit.engine.collect import refuse_non_finite
from fewbit.engine.journal import Journal, job_digest
from fewbit.engine.plan import Plan, WeightPlan
from fewbit.engine.second_moments import Gathered
from fewbit.engine.settling import Settling
from fewbit.engine.store import Store
from fewbit.errors import DataError, UsageError
from fewbit.model.view import Item, ModelView
from fewbit.model.walking import Stage, WalkingView
from fewbit.numerics.qtensor import QTensor
from fewbit.observers._finite import FiniteGuard
from fewbit.record import Record


def wants_walk(view: ModelView, plan: Plan) -> bool:
    """Whether an algorithm of the plan asks for second moments, and the model can be walked."""
    return "walk" in view.can and not plan.static and any("gram" in w.algorithm.needs for w in plan.weights)


def execute_walked(
    view: Any,
    plan: Plan,
    items: Callable[[str], Iterator[Item]],
    *,
    record: Record,
    progress: Progress,
    work: Path | None = None,
    statistics: Path | None = None,
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

    Raises:
        DataError: no items, or a value that is not finite.
    """
    kept = list(items("calibration"))
    if not kept:
        raise DataError("the calibration data is empty", code="no-samples", where="calibration data")
    record.facts["items"] = len(kept)
    facts = {"config": plan.config.fingerprint, "weights": [(w.point.name, dict(w.parameters)) for w in plan.weights]}
    journal = None if work is None else Journal(work, job_digest(view.digest(), kept, facts))
    store = None if statistics is None else Store.create(statistics, view.digest(), len(kept), facts)
    settling = Settling(view, plan, record, journal)
    walking: WalkingView = view
    with walking.walk(kept) as walk:
        settling.tables()
        for block in progress.track(walk.blocks, total=len(walk.blocks), label="blocks"):
            # Weights are floats until the block is through: codes would be decoded at every call.
            codes: list[tuple[WeightPlan, QTensor | None]] = []
            for stage in walk.through(block):
                codes += _settled(view, stage, settling, store)
            for w, found in codes:
                settling.keep(w, found)
    settling.rest()
    if store is not None:
        store.close()


def execute_stored(view: Any, plan: Plan, statistics: Path, *, record: Record, progress: Progress) -> None:
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
    settling = Settling(view, plan, record)
    settling.tables()
    for layers in progress.track(list(store), total=len(store.stages), label="stages"):
        mine = settling.of(layers)
        seen = store.get(layers) if mine else Gathered()
        for w in mine:
            settling.keep(w, settling.codes(w, seen))
    settling.rest()


def _settled(
    view: Any, stage: Stage, settling: Settling, store: Store | None
) -> list[tuple[WeightPlan, QTensor | None]]:
    """The codes of a stage's layers, whose weights are what the codes stand for from then on."""
    mine = settling.of(stage.layers)
    if not mine:
        return []
    seen = Gathered()
    if store is not None or not all(settling.is_finished(w) for w in mine):
        seen = _gathered(stage, mine[0])
    if store is not None:
        store.put(stage.layers, seen)
    found = [(w, settling.codes(w, seen)) for w in mine]
    for w, codes in found:
        if codes is not None:
            view.write(w.point, codes.dequantize())
    return found


def _gathered(stage: Stage, first: WeightPlan) -> Gathered:
    """The moments of what a stage reads; refused if a value is not finite."""
    seen, guard = Gathered(), FiniteGuard()
    for given in stage.inputs():
        seen.add(replace(given, found=guard.admit(given.found, given.item)))
    refuse_non_finite({first.point: guard})
    return seen
