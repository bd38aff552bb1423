# SPDX-License-Identifier: Apache-2.0
"""How long one inference takes, several models side by side."""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

from . import Task, session

COUNTED = 3  # of each turn, after one that is not


def medians(task: Task, paths: dict[str, str], seconds: float) -> dict[str, Any]:
    """The median seconds of each model, in turns of changing order, for about that long in all.

    Args:
        task: whose calibration set's first sample is fed.
        paths: the models by name.
        seconds: how long to measure; every model gets at least five turns.
    """
    feed = task.calibration[0]
    runs = {name: session(path, threads=2) for name, path in paths.items()}
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run(feed)
    order, end, turns = list(runs), time.perf_counter() + seconds, 0
    while turns < 5 or time.perf_counter() < end:
        random.shuffle(order)
        turns += 1
        for name in order:
            runs[name](feed)
            for _ in range(COUNTED):
                start = time.perf_counter()
                runs[name](feed)
                taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in taken.items()}
