# SPDX-License-Identifier: Apache-2.0
"""The weights of a block tuned together on a walk, when each of its layers is settled and before the next block begins.

A journal keeps what was tuned beside what it began with: a run that was stopped goes through the block as it was then,
and takes what is tuned only if all of the block is there. So what layers read on the way does not depend on stops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fewbit.algorithms._base import BlockProblem, Solution, Tuned
from fewbit.algorithms._turning import is_tunable
from fewbit.engine.collect import is_held_out
from fewbit.engine.journal import Journal
from fewbit.engine.plan import Plan, WeightPlan
from fewbit.engine.workers import Workers
from fewbit.errors import UsageError
from fewbit.model.view import ModelView
from fewbit.model.walking import Block, Walk
from fewbit.numerics.qtensor import QTensor
from fewbit.record import Record

Settled = list[tuple[WeightPlan, QTensor | None]]
STAGE = "tune"


def refuse_tuning(view: ModelView, algorithm: str, *, data: bool, workers: Workers | None = None) -> None:
    """Refuse to tune what cannot be run block by block.

    Raises:
        UsageError: no samples, a model that cannot be walked, several workers.
    """
    tunes = f"the algorithm {algorithm!r} runs every block of the model again and again"
    instead = "algorithm='gptq', which needs second moments alone"
    if "walk" not in view.can:
        raise UsageError(f"{tunes}, which this kind of model does not let it", expected="a module", try_=instead)
    if not data:
        raise UsageError(
            f"{tunes}, and there are no samples to run it with",
            where="dataset",
            expected="samples; the statistics of an earlier run are not enough",
            try_=instead,
        )
    if workers is not None and workers.count > 1:
        raise UsageError(f"{tunes}, on one worker", where=f"{workers.count} workers", expected="one", try_=instead)


def refuse_untunable(view: ModelView, plan: Plan, *, data: bool, workers: Workers | None = None) -> None:
    """Refuse a plan with weights that are to be tuned and cannot be."""
    for name in dict.fromkeys(w.algorithm.name for w in plan.weights if w.algorithm.stage == STAGE):
        refuse_tuning(view, name, data=data, workers=workers)


class BlockTuning:
    """The weights of a plan that are to be tuned.

    Args:
        view: of the model.
        plan: what becomes of each weight.
        record: takes a line about each block.
        journal: keeps what is tuned; none if nothing is kept.
        workers: who walk the model.

    Raises:
        UsageError: several workers.
    """

    def __init__(
        self, view: Any, plan: Plan, record: Record, journal: Journal | None = None, workers: Workers | None = None
    ):
        self._view, self._record, self._journal = view, record, journal
        self._left = {w.point.name: w for w in plan.weights if w.algorithm.stage == STAGE}
        self._floats: dict[str, Tensor] = {}
        refuse_untunable(view, plan, data=True, workers=workers)

    def begin(self, block: str) -> None:
        """Remember what the weights of a block are in float."""
        mine = {name: w for name, w in self._left.items() if block and name.startswith(f"{block}.")}
        self._floats = {name: self._view.read(w.point) for name, w in mine.items()}

    def tuned(self, block: str, walk: Walk, settled: Settled) -> Settled:
        """Tune what can be tuned of a block, whose layers were settled; returns what each of them is then."""
        groups: dict[str, dict[str, tuple[WeightPlan, QTensor]]] = {}
        for w, codes in settled:
            if w.point.name in self._floats and codes is not None and is_tunable(w.grid.dtype):
                groups.setdefault(w.algorithm.name, {})[w.point.name] = w, codes
        found: dict[str, QTensor] = {}
        for group in groups.values():
            with walk.tuning() as runner:
                if runner is not None:
                    found |= self._tuned(block, runner, group)
        self._floats = {}
        return [(w, found.get(w.point.name, codes)) for w, codes in settled]

    def close(self) -> None:
        """Say what was not tuned."""
        if self._left:
            reason = "in no block that hands its answers on, or left in float: what was not tuned is as it began"
            self._record.note("not-tuned", reason, where=", ".join(self._left))

    def _tuned(
        self, block: str, runner: Block, group: Mapping[str, tuple[WeightPlan, QTensor]]
    ) -> Mapping[str, QTensor]:
        plans = [w for w, _ in group.values()]
        tuned = self._finished(plans)
        if tuned is None:
            tuned = self._solved(block, runner, group)
            for w in plans if self._journal is not None else ():
                assert self._journal is not None
                self._journal.write(_kept(w), Solution(tuned.codes[w.point.name], tuned.facts))
        for w in plans:
            self._view.write(w.point, tuned.codes[w.point.name].dequantize())
            del self._left[w.point.name]
        why = f"{len(plans)} weights together, for what the block answers"
        self._record.note("tuned", why, where=block, algorithm=plans[0].algorithm.name, **tuned.facts)
        return tuned.codes

    def _solved(self, block: str, runner: Block, group: Mapping[str, tuple[WeightPlan, QTensor]]) -> Tuned:
        first = next(iter(group.values()))[0]
        problem = BlockProblem(
            {name: self._floats[name] for name in group},
            {name: codes for name, (_, codes) in group.items()},
            runner.run,
            runner.wanted,
            [item for item in runner.items if not is_held_out(item)],
            [item for item in runner.items if is_held_out(item)],
            block,
        )
        return first.algorithm.solve(problem, **first.parameters)

    def _finished(self, plans: Sequence[WeightPlan]) -> Tuned | None:
        """What an earlier run tuned, if it did all of it."""
        if self._journal is None:
            return None
        codes, facts = {}, {}
        for w in plans:
            kept = self._journal.read(_kept(w), w.grid, w.point.shape, w.block)
            if kept is None:
                return None
            place = self._floats[w.point.name].device
            parts = {name: part.to(place) for name, part in kept.qtensor.tensors().items()}
            codes[w.point.name] = QTensor.from_tensors(w.grid, w.point.shape, w.block, parts)
            facts = kept.facts
        return Tuned(codes, facts)


def _kept(w: WeightPlan) -> str:
    return f"{w.point.name} tuned"
