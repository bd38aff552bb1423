# SPDX-License-Identifier: Apache-2.0
"""Weights settled one after the other from second moments: noted, committed, and put into the model."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from fewbit.algorithms._base import Solution
from fewbit.engine.collect import Statistics
from fewbit.engine.experts import FEW, settle_stack
from fewbit.engine.journal import Journal
from fewbit.engine.plan import Plan, WeightPlan
from fewbit.engine.second_moments import Gathered
from fewbit.engine.shares import dealt, handed_over
from fewbit.engine.solve import Known, done, is_lost, note_lost, put_back, settle
from fewbit.engine.super_scales import super_scales
from fewbit.engine.workers import Workers
from fewbit.model.ops import EMBEDDING
from fewbit.numerics.qtensor import QTensor
from fewbit.record import Record


class Settling:
    """The weights of a plan, as far as they are settled.

    Args:
        view: of the model.
        plan: what becomes of each weight.
        record: takes a line about each.
        journal: keeps those that are finished; none if nothing is kept, and for all workers but the first.
        workers: who share the work.
    """

    def __init__(
        self,
        view: Any,
        plan: Plan,
        record: Record,
        journal: Journal | None = None,
        workers: Workers | None = None,
    ):
        self._view, self._record, self._journal, self._workers = view, record, journal, workers or Workers()
        self._ready: dict[str, Solution] = {}
        self._above = super_scales(view.read, plan.weights)
        self._left = {w.point.name: w for w in plan.weights}

    def of(self, layers: Sequence[str]) -> list[WeightPlan]:
        """The weights of some layers that are not settled yet."""
        return [w for w in self._left.values() if w.point.layer in layers or w.point.name in layers]

    def inside(self, block: str) -> list[WeightPlan]:
        """The weights of a block that are not settled yet."""
        return [w for w in self._left.values() if w.point.layer.startswith(f"{block}.")]

    @property
    def is_done(self) -> bool:
        """Whether no weight is left that a layer reads something for."""
        return all(w.point.op is EMBEDDING for w in self._left.values())

    def is_finished(self, w: WeightPlan) -> bool:
        """Whether a weight is settled already: by an earlier run that was stopped, or by one of the workers."""
        name = w.point.name
        if name not in self._ready:
            kept = None if self._journal is None else self._journal.read(name, w.grid, w.point.shape, w.block)
            if (found := handed_over(kept, w, self._workers, self._place(w))) is not None:
                self._ready[name] = found
        return name in self._ready

    def saw_few(self, w: WeightPlan) -> bool | None:
        """Of a weight that is settled already, whether it was so for tokens of others; none if it is not."""
        return FEW in self._ready[w.point.name].facts if self.is_finished(w) else None

    def share_out(self, weights: Sequence[tuple[WeightPlan, Gathered]]) -> None:
        """Settle the weights of a stage, each by one of several workers; all of them have all of them then."""
        if self._workers.count == 1:
            return
        left = [(w, seen) for w, seen in weights if not self.is_finished(w)]
        owners = dealt([prod(w.point.shape) for w, _ in left], self._workers.count)
        mine = {
            w.point.name: self._solved(w, seen) for (w, seen), owner in zip(left, owners) if owner == self._workers.rank
        }
        for (w, _), owner in zip(left, owners):
            found = handed_over(mine.get(w.point.name), w, self._workers, self._place(w), owner)
            assert found is not None
            self._commit(w, found)
            self._ready[w.point.name] = found

    def codes(self, w: WeightPlan, seen: Gathered) -> QTensor | None:
        """Settle a weight; none if it stays in float."""
        if self.is_finished(w):
            solution = self._ready.pop(w.point.name)
        else:
            solution = self._solved(w, seen)
            self._commit(w, solution)
        del self._left[w.point.name]
        if w.pattern is None and is_lost(solution):
            note_lost(self._record, w, solution)
            return None
        if FEW in solution.facts:
            reason = "too few calibration tokens were sent to these experts: they are settled for those of all"
            self._record.note("few-tokens", reason, where=w.point.name, tokens=solution.facts[FEW])
        self._record.note(done(w), w.why, where=w.point.name, algorithm=w.algorithm.name, **solution.facts)
        return solution.qtensor

    def keep(self, w: WeightPlan, codes: QTensor | None) -> None:
        """Put codes into the model, if there are any."""
        if codes is not None:
            put_back(self._view, w, codes)

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

    def _solved(self, w: WeightPlan, seen: Gathered) -> Solution:
        weight: Tensor = self._view.read(w.point)
        above = self._above.get(w.point.name)

        def one(matrix: Tensor, planned: WeightPlan, mine: Gathered) -> Solution:
            return settle(matrix, planned, _statistics(planned.point.layer, matrix, mine), above, mine.shared)

        if seen.experts and w.block[0] == 1 and (w.pattern is not None or not w.grid.dtype.is_cast):
            return settle_stack(weight, w, seen, one)
        solution = one(weight, w, seen)
        return solution if seen.others is None else Solution(solution.qtensor, {**solution.facts, FEW: seen.others})

    def _place(self, w: WeightPlan) -> torch.device:
        weight: Tensor = self._view.read(w.point)
        return weight.device

    def _commit(self, w: WeightPlan, solution: Solution) -> None:
        if self._journal is not None:
            self._journal.write(w.point.name, solution)


def _statistics(layer: str, weight: Tensor, seen: Gathered) -> Statistics:
    sides = {}
    for aside, moments in seen.sides.items():
        sides[aside] = dict[str, Any](moments.observers())
        if weight.ndim == 2 and (wanted := moments.wanted(weight)) is not None:
            sides[aside]["wanted"] = Known({"wanted": wanted})
    inputs, held_out = ({layer: sides[aside]} if aside in sides else {} for aside in (False, True))
    return Statistics(inputs=inputs, held_out=held_out)
