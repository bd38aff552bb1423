# SPDX-License-Identifier: Apache-2.0
"""Data and model held against each other before anything is trained, as `finetune` does it when it begins."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fewbit.backends.eager.copying import copied
from fewbit.data.capturing.modes import evaluating
from fewbit.errors import UsageError
from fewbit.modules.opening import open_model
from fewbit.sparsity.job import Job
from fewbit.sparsity.new_head import with_new_head
from fewbit.tuning import randomness
from fewbit.tuning.calling import run as run_model
from fewbit.tuning.calling import to_device
from fewbit.tuning.choosing import find_task
from fewbit.tuning.class_names import TASKS, check_classes
from fewbit.tuning.configuring import as_config, for_model
from fewbit.tuning.distilling import Distillation
from fewbit.tuning.first_look import look, try_out
from fewbit.tuning.opening import Data, open_data
from fewbit.tuning.options import Options
from fewbit.tuning.task_feed import for_task
from fewbit.tuning.tasks._base import logits_of


def open_for(model: nn.Module, job: Job, options: dict[str, Any]) -> Data:
    """The data of a call, open.

    Raises:
        UsageError: no data, or data that cannot be read like this.
        DataError: what is wrong with it.
    """
    if job.data is None:
        raise UsageError("data is None", where="data", expected="a path, a configuration, a Dataset or a loader")
    data, validation = (for_model(as_config(each, model), job.task, model) for each in (job.data, job.validation))
    return open_data(data, validation, Options.read(options), given=set(options), device=torch.device("cpu"))


def headed(model: nn.Module, classes: list[str] | None, *, new_head: bool, seed: int = 0) -> nn.Module:
    """The model that is trained: with a new head if it is to have one.

    Raises:
        UsageError: a new head for data that does not say what its classes are.
    """
    if not new_head:
        return model
    if not classes:
        raise UsageError(
            "the data does not say what its classes are",
            where="new_head",
            expected="data with names of classes: a folder for each, or a column of names",
            try_="new_head: false, and a model with the head that is wanted",
        )
    return with_new_head(model, classes, seed)


def rehearse(model: nn.Module, job: Job, options: dict[str, Any], *, distill: bool, new_head: bool) -> None:
    """Open the data, look at its first batches, and run the model and its teacher on the first.

    Args:
        model: as it is given.
        job: of the call.
        options: of `finetune`.
        distill: whether the model learns from a teacher.
        new_head: whether it gets another head.

    Raises:
        UsageError: a model, or a teacher, for other classes than those of the data.
        DataError: data that does not fit the model.
    """
    with randomness.private(0):
        found = open_for(model, job, options)
        classes = found.classes or job.classes
        model = headed(model, classes, new_head=new_head)
        name, task = find_task(job.task, found.task, model)
        if name in TASKS and classes:
            _refuse_classes(model, found, task, classes, job)
        check_classes(model, classes, name)
        found = for_task(found, task, model)
        look(found.train, model, task, "training")
        if found.validation is not None:
            look(found.validation, model, task, "validation")
        first = next(found.train.epoch(0))
        place = next((each.device for each in model.parameters()), torch.device("cpu"))
        batch = to_device(first.batch, place)
        try_out(model, task, batch, found.train.name(first.items))
        if distill:
            teacher = copied(teacher_of(job)).to(place)
            Distillation(task, teacher, hidden=options.get("hidden_weight", 0.0)).check(model, batch)


def teacher_of(job: Job) -> Any:
    """The model to learn from: the one that the user named, or the one that was given."""
    teacher = job.dense if job.teacher is None else job.teacher
    return teacher if isinstance(teacher, nn.Module) else open_model(teacher)


def _refuse_classes(model: nn.Module, data: Data, task: Any, classes: list[str], job: Job) -> None:
    """Other classes than the model has: fewer than the data, or any other number where the model is from elsewhere."""
    first = next(for_task(data, task, model).train.epoch(0))
    place = next((each.device for each in model.parameters()), torch.device("cpu"))
    try:
        with evaluating(model):
            outputs = run_model(model, to_device(first.batch, place), getattr(task, "ANSWERS", ("labels",)))
    except (AttributeError, TypeError, ValueError, KeyError, IndexError, RuntimeError):
        return  # what is wrong is told by the look at the batches, with everything else that is
    count = logits_of(outputs).shape[-1]
    if count < len(classes) or (job.mode == "sparse-transfer" and count != len(classes)):
        shown = ", ".join(classes[:12]) + (" …" if len(classes) > 12 else "")
        raise UsageError(
            f"the data has {len(classes)} classes ({shown}), the model tells {count} apart",
            where=type(model).__name__,
            expected=f"a model for {len(classes)} classes",
            try_="--option new_head=true (new_head=True in Python, new_head: true in the stage train of a recipe): the "
            "head starts anew, all else stays as it is",
        )
