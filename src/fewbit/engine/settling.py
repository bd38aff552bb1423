# SPDX-License-Identifier: Apache-2.0
"""Weights settled one after the other from second moments: noted, committed, and put into the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fewbit.algorithms._base import Solution
from fewbit.engine.collect import Statistics
from fewbit.engine.journal import Journal
from fewbit.engine.plan import Plan, WeightPlan
from fewbit.engine.second_moments import Gathered
from fewbit.engine.solve import Known, is_lost, note_lost, settle
from fewbit.model.ops import EMBEDDING
from fewbit.numerics.qtensor import QTensor
from fewbit.record import Record


class Settling:
    """The weights of a plan, as far as they are settled.

    Args:
        view: of the model.
        plan: what becomes of each weight.
        record: takes a line about each.
        journal: keeps those that are finished; none if nothing is kept.
    """

    def __init__(self, view: Any, plan: Plan, record: Record, journal: Journal | None = None):
        self._view, self._record, self._journal = view, record, journal
        self._left = {w.point.name: w for w in plan.weights}

    def of(self, layers: Sequence[str]) -> list[WeightPlan]:
        """The weights of some layers that are not settled yet."""
        return [w for w in self._left.values() if w.point.layer in layers]

    def is_finished(self, w: WeightPlan) -> bool:
        """Whether an earlier run that was stopped settled a weight."""
        return self._finished(w) is not None

    def codes(self, w: WeightPlan, seen: Gathered) -> QTensor | None:
        """Settle a weight; none if it stays in float."""
        solution = self._finished(w)
        if solution is None:
            weight: Tensor = self._view.read(w.point)
            solution = settle(weight, w, _statistics(w.point.layer, weight, seen))
            if self._journal is not None:
                self._journal.write(w.point.name, solution)
        del self._left[w.point.name]
        if is_lost(solution):
            note_lost(self._record, w, solution)
            return None
        self._record.note("quantized", w.why, where=w.point.name, algorithm=w.algorithm.name, **solution.facts)
        return solution.qtensor

    def keep(self, w: WeightPlan, codes: QTensor | None) -> None:
        """Put codes into the model, if there are any."""
        if codes is not None:
            self._view.quantize(w.point, codes)

    def tables(self) -> None:
        """Settle what is looked up, which no input tells anything about."""
        for w in list(self._left.values()):
            if w.point.op is EMBEDDING:
                self.keep(w, self.codes(w, Gathered()))

    def rest(self) -> None:
        """Settle what nothing was seen of."""
        for w in list(self._left.values()):
            self._record.note("not-reached", "no calibration sample reached this layer", where=w.point.layer)
            self.keep(w, self.codes(w, Gathered()))

    def _finished(self, w: WeightPlan) -> Solution | None:
        return None if self._journal is None else self._journal.read(w.point.name, w.grid, w.point.shape, w.block)


def _statistics(layer: str, weight: Tensor, seen: Gathered) -> Statistics:
    sides = {}
    for aside, moments in seen.sides.items():
        sides[aside] = dict[str, Any](moments.observers())
        if weight.ndim == 2 and (wanted := moments.wanted(weight)) is not None:
            sides[aside]["wanted"] = Known({"wanted": wanted})
    inputs, held_out = ({layer: sides[aside]} if aside in sides else {} for aside in (False, True))
    return Statistics(inputs=inputs, held_out=held_out)
