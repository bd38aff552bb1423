# SPDX-License-Identifier: Apache-2.0
"""Latency of two models, measured in turns: what disturbs one disturbs the other too."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

_WARM_UP = 3
_MOST_SECONDS = 60.0
_LEAST_RUNS = 3


def measure_latency(
    original: Callable[[], Any],
    result: Callable[[], Any],
    *,
    runs: int = 50,
    how: str = "",
    seconds: float = _MOST_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Median milliseconds of one call of each, called in turns after a warm-up.

    Args:
        original: runs the original on one batch.
        result: runs the result on the same.
        runs: timed calls of each.
        how: what runs it, for the record: `ONNX Runtime 1.31, 1 thread`.
        seconds: limit of the measurement; slow models get fewer runs.
        clock: gives seconds.

    Returns:
        `original_ms`, `result_ms`, their quartiles, `runs`, and `how`.
    """
    times: tuple[list[float], list[float]] = ([], [])
    start = clock()
    for _ in range(_WARM_UP):
        original()
        result()
        if clock() - start > seconds / 10:
            break
    start = clock()
    while len(times[0]) < runs and (len(times[0]) < _LEAST_RUNS or clock() - start < seconds):
        # Each goes first in half of the runs: what the first leaves in the caches is the second's.
        order = (0, 1) if len(times[0]) % 2 else (1, 0)
        for index in order:
            begin = clock()
            (original, result)[index]()
            times[index].append(clock() - begin)
    count = len(times[0])
    facts: dict[str, Any] = {"runs": count, "how": f"median of {count}{', ' if how else ''}{how}"}
    for name, values in zip(("original", "result"), times):
        facts[f"{name}_ms"] = 1e3 * median(values)
        ends = quantiles(values, n=4) if count > 1 else values * 3
        facts[f"{name}_quartiles_ms"] = [1e3 * ends[0], 1e3 * ends[2]]
    return facts
