# SPDX-License-Identifier: Apache-2.0
"""A plan carried out on a walk: block by block, every layer is settled for the inputs it will really have.

first          what is looked up in tables, which no input tells anything about
block by block
  stage        layers that read the same tensor: second moments of it, one forward of every item
  settle       the codes of each, by the algorithm of the plan
  go on        the same forwards, through the new weights
last           what no item reached
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fewbit.algorithms._base import Solution
from fewbit.data.findings import Progress
from fewbit.engine.collect import Statistics, refuse_non_finite
from fewbit.engine.journal import Journal, job_digest
from fewbit.engine.plan import Plan, WeightPlan
from fewbit.engine.second_moments import Gathered
from fewbit.engine.solve import Known, is_lost, note_lost, settle
from fewbit.errors import DataError
from fewbit.model.ops import EMBEDDING
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
) -> None:
    """Carry a plan out on a model that can be walked.

    Args:
        view: of the model, which is changed.
        plan: what becomes of each weight.
        items: starts a pass over the data, shown under a label.
        record: takes a line about each layer.
        progress: shows how far it is.
        work: a folder for finished weights, from which the same run goes on if it is stopped.

    Raises:
        DataError: no items, or a value that is not finite.
    """
    kept = list(items("calibration"))
    if not kept:
        raise DataError("the calibration data is empty", code="no-samples", where="calibration data")
    record.facts["items"] = len(kept)
    journal = None
    if work is not None:
        facts = {
            "config": plan.config.fingerprint,
            "weights": [(w.point.name, dict(w.parameters)) for w in plan.weights],
        }
        journal = Journal(work, job_digest(view.digest(), kept, facts))
    _Walked(view, plan, record, journal).over(kept, progress)


class _Walked:
    def __init__(self, view: Any, plan: Plan, record: Record, journal: Journal | None):
        self._view, self._plan, self._record, self._journal = view, plan, record, journal
        self._left = {w.point.name: w for w in plan.weights}

    def over(self, items: Sequence[Item], progress: Progress) -> None:
        walking: WalkingView = self._view
        with walking.walk(list(items)) as walk:
            for w in self._plan.weights:
                if w.point.op is EMBEDDING:
                    self._keep(w, self._settled(w, Statistics()))
            for block in progress.track(walk.blocks, total=len(walk.blocks), label="blocks"):
                codes: list[tuple[WeightPlan, QTensor]] = []
                for stage in walk.through(block):
                    codes += self._stage(stage)
                for w, found in codes:
                    self._keep(w, found)
        for w in list(self._left.values()):
            self._record.note("not-reached", "no calibration sample reached this layer", where=w.point.layer)
            self._keep(w, self._settled(w, Statistics()))

    def _stage(self, stage: Stage) -> list[tuple[WeightPlan, QTensor]]:
        """Settle the layers of a stage; their weights are floats still, since codes would be decoded at every call."""
        mine = [w for w in self._left.values() if w.point.layer in stage.layers]
        if not mine:
            return []
        seen = Gathered() if all(self._finished(w) for w in mine) else self._gathered(stage, mine[0])
        found = []
        for w in mine:
            codes = self._settled(w, self._statistics(w, seen))
            if codes is not None:
                self._view.write(w.point, codes.dequantize())
                found.append((w, codes))
        return found

    def _gathered(self, stage: Stage, first: WeightPlan) -> Gathered:
        """The moments of what a stage reads; refused if a value is not finite."""
        seen, guard = Gathered(), FiniteGuard()
        for given in stage.inputs():
            seen.add(replace(given, found=guard.admit(given.found, given.item)))
        refuse_non_finite({first.point: guard})
        return seen

    def _finished(self, w: WeightPlan) -> Solution | None:
        """What an earlier run that was stopped made of a weight."""
        return None if self._journal is None else self._journal.read(w.point.name, w.grid, w.point.shape, w.block)

    def _statistics(self, w: WeightPlan, seen: Gathered) -> Statistics:
        sides = {}
        for aside, moments in seen.sides.items():
            sides[aside] = dict[str, Any](moments.observers())
            weight: Tensor = self._view.read(w.point)
            if weight.ndim == 2 and (wanted := moments.wanted(weight)) is not None:
                sides[aside]["wanted"] = Known({"wanted": wanted})
        layer = w.point.layer
        inputs, held_out = ({layer: sides[aside]} if aside in sides else {} for aside in (False, True))
        return Statistics(inputs=inputs, held_out=held_out)

    def _settled(self, w: WeightPlan, statistics: Statistics) -> QTensor | None:
        """The codes of a weight; none if it stays in float."""
        solution = self._finished(w)
        if solution is None:
            solution = settle(self._view.read(w.point), w, statistics)
            if self._journal is not None:
                self._journal.write(w.point.name, solution)
        del self._left[w.point.name]
        if is_lost(solution):
            note_lost(self._record, w, solution)
            return None
        self._record.note("quantized", w.why, where=w.point.name, algorithm=w.algorithm.name, **solution.facts)
        return solution.qtensor

    def _keep(self, w: WeightPlan, codes: QTensor | None) -> None:
        if codes is not None:
            self._view.quantize(w.point, codes)
