# SPDX-License-Identifier: Apache-2.0
"""Getting batches to a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fewbit.data.devices._choice import Target
from fewbit.data.loaders.fetching import Fetched
from fewbit.data.tree import flatten, map_leaves


def on_device(fetched: Iterator[Fetched], target: Target) -> Iterator[Fetched]:
    """The same batches, their tensors on the device.

    Where the device copies beside its work, the next batch is on its way while this one is used.
    """
    if target.streams:
        return _streamed(fetched, target.device)
    if str(target.device) == "cpu":
        return fetched
    return (each._replace(batch=_tensors(each.batch, lambda leaf: leaf.to(target.device))) for each in fetched)


def _streamed(fetched: Iterator[Fetched], device: torch.device) -> Iterator[Fetched]:
    beside: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    waiting: tuple[Fetched, torch.cuda.Event] | None = None
    for each in fetched:
        sent = _send(each, device, beside)
        if waiting is not None:
            yield _arrived(*waiting, device)
        waiting = sent
    if waiting is not None:
        yield _arrived(*waiting, device)


def _send(fetched: Fetched, device: torch.device, stream: torch.cuda.Stream) -> tuple[Fetched, torch.cuda.Event]:
    """Start copying. PyTorch keeps the pinned memory until the copy is done."""
    pinned = _tensors(fetched.batch, lambda leaf: leaf if leaf.is_pinned() else leaf.pin_memory())
    with torch.cuda.stream(stream):
        batch = _tensors(pinned, lambda leaf: leaf.to(device, non_blocking=True))
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(stream)
    return fetched._replace(batch=batch), done


def _arrived(fetched: Fetched, done: torch.cuda.Event, device: torch.device) -> Fetched:
    """Make what the reader is going to start wait for this copy, and for no later one."""
    reader = torch.cuda.current_stream(device)
    reader.wait_event(done)
    for _, leaf in flatten(fetched.batch):
        if isinstance(leaf, Tensor):
            leaf.record_stream(reader)  # its memory was taken on the other stream
    return fetched


def _tensors(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    return map_leaves(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, batch)
