# SPDX-License-Identifier: Apache-2.0
"""Tiles on several cores.

torch splits every single operation among its threads and lets them wait for each other after it. Tiles are small, so
that happens thousands of times, and if another process holds one of the cores, each of them can cost that process's
time slice (measured on two cores with other work on them: fifty times slower). Here each thread computes whole tiles by
itself instead: nobody waits, and the result cannot depend on the number of threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

_here = threading.local()
_MOST = 4  # threads: between operations they share one interpreter, and more of them only wait for it


@contextmanager
def one_thread() -> Iterator[int]:
    """torch computes in the calling thread only. Gives the number of threads it had, and gives them back in the end."""
    known: int | None = getattr(_here, "count", None)
    if known is not None:
        yield known
        return
    _here.count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield _here.count
    finally:
        torch.set_num_threads(_here.count)
        del _here.count


def each(work: Callable[..., None], items: Iterable[tuple[Any, ...]], device: torch.device) -> None:
    """Call `work` with every item; on a CPU in several threads if torch has them, elsewhere one after the other."""
    todo = list(items)
    with one_thread() as count:
        if device.type != "cpu" or count == 1 or len(todo) < 2:
            for item in todo:
                work(*item)
            return
        futures = [_pool(min(count, _MOST)).submit(work, *item) for item in todo]
        try:
            for future in futures:
                future.result()
        finally:  # after an error nothing may go on writing
            for future in futures:
                future.cancel()
            wait(futures)


@cache
def _pool(count: int) -> ThreadPoolExecutor:
    """Threads that stay: starting some for every weight costs more than a small weight."""
    return ThreadPoolExecutor(count, "fewbit", initializer=torch.set_num_threads, initargs=(1,))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not come along
