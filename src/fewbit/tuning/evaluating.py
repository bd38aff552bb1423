# SPDX-License-Identifier: Apache-2.0
"""How good a model is on data it does not learn from: the mean loss, and the task's own numbers."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

import torch
from torch import nn

from fewbit.tuning.calling import run, to_device
from fewbit.tuning.feeding import Feed
from fewbit.tuning.machine import Machine
from fewbit.tuning.tasks._base import Best, Metric
from fewbit.tuning.unfit_samples import samples_named

_SMALLER = ("loss", "perplexity")
"""The numbers of tasks that are the better the smaller they are."""


class Evaluator:
    """Judges a model.

    Args:
        machine: what it runs on; processes share the work.
        feed: the data.
        task: what the model is to do.
        batches: at most so many a process; all if none.
    """

    def __init__(self, machine: Machine, feed: Feed, task: Any, batches: int | None = None):
        self._machine, self._feed, self._task, self._batches = machine, feed, task, batches

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """The numbers. The model is in training mode afterwards if it was before."""
        training = model.training
        model.eval()
        try:
            with torch.no_grad():
                return self._judged(model)
        finally:
            model.train(training)

    def _judged(self, model: nn.Module) -> dict[str, float]:
        machine, task = self._machine, self._task
        metric: Metric = task.METRIC()
        losses = Metric()
        for part in islice(self._feed.epoch(0), self._batches):
            batch = to_device(part.batch, machine.device)
            named = samples_named(part.batch, part.items, self._feed.name, "validation data")
            with named, machine.autocast():
                outputs = run(model, batch, getattr(task, "ANSWERS", ("labels",)))
                total, count = task.loss(outputs, batch)
            if part.counts:
                losses.add(loss=total, count=count)
                metric.update(outputs, batch)
        gathered = machine.gather((losses.parts(), metric.parts()))
        losses.merge(parts for parts, _ in gathered)
        metric.merge(parts for _, parts in gathered)
        return {"loss": losses.sums["loss"] / max(1.0, losses.sums["count"]), **metric.result()}


def judged_by(task: Any, name: str | None) -> Best:
    """The number that evaluations are compared by, and which way is better.

    Args:
        task: what the model is to do.
        name: one of its numbers; its own choice if none.

    >>> from fewbit.tuning.tasks import image_classification
    >>> judged_by(image_classification, None), judged_by(image_classification, "loss")
    (('accuracy', 'max'), ('loss', 'min'))
    """
    best: Best = task.METRIC.BEST
    return best if name is None else (name, "min" if name in _SMALLER else "max")


def is_better(numbers: tuple[float, float], than: tuple[float, float] | None, direction: str) -> bool:
    """Whether an evaluation is better than another; anything is better than none, nothing than itself.

    Args:
        numbers: the number it is judged by, and the loss, which decides between equals.
        than: the same of the other one.
        direction: `"min"` or `"max"`, of the first number.

    >>> is_better((1.0, 0.2), (2.0, 0.1), "min"), is_better((1.0, 0.2), (1.0, 0.3), "max")
    (True, True)
    """
    if any(math.isnan(number) for number in numbers):
        return False
    sign = 1 if direction == "min" else -1
    return than is None or (sign * numbers[0], numbers[1]) < (sign * than[0], than[1])
