# SPDX-License-Identifier: Apache-2.0
"""How processes become workers of one job: those that `torchrun` started meet when there is something to share."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from datetime import timedelta
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist

from fewbit.engine.workers import Workers
from fewbit.errors import UsageError

T = TypeVar("T")
P = ParamSpec("P")

_STARTED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells each process
_MEETING = timedelta(minutes=10)  # until all have opened the model
_WAITING = timedelta(hours=6)  # while one writes the result; a worker whose process ends is noticed at once


def is_first() -> bool:
    """Whether this process is the one that writes and prints; asks nobody."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    return not _is_started() or os.environ["RANK"] == "0"


def by_the_first(function: Callable[P, T]) -> Callable[P, T]:
    """A function that of several workers the first alone carries out, when all have called it; the others wait."""

    @wraps(function)
    def carried_out(*args: P.args, **kwargs: P.kwargs) -> T:
        workers = joined()
        with workers.together():
            workers.say()
            return workers.first(lambda: function(*args, **kwargs))

    return carried_out


def joined() -> Workers:
    """The workers of this job: all processes that `torchrun` started, or that share the process group there is.

    Each of them has to make the same call.

    Raises:
        UsageError: not all of them came.
    """
    if not dist.is_available() or not (dist.is_initialized() or _is_started()):
        return Workers()
    try:
        if not dist.is_initialized():
            _start()
        return _met(dist.group.WORLD)
    except (RuntimeError, ValueError) as error:
        raise UsageError(
            f"the workers did not meet: {str(error).splitlines()[0]}",
            where="torch.distributed",
            expected="every process that torchrun started makes the same call",
        ) from error


def _is_started() -> bool:
    return all(name in os.environ for name in _STARTED) and int(os.environ["WORLD_SIZE"]) > 1


def _start() -> None:
    on_gpus = torch.cuda.is_available()
    if on_gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo", timeout=_MEETING)
    atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())


@cache
def _met(world: Any) -> Workers:
    """The workers of a process group, which all came."""
    if dist.get_world_size() == 1:
        return Workers()
    dist.new_group(backend="gloo", timeout=_MEETING)  # which fails where one does not come
    group = dist.new_group(backend="gloo", timeout=_WAITING)
    return Workers(dist.get_rank(), dist.get_world_size(), group)
