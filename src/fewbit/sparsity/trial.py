# SPDX-License-Identifier: Apache-2.0
"""A model on trial at its task: the data that says what is right, open, and the model, ready to answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fewbit import registry
from fewbit.data.capturing.modes import modes_kept
from fewbit.engine.confidence import Estimate
from fewbit.errors import FewbitError, UsageError
from fewbit.sparsity.graph_answers import GraphAnswers
from fewbit.sparsity.job import Job
from fewbit.sparsity.judged import Answer, judge, rehearse
from fewbit.tuning import randomness
from fewbit.tuning.calling import run
from fewbit.tuning.class_names import check_classes
from fewbit.tuning.configuring import as_config, for_model
from fewbit.tuning.feeding import Feed
from fewbit.tuning.first_look import look
from fewbit.tuning.opening import Data, open_data
from fewbit.tuning.options import Options
from fewbit.tuning.task_feed import for_task

_OF_DATA = 512
"""So many samples are enough where a model is judged by what it was made with."""


@dataclass(frozen=True)
class Trial:
    """What a model is judged with.

    Args:
        module: that answers; an empty one where a graph does.
        answer: what it makes of a batch.
        feed: the batches.
        task: that holds answers against what is right.
        losses: whether the task tells the loss of such answers.
        on: `"validation"`, or `"data"` where nothing is kept aside.
        classes: the names of the data's classes, if it has any.
    """

    module: nn.Module
    answer: Answer
    feed: Feed
    task: Any
    losses: bool
    on: str
    classes: Sequence[str] = ()

    def names(self) -> list[str]:
        """The names of the numbers there will be, by asking about one batch."""
        with modes_kept(self.module, evaluate=True):
            return rehearse(self.answer, self.feed, self.task, **self._how)

    def numbers(self) -> tuple[dict[str, Estimate], int]:
        """The numbers with their intervals, and how many samples they rest on."""
        limit = None if self.on == "validation" else _OF_DATA
        with modes_kept(self.module, evaluate=True):
            return judge(self.answer, self.feed, self.task, limit=limit, **self._how)

    @property
    def _how(self) -> dict[str, Any]:
        place = next((each.device for each in self.module.parameters()), torch.device("cpu"))
        return {"place": place, "losses": self.losses, "classes": self.classes}


def open_trial(model: Any, job: Job) -> Trial:
    """Open the data to judge by and hold its first batches against the model.

    Args:
        model: an `nn.Module` or an ONNX `ModelProto`; not changed.
        job: of the call; with a task and data.

    Raises:
        UsageError: a model for other classes than those of the data.
        DataError: data that does not fit the model, or does not say what is right.
    """
    task = registry.get("tasks", job.task or "")
    names = getattr(task, "ANSWERS", ("labels",))
    module = model if isinstance(model, nn.Module) else nn.Module()
    data = for_task(_opened(module, job), task, module)
    feed, on = (data.train, "data") if data.validation is None else (data.validation, "validation")
    classes = data.classes or job.classes or ()
    if module is not model:
        return Trial(module, GraphAnswers(model, {*names, "labels"}), feed, task, bool(names), on, classes)
    check_classes(module, data.classes, job.task or "")
    look(feed, module, task, "validation" if on == "validation" else "training")
    return Trial(module, lambda batch: run(module, batch, names), feed, task, True, on, classes)


def refuse_metric(model: Any, job: Job) -> None:
    """Find out before the work starts whether the number that the user asks for can be told; nothing if none is asked.

    Args:
        model: that is judged.
        job: of the call.

    Raises:
        UsageError: it cannot: why, and what can.
    """
    if not job.asked or job.metric is None:
        return
    if job.data is None:
        raise UsageError(f"eval_metric={job.metric!r}, and no data", where="eval_metric", expected="data to judge by")
    try:
        with randomness.private(0):
            names = open_trial(model, job).names()
    except FewbitError as error:
        raise unjudged(job.metric, error.to_dict()) from error
    if job.metric not in names:
        raise unjudged(job.metric, {"what": "its answers do not tell that", "expected": f"one of {', '.join(names)}"})


def unjudged(metric: str, why: Mapping[str, str | None]) -> UsageError:
    """The error for a number that was asked for and cannot be told.

    Args:
        metric: the number.
        why: as `FewbitError.to_dict` says it.
    """
    without = "without eval_metric (--eval-metric) it is judged by what can be told, or compared with the dense model"
    return UsageError(
        f"the model cannot be judged by {metric}: {why['what']}",
        where=why.get("where") or "eval_metric",
        expected=why.get("expected") or f"a model and data that tell {metric}",
        try_="; ".join(filter(None, (why.get("try"), without))),
    )


def _opened(model: nn.Module, job: Job) -> Data:
    """The data in its order."""
    said = {name: job.options[name] for name in ("batch_size", "workers") if job.options.get(name) is not None}
    said["shuffle"] = False
    data, validation = (
        for_model(as_config(each, job.home or model), job.task, model) for each in (job.data, job.validation)
    )
    return open_data(data, validation, Options.read(said), given=set(said), device=torch.device("cpu"))
