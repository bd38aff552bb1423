# SPDX-License-Identifier: Apache-2.0
"""One pass over the files of a checkpoint: laid out, written, checked, recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fewbit import registry
from fewbit.algorithms._base import Solution
from fewbit.algorithms._parallel import one_thread
from fewbit.data.findings import Progress
from fewbit.engine.checkpoint_contents import FileContents
from fewbit.engine.checkpoint_names import NeedsModel, find_weights, refuse_missing
from fewbit.engine.checkpoint_pieces import facts_of, sharing
from fewbit.engine.checkpoint_skeleton import put_stand_ins
from fewbit.engine.companions import copy_companions
from fewbit.engine.plan import Plan, WeightPlan
from fewbit.engine.run import facts_of as plan_facts
from fewbit.engine.solve import is_lost, note_lost
from fewbit.engine.unknown_tensors import copy_unknown
from fewbit.exporters._checkpoint_files import write_files
from fewbit.model.view import ModelView
from fewbit.modules import manifest
from fewbit.modules.checkpoint_files import Place
from fewbit.modules.quantized import get_weight
from fewbit.record import Record


class SecondPass(Exception):
    """What values told that a checkpoint's layout depends on: it has to be laid out again.

    Args:
        narrow: weights whose scales are kept in another dtype than was said, and whether it is a narrower one.
        floats: weights that stay in float, for what their codes would lose.
    """

    def __init__(self, narrow: Mapping[str, bool], floats: Mapping[str, Solution]):
        super().__init__()
        self.narrow, self.floats = narrow, floats


class CheckpointRun:
    """A pass.

    Args:
        view: of an empty model, which is changed.
        plan: what becomes of its weights.
        tensors: the files.
        known: what an earlier pass told.
        progress: shows how far it is.
    """

    def __init__(
        self, view: ModelView, plan: Plan, tensors: Mapping[str, Place], known: SecondPass, progress: Progress
    ):
        self._view, self._plan, self._tensors, self._known, self._progress = view, plan, tensors, known, progress
        self._weights = [w for w in plan.weights if w.point.name not in known.floats]

    def write(self, folder: Path, format: str, shard_bytes: int) -> None:
        """Write everything into an empty folder.

        Raises:
            SecondPass: it has to be done once more, with what was found.
            NeedsModel: files that are not as the model has them.
            DataError: a file that is damaged, a weight that is not finite.
        """
        with one_thread() as threads:  # tasks have threads of their own, and main ones that wait would take theirs
            self._write(folder, format, shard_bytes, threads)

    def _write(self, folder: Path, format: str, shard_bytes: int, threads: int) -> None:
        exporter, model, record = registry.get("exporters", format), self._view.native(), self._begun()
        contents = FileContents(self._tensors, sharing(find_weights(model, self._weights, self._tensors)))
        put_stand_ins(self._view, self._weights, self._known.narrow)
        self._view.sign(self._plan.config, record)
        laid = exporter.lay_out(model, folder, contents)
        refuse_missing(contents.missing, self._tensors)
        unused = self._unused(model, {*contents.weights, *(entry.name for entry in laid.entries)})
        with contents.begin(laid.entries, threads, self._progress):
            write_files(folder, map(contents.expected, laid.entries), shard_bytes)
        found = {w.point.name: self._solution(model, w, contents) for w in self._weights}
        lost = {name: each for name, each in found.items() if is_lost(each)}
        torn = sorted(contents.narrow.keys() & self._known.narrow.keys())
        if torn:
            raise NeedsModel("scales of one stack in two dtypes", where=torn[0], expected="scales that one dtype holds")
        if lost or contents.narrow:
            raise SecondPass(contents.narrow, lost)
        for planned in self._weights:
            facts, name = found[planned.point.name].facts, planned.point.name
            record.note("quantized", planned.why, where=name, algorithm=planned.algorithm.name, **facts)
        copied = copy_unknown(folder, unused, format, record)
        copy_companions(model, folder)
        record.save(folder / "record.json")
        manifest.write(folder, format, laid.content | copied)
        exporter.check(model, folder, manifest.read(folder), contents)

    def _begun(self) -> Record:
        record, plan = Record("quantize"), self._plan
        for kept in plan.kept:
            record.note("float", kept.reason, where=kept.name, bytes=kept.bytes)
        for where, what in plan.notes:
            record.note("note", what, where=where)
        record.facts |= plan_facts(plan)
        for planned in plan.weights:
            if (solution := self._known.floats.get(planned.point.name)) is not None:
                note_lost(record, planned, solution)
        return record

    def _unused(self, model: Any, used: set[str]) -> dict[str, Place]:
        """Tensors of the files that the model class does not know; those that it ties to another are refused."""
        found = {name: place for name, place in self._tensors.items() if name not in used}
        for name in found:
            if name in getattr(model, "all_tied_weights_keys", {}):
                raise NeedsModel("a tensor that the model shares with another is in the files too", where=name)
        return found

    def _solution(self, model: Any, planned: WeightPlan, contents: FileContents) -> Solution:
        """What is known of a weight that was written, beside the codes that stand for its own."""
        layer = model.get_submodule(planned.point.layer)
        return Solution(get_weight(layer, planned.point.tensor), facts_of(contents.found[planned.point.name]))
