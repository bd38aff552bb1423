# SPDX-License-Identifier: Apache-2.0
"""`finetune`: a model and data in, a model that does better on that data out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fewbit import registry
from fewbit.backends.eager.copying import copied as sharing_copy
from fewbit.data.findings import Progress
from fewbit.errors import UsageError
from fewbit.modules.opening import open_model, refuse_missing
from fewbit.record import Record
from fewbit.tuning import checkpoints, randomness, run_folder
from fewbit.tuning.calling import to_device
from fewbit.tuning.choosing import check_task, find_method, find_objective, find_task
from fewbit.tuning.class_names import check_classes, name_classes
from fewbit.tuning.delivering import deliver
from fewbit.tuning.digest import model_digest
from fewbit.tuning.faults import Faults
from fewbit.tuning.first_look import look
from fewbit.tuning.machine import Machine, started
from fewbit.tuning.methods._base import Objective
from fewbit.tuning.metrics_log import MetricsLog
from fewbit.tuning.opening import Data, as_config, for_model, open_data
from fewbit.tuning.options import Options
from fewbit.tuning.plots import write_plots
from fewbit.tuning.precision import narrow, widen
from fewbit.tuning.pruning import Pruning
from fewbit.tuning.running import Parts, made_for_training, run_loop
from fewbit.tuning.task_feed import for_task
from fewbit.tuning.tasks._base import classes_of

_TO_MEASURE_BY = 4
"""Batches for a method that measures what finishing a model changes."""


def finetune(
    model: Any,
    data: Any,
    *,
    method: str = "full",
    task: str | None = None,
    teacher: Any = None,
    output: str | Path | None = None,
    validation: Any = None,
    resume: bool = True,
    progress: Progress | None = None,
    factory: str | None = None,
    pruning: Pruning | None = None,
    **options: Any,
) -> nn.Module:
    """Train a model on data.

    A copy is trained: the model, the data and the caller's random state stay as they are. A run with an `output` that
    was killed goes on where its last checkpoint was when the same call is made again, and ends with the same weights,
    bit by bit on a CPU. With `torchrun` the same call shares the work among processes.

    Args:
        model: an `nn.Module`, or a path that `fewbit quantize` takes.
        data: a `DatasetConfig`, a path or name that `generate_dataset_config` takes, a `Dataset`, what
            `device_aware_data_loading` gave, or a `torch.utils.data.DataLoader`.
        method: which parameters learn: `full`, `lora`, `dora`, `qat`, `distill`.
        task: what is learned, of `fewbit list tasks`; if not said, what the data or the model's class is for.
        teacher: a model, or its path, that shows how it is done; with any method.
        output: a folder for the model, `metrics.jsonl`, plots and checkpoints.
        validation: to judge by, like `data`; if not said, what the configuration of the data keeps aside. False for
            nothing.
        resume: go on with the run that is in the output; if not, it is deleted.
        progress: shows how far it is.
        factory: `"file.py:function"` that builds a model that is not of Hugging Face's.
        pruning: takes weights out on the way, as `fewbit.sparsity.gradual.Gradual` does.
        options: see `fewbit.tuning.options.Options`: `epochs`, `lr`, `batch_size`, `precision` ….

    Returns:
        The trained model in eval mode, with its `fewbit_record`: losses, numbers before and after, time.

    Raises:
        UsageError: settings that cannot be, an output with another run in it; all faults before the work starts.
        DataError: data that does not fit the model; a loss that is no number, with its step and items.

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> x, y = torch.randn(32, 4), torch.zeros(32, dtype=torch.long)
    >>> loader = DataLoader(TensorDataset(x, y), batch_size=8)
    >>> tuned = finetune(nn.Linear(4, 3), loader, task="sequence_classification", lr=0.1, epochs=2, device="cpu")
    >>> tuned.fewbit_record.facts["steps"]
    8
    """
    faults = Faults()
    how: Any = faults.tried(lambda: find_method(method, teacher))
    settings: Any = faults.tried(lambda: Options.read({**getattr(how, "DEFAULTS", {}), **options}))
    folder = None if output is None else faults.tried(lambda: run_folder.check_place(output))
    if task is not None:
        faults.tried(lambda: check_task(task))
    opened, given_data, given_validation = isinstance(model, str | Path), data, validation
    home = model
    if data is None:
        faults.tried(_no_data)
    data = faults.tried(lambda: as_config(given_data, home))
    validation = faults.tried(lambda: as_config(given_validation, home))
    for each in (model, teacher):
        if isinstance(each, str | Path) and not registry.is_reference(each):
            faults.tried(partial(refuse_missing, each))
    faults.tell()
    if opened:
        model = open_model(model, factory)
    if not isinstance(model, nn.Module):
        raise UsageError(f"a {type(model).__name__} cannot be trained", expected="a torch.nn.Module, or its path")
    if isinstance(teacher, str | Path):
        teacher = open_model(teacher)
    data, validation = (for_model(each, task, model) for each in (data, validation))
    with started(settings) as machine, randomness.private(settings.seed):
        found = open_data(
            data,
            validation,
            settings,
            given=set(options),
            device=machine.device,
            rank=machine.rank,
            world=machine.world,
        )
        settings = replace(settings, precision=machine.precision, batch_size=found.batch_size)
        job = Job(
            machine, settings, found, method, how, teacher, folder, resume, progress or Progress(), factory, pruning
        )
        return job.run(model, task, copied=opened)


def _no_data() -> None:
    raise UsageError("data is None", where="data", expected="a path, a configuration, a Dataset or a loader")


@dataclass
class Job:
    """One call of `finetune`, when everything that was given is open."""

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

    def run(self, model: nn.Module, task: str | None, *, copied: bool) -> nn.Module:
        """Check, train, write."""
        machine, options = self.machine, self.options
        name, chosen = find_task(task, self.data.task, model)
        check_classes(model, self.data.classes, name)
        self.data = for_task(self.data, chosen, model)
        look(self.data.train, model, chosen, "training")
        if self.data.validation is not None:
            look(self.data.validation, model, chosen, "validation")
        checkpoint = self._begin(model, name)
        record = Record("finetune", {"method": self.method, "task": name, "options": options.to_dict()})
        record.facts["classes"] = self.data.classes
        before = model
        home = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        model = self._ready(model if copied else _copied(model))
        dtypes = widen(model, machine.precision)
        randomness.seed_all(options.seed + machine.rank)
        teacher = None if self.teacher is None else sharing_copy(self.teacher).to(machine.device).eval()
        if teacher is not None:
            teacher.requires_grad_(False)
        objective = find_objective(self.how, chosen, teacher, options)
        with made_for_training(model, options):
            trained = self._trained(model, objective, chosen, checkpoint, record)
        record.lines[:0] = self.data.notes()
        model = self._finished(trained).to(home).eval()
        narrow(model, dtypes)
        if not name_classes(model, self.data.classes, name):
            record.note("classes-unnamed", f"the model has {classes_of(model)} classes, the data {self.data.classes}")
        merged = vars(model).get("fewbit_merge")
        if merged is not None:
            record.facts["merge"] = merged.to_dict()
        model.fewbit_record = record  # type: ignore[assignment]
        if not copied and hasattr(before, "name_or_path"):
            model.name_or_path = before.name_or_path
        if self.folder is not None:
            if machine.is_first:
                record.facts["written_as"] = deliver(
                    model, self.folder, tokenizer=self.data.tokenizer, factory=self.factory
                )
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

    def _ready(self, model: nn.Module) -> nn.Module:
        setup: Callable[..., nn.Module] = self.how.setup
        if "batches" not in signature(setup).parameters:
            return setup(model, self.options)
        parts = islice(self.data.train.epoch(0), _TO_MEASURE_BY)
        return setup(model, self.options, [part.batch for part in parts])

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
