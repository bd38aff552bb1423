# SPDX-License-Identifier: Apache-2.0
"""Batches in their order, prepared by the reader, by threads or by processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from fewbit.data.loaders.fetching import Fetch, Fetched, Job

_EACH = 2
"""Batches that each helper may be ahead."""


def by_reader(fetch: Fetch, jobs: Iterable[Job]) -> Iterator[Fetched]:
    """Each when it is asked for."""
    return map(fetch, jobs)


def by_threads(fetch: Fetch, jobs: Iterable[Job], count: int, prefetch: int | None = None) -> Iterator[Fetched]:
    """Some ahead; those that nobody asks for any more are dropped."""
    coming = iter(jobs)
    pool = ThreadPoolExecutor(count, thread_name_prefix="fewbit-loader")
    waiting: deque[Future[Fetched]] = deque()
    try:
        for job in islice(coming, max(1, prefetch or _EACH * count)):
            waiting.append(pool.submit(fetch, job))
        while waiting:
            fetched = waiting.popleft().result()
            for job in islice(coming, 1):
                waiting.append(pool.submit(fetch, job))
            yield fetched
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class Processes:
    """Processes that stay from epoch to epoch; they are new ones, never copies of this one with its threads and files.

    Args:
        fetch: sent to each.
        count: how many.
        prefetch: how many batches they may be ahead, together.
    """

    def __init__(self, fetch: Fetch, count: int, prefetch: int | None = None):
        self._jobs: Iterable[Job] = ()
        self._loader: DataLoader[Any] = DataLoader(
            fetch,  # type: ignore[arg-type]
            batch_size=None,
            sampler=_Now(self),
            num_workers=count,
            collate_fn=_as_it_is,
            prefetch_factor=max(1, -(-(prefetch or _EACH * count) // count)),
            persistent_workers=True,
            multiprocessing_context="spawn",
            generator=torch.Generator().manual_seed(0),  # else it draws from the global one
        )

    def fetch(self, jobs: Iterable[Job]) -> Iterator[Fetched]:
        """Some ahead."""
        self._jobs = jobs
        return iter(self._loader)


class _Now:
    """The jobs of the moment, as PyTorch wants them."""

    def __init__(self, owner: Processes):
        self._owner = owner

    def __iter__(self) -> Iterator[Job]:
        return iter(self._owner._jobs)


def _as_it_is(fetched: Any) -> Any:
    return fetched
