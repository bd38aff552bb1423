# SPDX-License-Identifier: Apache-2.0
"""Work in several threads, some way ahead of whoever takes the results, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, Self, TypeVar

import torch

T = TypeVar("T")

_AHEAD = 8
"""Results, for each thread, that may wait to be taken: as much as is done while a large tensor is written."""


class Ahead(Generic[T]):
    """Results of tasks, one after the other. Each task has a thread to itself, in which torch computes alone.

    Args:
        tasks: in the order their results are taken.
        threads: how many run at a time.

    >>> with Ahead([lambda: 1, lambda: 2], threads=2) as results:
    ...     results.take() + results.take()
    3
    """

    def __init__(self, tasks: Iterable[Callable[[], T]], threads: int):
        self._tasks, self._most = iter(tasks), _AHEAD * threads
        self._pool = ThreadPoolExecutor(threads, "fewbit", initializer=torch.set_num_threads, initargs=(1,))
        self._waiting: deque[Future[T]] = deque()

    def take(self) -> T:
        """The next result; raises what its task raised."""
        while len(self._waiting) < self._most and (task := next(self._tasks, None)) is not None:
            self._waiting.append(self._pool.submit(task))
        return self._waiting.popleft().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
