# SPDX-License-Identifier: Apache-2.0
"""How good a model is at its task, sample by sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fewbit.engine.confidence import Estimate, ratio
from fewbit.errors import DataError
from fewbit.sparsity.batch_faults import asked_about, refuse_classes, refuse_unlabelled
from fewbit.sparsity.batch_rows import rows_of
from fewbit.sparsity.intervals import estimates
from fewbit.tuning.calling import to_device
from fewbit.tuning.feeding import Feed, Part

Answer = Callable[[Mapping[str, Any]], Any]
"""What a model makes of a batch."""


def judge(
    answer: Answer,
    feed: Feed,
    task: Any,
    *,
    place: torch.device,
    limit: int | None = None,
    losses: bool = True,
    classes: Sequence[str] = (),
) -> tuple[dict[str, Estimate], int]:
    """The task's numbers with their intervals, and how many samples they rest on.

    Args:
        answer: of the model.
        feed: batches that the task has prepared.
        task: a member of `fewbit.tuning.tasks`.
        place: where the model is.
        limit: of samples; all if none.
        losses: whether the task can tell the loss of such answers; the mean is then among the numbers.
        classes: the names of the data's, if it has any: a model that tells fewer apart is not judged by some of them.

    Raises:
        DataError: there is no sample, one without an answer, or answers and labels that do not fit together.
    """
    parts: list[Any] = []
    lost: list[tuple[float, float]] = []
    with torch.no_grad():
        for part in feed.epoch(0):
            outputs, batch = _answered(answer, part, task, place, feed.name(part.items), classes)
            with asked_about(batch, feed.name(part.items)):
                rows = list(rows_of(outputs, batch))
                parts += [_parts(task, *row) for row in rows]
                lost += _losses(task, rows, (outputs, batch)) if losses else []
            if limit is not None and len(parts) >= limit:
                break
    if not parts:
        raise DataError("there is nothing to judge by: no sample", code="no-samples", where="validation")
    found = estimates(task.METRIC, parts)
    if sum(count for _, count in lost) > 0:
        found["loss"] = ratio(*zip(*lost))
    return found, len(parts)


def rehearse(
    answer: Answer,
    feed: Feed,
    task: Any,
    *,
    place: torch.device,
    losses: bool = True,
    classes: Sequence[str] = (),
) -> list[str]:
    """The names of the numbers that `judge` will find, from the first batch; arguments and errors are its own."""
    part = next(feed.epoch(0), None)
    if part is None:
        raise DataError("there is nothing to judge by: no sample", code="no-samples", where="validation")
    with torch.no_grad():
        outputs, batch = _answered(answer, part, task, place, feed.name(part.items), classes)
        with asked_about(batch, feed.name(part.items)):
            metric = task.METRIC()
            metric.update(outputs, batch)
            if losses:
                task.loss(outputs, batch)
            return [*metric.result(), *(["loss"] if losses else [])]


def _answered(
    answer: Answer, part: Part, task: Any, place: torch.device, where: str, classes: Sequence[str]
) -> tuple[Any, dict[str, Any]]:
    """The model's answers to a batch, and the batch."""
    batch = to_device(part.batch, place)
    refuse_unlabelled(batch, task)
    with asked_about(batch, where):
        outputs = answer(batch)
        refuse_classes(outputs, batch, where, classes)
    return outputs, batch


def _losses(task: Any, rows: Sequence[Any], whole: tuple[Any, Any]) -> list[tuple[float, float]]:
    alone = bool(getattr(task, "ANSWERS", ("labels",)))  # a model that is told the answers says one loss a batch
    found = (task.loss(*each) for each in (rows if alone else [whole]))
    return [(float(total), float(count)) for total, count in found]


def _parts(task: Any, outputs: Any, batch: Mapping[str, Any]) -> Any:
    metric = task.METRIC()
    metric.update(outputs, batch)
    return metric.parts()
