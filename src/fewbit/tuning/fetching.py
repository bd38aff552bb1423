# SPDX-License-Identifier: Apache-2.0
"""The parts of a run read ahead and put on the device, by the means a loader has."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from fewbit.data.devices._choice import Target
from fewbit.data.loaders.ahead import Processes, by_reader, by_threads
from fewbit.data.loaders.fetching import Fetch, Fetched, Job
from fewbit.data.loaders.transfer import on_device
from fewbit.data.loaders.workers import Workers, choose_workers


@dataclass(frozen=True)
class PartJob:
    """Which part: of which samples, whether it is its process's last of its step, and whether it counts."""

    epoch: int
    number: int
    indices: list[int]
    last: bool
    counts: bool = True


class Fetching:
    """Reads parts, by threads or processes where that helps.

    Args:
        fetch: makes a batch.
        target: where it goes.
        workers: how many help; measured if none.
    """

    def __init__(self, fetch: Fetch, target: Target, workers: int | None):
        self._fetch, self._target, self._wanted = fetch, target, workers
        self._workers: Workers | None = None
        self._processes: Processes | None = None

    def __call__(self, parts: Iterator[PartJob]) -> Iterator[tuple[PartJob, Any]]:
        """Each part with its batch."""
        if self._workers is None:
            head = list(islice(parts, 3))
            parts = chain(head, parts)
            self._workers = self._choose([Job(part.epoch, part.number, part.indices) for part in head])
        asked: deque[PartJob] = deque()

        def jobs() -> Iterator[Job]:
            for part in parts:
                asked.append(part)
                yield Job(part.epoch, part.number, part.indices)

        for fetched in on_device(self._fetched(jobs()), self._target):
            if fetched.error is not None:
                raise fetched.error
            yield asked.popleft(), fetched.batch

    def _fetched(self, jobs: Iterator[Job]) -> Iterator[Fetched]:
        assert self._workers is not None
        number, kind, _ = self._workers
        if kind == "process":
            self._processes = self._processes or Processes(self._fetch, number)
            return self._processes.fetch(jobs)
        if kind == "thread":
            return by_threads(self._fetch, jobs, number)
        return by_reader(self._fetch, jobs)

    def _choose(self, jobs: list[Job]) -> Workers:
        if self._wanted is None:
            return choose_workers(self._fetch, jobs, ahead=self._target.streams)
        if self._wanted == 0:
            return Workers(0, "none", "nobody was asked for")
        return Workers(self._wanted, "process" if self._fetch.lends else "thread", "asked for")
