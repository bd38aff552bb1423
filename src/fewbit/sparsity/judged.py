# SPDX-License-Identifier: Apache-2.0
"""How good a model is at its task, sample by sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fewbit.engine.confidence import Estimate, ratio
from fewbit.errors import DataError
from fewbit.sparsity.intervals import estimates
from fewbit.tuning.calling import to_device
from fewbit.tuning.feeding import Feed

Answer = Callable[[Mapping[str, Any]], Any]
"""What a model makes of a batch."""


def judge(
    answer: Answer, feed: Feed, task: Any, *, place: torch.device, limit: int | None = None, losses: bool = True
) -> tuple[dict[str, Estimate], int]:
    """The task's numbers with their intervals, and how many samples they rest on.

    Args:
        answer: of the model.
        feed: batches that the task has prepared.
        task: a member of `fewbit.tuning.tasks`.
        place: where the model is.
        limit: of samples; all if none.
        losses: whether the task can tell the loss of such answers; the mean is then among the numbers.

    Raises:
        DataError: there is no sample, or one without an answer.
    """
    parts: list[Any] = []
    lost: list[tuple[float, float]] = []
    alone = bool(getattr(task, "ANSWERS", ("labels",)))  # a model that is told the answers says one loss a batch
    with torch.no_grad():
        for part in feed.epoch(0):
            batch = to_device(part.batch, place)
            _refuse_unlabelled(batch, task)
            outputs = answer(batch)
            rows = list(_rows(outputs, batch))
            if losses:
                for each in rows if alone else [(outputs, batch)]:
                    total, count = task.loss(*each)
                    lost.append((float(total), float(count)))
            parts += [_parts(task, *row) for row in rows]
            if limit is not None and len(parts) >= limit:
                break
    if not parts:
        raise DataError("there is nothing to judge by: no sample", code="no-samples", where="validation")
    found = estimates(task.METRIC, parts)
    if sum(count for _, count in lost) > 0:
        found["loss"] = ratio(*zip(*lost))
    return found, len(parts)


def _refuse_unlabelled(batch: Mapping[str, Any], task: Any) -> None:
    names = {"labels", *getattr(task, "ANSWERS", ())}
    if not names & batch.keys():
        raise DataError(
            f"the data does not say what is right: it has {', '.join(batch)}",
            code="no-labels",
            where="validation",
            expected=" or ".join(sorted(names)),
        )


def _parts(task: Any, outputs: Any, batch: Mapping[str, Any]) -> Any:
    metric = task.METRIC()
    metric.update(outputs, batch)
    return metric.parts()


def _rows(outputs: Any, batch: Mapping[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each sample alone, as a batch of one."""
    size = batch_size(batch)
    for row in range(size):
        yield _row(outputs, row, size), {name: _row(value, row, size) for name, value in batch.items()}


def batch_size(batch: Mapping[str, Any]) -> int:
    """How many samples a batch has."""
    return max((size for value in batch.values() if (size := _size(value)) is not None), default=0)


def _size(value: Any) -> int | None:
    if isinstance(value, tuple):
        return next((size for each in value if (size := _size(each)) is not None), None)
    return len(value) if isinstance(value, list) or (isinstance(value, Tensor) and value.ndim) else None


def _row(value: Any, row: int, size: int) -> Any:
    """One sample of whatever holds one for each."""
    if isinstance(value, SimpleNamespace):
        value = vars(value)
    if isinstance(value, Mapping):  # a model's outputs, whose tensors are asked for as attributes
        return SimpleNamespace(**{str(name): _row(each, row, size) for name, each in value.items()})
    if isinstance(value, tuple):
        return tuple(_row(each, row, size) for each in value)
    holds = isinstance(value, list) or (isinstance(value, Tensor) and value.ndim > 0)
    return value[row : row + 1] if holds and len(value) == size else value
