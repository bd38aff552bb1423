# SPDX-License-Identifier: Apache-2.0
"""Batches as a task's models take them, made of batches as the data gives them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from fewbit.tuning.feeding import Feed, Part
from fewbit.tuning.opening import Data
from fewbit.tuning.unfit_samples import samples_named


def for_task(data: Data, task: Any, model: nn.Module) -> Data:
    """What a run reads, with the task's `prepare` in front of every batch, if it has one.

    Args:
        data: as it was opened.
        task: what is learned of it.
        model: that learns it.
    """
    if not hasattr(task, "prepare"):
        return data
    judged = None if data.validation is None else TaskFeed(data.validation, task, model, "validation data")
    return replace(data, train=TaskFeed(data.train, task, model), validation=judged)


class TaskFeed:
    """A feed whose batches a task has prepared; see `for_task`."""

    def __init__(self, feed: Feed, task: Any, model: nn.Module, what: str = "training data"):
        self._feed, self._task, self._model, self._what = feed, task, model, what

    @property
    def cuts(self) -> bool:
        """Whether batches are cut here."""
        return self._feed.cuts

    @property
    def steps(self) -> int | None:
        """Steps of an epoch."""
        return self._feed.steps

    def epoch(self, number: int, start: int = 0) -> Iterator[Part]:
        """The parts of an epoch, from a step of it on."""
        for part in self._feed.epoch(number, start):
            with samples_named(part.batch, part.items, self._feed.name, self._what):
                prepared = self._task.prepare(part.batch, self._model)
            yield replace(part, batch=prepared)

    def fingerprint(self) -> str:
        """What the data is."""
        return self._feed.fingerprint()

    def name(self, items: Sequence[int]) -> str:
        """The items of a part, in words."""
        return self._feed.name(items)
