# SPDX-License-Identifier: Apache-2.0
"""One call of `finetune`, when everything that was given is open: check, train, write."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fewbit.backends.eager.copying import copied as sharing_copy
from fewbit.data.findings import Progress
from fewbit.errors import UsageError
from fewbit.modules.peft_folder import how_to_load
from fewbit.record import Record
from fewbit.tuning import checkpoints, randomness, run_folder
from fewbit.tuning.adapter_files import refuse_unsavable
from fewbit.tuning.calling import to_device
from fewbit.tuning.choosing import find_objective, find_task
from fewbit.tuning.class_names import check_classes, name_classes
from fewbit.tuning.delivering import deliver
from fewbit.tuning.digest import model_digest
from fewbit.tuning.evaluating import Evaluator
from fewbit.tuning.first_look import look
from fewbit.tuning.idle_options import left_out
from fewbit.tuning.machine import Machine
from fewbit.tuning.methods._base import Objective
from fewbit.tuning.metrics_log import MetricsLog
from fewbit.tuning.opening import Data
from fewbit.tuning.options import Options
from fewbit.tuning.plots import write_plots
from fewbit.tuning.precision import narrow, widen
from fewbit.tuning.pruning import Pruning
from fewbit.tuning.running import Parts, made_for_training, run_loop
from fewbit.tuning.task_feed import for_task
from fewbit.tuning.tasks._base import classes_of

_TO_MEASURE_BY = 4
"""Batches for a method that measures what finishing a model changes."""


@dataclass
class Job:
    """One call of `finetune`.

    Args:
        machine: what it runs on.
        options: of the run.
        data: what it reads.
        method: which parameters learn.
        how: the method's module.
        teacher: that shows how it is done.
        folder: of the output.
        resume: whether to go on with the run that is there.
        progress: shows how far it is.
        factory: what builds the model.
        pruning: takes weights out on the way.
        remarks: what the record is to say of what was assumed, by what it is about.
        source: the path that the model was opened from, if it was one.
    """

    machine: Machine
    options: Options
    data: Data
    method: str
    how: Any
    teacher: nn.Module | None
    folder: Path | None
    resume: bool
    progress: Progress
    factory: str | None
    pruning: Pruning | None
    remarks: Mapping[str, str]
    source: str | None = None

    def run(self, model: nn.Module, task: str | None, *, copied: bool) -> nn.Module:
        """Check, train, write."""
        machine, options = self.machine, self.options
        name, chosen = find_task(task, self.data.task, model)
        check_classes(model, self.data.classes, name)
        self.data = for_task(self.data, chosen, model)
        look(self.data.train, model, chosen, "training")
        if self.data.validation is not None:
            look(self.data.validation, model, chosen, "validation")
        if self.folder is not None and "merge" in getattr(self.how, "OPTIONS", ()) and not options.merge:
            refuse_unsavable(model, options)
        checkpoint = self._begin(model, name)
        record = Record("finetune", {"method": self.method, "task": name, "options": options.to_dict()})
        record.facts["classes"] = self.data.classes
        for what, why in self.remarks.items():
            record.note(what, why)
        before = model
        home = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        model = model if copied else _copied(model)
        vars(model).pop("fewbit_merge", None)  # of an earlier run
        model = self._ready(model)
        unreached = left_out(model, self.method)
        if unreached is not None:
            record.note("codes-stay", unreached)
        dtypes = widen(model, machine.precision)
        randomness.seed_all(options.seed + machine.rank)
        teacher = None if self.teacher is None else sharing_copy(self.teacher).to(machine.device).eval()
        if teacher is not None:
            teacher.requires_grad_(False)
        objective = find_objective(self.how, chosen, teacher, options)
        with made_for_training(model, options):
            trained = self._trained(model, objective, chosen, checkpoint, record)
        record.lines[:0] = self.data.notes()
        model = self._finished(trained)
        narrow(model, dtypes)
        merged = vars(model).get("fewbit_merge")
        if merged is not None:
            record.facts["merge"] = merged.to_dict() | {"after": self._judged(model, chosen)}
        model = model.to(home).eval()
        if not name_classes(model, self.data.classes, name):
            record.note("classes-unnamed", f"the model has {classes_of(model)} classes, the data {self.data.classes}")
        model.fewbit_record = record  # type: ignore[assignment]
        if not copied and hasattr(before, "name_or_path"):
            model.name_or_path = before.name_or_path
        if self.folder is not None:
            if machine.is_first:
                record.facts["written_as"] = deliver(
                    model, self.folder, tokenizer=self.data.tokenizer, factory=self.factory, source=self.source
                )
                if record.facts["written_as"] == "peft":
                    record.note("adapters-apart", how_to_load(self.folder), where=str(self.folder))
                record.save(self.folder / "record.json")
            machine.wait()
        return model

    def _trained(
        self, model: nn.Module, objective: Objective, task: Any, checkpoint: Path | None, record: Record
    ) -> nn.Module:
        """Train, and write down what happened."""
        kept = None if self.folder is None else checkpoints.Checkpoints(self.folder / "checkpoints", self.options.keep)
        writes = self.folder if self.machine.is_first else None
        resumed = None if checkpoint is None else checkpoints.step_of(checkpoint)
        log = MetricsLog(writes, tensorboard=self.options.tensorboard, resumed=resumed)
        parts = Parts(self.machine, self.options, self.data, task, self.how, log, kept, self.progress, self.pruning)
        try:
            trained = run_loop(parts, model, objective, checkpoint, record)
        finally:
            log.close()
            if writes is not None:
                write_plots(log.lines, writes / "plots")
        return trained

    def _judged(self, model: nn.Module, task: Any) -> dict[str, float] | None:
        """The numbers of a model with the weights that are delivered; none where there is nothing to judge by."""
        if self.data.validation is None:
            return None
        evaluator = Evaluator(self.machine, self.data.validation, task, self.options.eval_batches)
        if self.machine.precision != "fp32":
            return evaluator(model.to(self.machine.device))
        # It computes as it did in training, but with what is left of its weights in fewer bits.
        dtypes = widen(model, self.machine.precision)
        numbers = evaluator(model.to(self.machine.device))
        narrow(model, dtypes)
        return numbers

    def _ready(self, model: nn.Module) -> nn.Module:
        setup: Callable[..., nn.Module] = self.how.setup
        wanted = signature(setup).parameters
        more: dict[str, Any] = {"teacher": self.teacher} if "teacher" in wanted else {}
        if "batches" in wanted:
            more["batches"] = [part.batch for part in islice(self.data.train.epoch(0), _TO_MEASURE_BY)]
        return setup(model, self.options, **more)

    def _finished(self, model: nn.Module) -> nn.Module:
        finish: Callable[..., nn.Module] = self.how.finish
        if "batches" not in signature(finish).parameters:
            return finish(model)
        place = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        parts = islice((self.data.validation or self.data.train).epoch(0), _TO_MEASURE_BY)
        return finish(model, [to_device(part.batch, place) for part in parts])

    def _begin(self, model: nn.Module, task: str) -> Path | None:
        """Start the run in its folder; the checkpoint to go on from, if there is one."""
        if self.folder is None:
            return None
        facts = {
            "method": self.method,
            "task": task,
            "options": self.options.what_matters(),
            "model": model_digest(model),
            "teacher": None if self.teacher is None else model_digest(self.teacher),
            "pruning": None if self.pruning is None else self.pruning.facts(),
            "data": self.data.train.fingerprint(),
            "validation": None if self.data.validation is None else self.data.validation.fingerprint(),
        }
        if self.machine.is_first:
            run_folder.begin(self.folder, facts, resume=self.resume)
        self.machine.wait()
        kept = checkpoints.Checkpoints(self.folder / "checkpoints")
        if self.machine.is_first:
            kept.sweep()
        self.machine.wait()
        return kept.last()


def _copied(model: nn.Module) -> nn.Module:
    """A model of its own, weights and all.

    Raises:
        UsageError: something in it cannot be copied.
    """
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise UsageError(
            f"the model cannot be copied: {type(error).__name__}: {str(error)[:300]}",
            where=type(model).__name__,
            expected="a model that copy.deepcopy takes",
            try_="give its path, or 'file.py:function' that makes it",
        ) from error
