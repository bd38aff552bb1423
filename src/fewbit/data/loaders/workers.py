# SPDX-License-Identifier: Apache-2.0
"""Who prepares batches: the reader itself, threads or processes; found out by doing it a few times."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Literal, NamedTuple

from fewbit.data.loaders.fetching import Fetch, Job

_CHEAP = 0.005
"""Seconds for a batch below which nobody has to help."""
_STEP = 0.02
"""Seconds in which a batch should be there, with all helpers together."""
_MOST = 8
_FASTER = 0.75
"""What two threads may need of the time of one, to be worth it."""


class Workers(NamedTuple):
    """A choice.

    Args:
        number: how many.
        kind: of what.
        why: in words.
    """

    number: int
    kind: Literal["none", "thread", "process"]
    why: str


def choose_workers(fetch: Fetch, jobs: list[Job], ahead: bool) -> Workers:
    """Time a few batches, and choose.

    Args:
        fetch: what is to be done.
        jobs: up to four batches that are going to be read anyway.
        ahead: whether preparing the next batch beside the reader's work pays even if it is cheap: on an accelerator.
    """
    if len(jobs) < 2:
        return Workers(0, "none", "there is one batch")
    threads = not fetch.lends
    fetch(jobs[0])  # opens files, fills caches
    alone = min(_timed(fetch, job) for job in jobs[1:3])
    told = f"a batch takes {1000 * alone:.1f} ms"
    if alone < _CHEAP:
        if ahead and threads:
            return Workers(1, "thread", f"{told}, while the device works")
        return Workers(0, "none", told)
    wanted = min(max(1, cores() - 1), _MOST, -(-alone // _STEP))
    if threads and _in_threads(fetch, jobs[1:3]) < _FASTER:
        return Workers(int(wanted), "thread", f"{told}, and two threads are faster than one")
    reason = no_process(fetch)
    if reason is None and cores() > 1:
        return Workers(int(wanted), "process", f"{told}, and threads do not help")
    return Workers(0, "none", f"{told}; no helpers, as {reason or 'there is one core'}")


def no_process(fetch: Fetch) -> str | None:
    """Why processes cannot prepare batches; none if they can."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is not None and Path(main).is_file() and "__name__" not in Path(main).read_text("utf-8", "replace"):
        return f"{Path(main).name} has no `if __name__ == '__main__':`, without which a new process would run it again"
    try:
        ForkingPickler.dumps(fetch)
    except Exception as error:  # whatever an object raises that cannot be pickled
        return f"the data cannot be sent to a process ({type(error).__name__}: {error})"
    return None


def cores() -> int:
    """Cores for this process, those of the machine shared among the processes `torchrun` starts on it."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, here // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def _timed(fetch: Fetch, job: Job) -> float:
    start = time.perf_counter()
    fetch(job)
    return time.perf_counter() - start


def _in_threads(fetch: Fetch, jobs: list[Job]) -> float:
    """What two threads need for two batches, as a share of what one needs."""
    alone = sum(_timed(fetch, job) for job in jobs)
    with ThreadPoolExecutor(2) as pool:
        start = time.perf_counter()
        list(pool.map(fetch, jobs))
        return (time.perf_counter() - start) / alone
