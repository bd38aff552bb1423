# SPDX-License-Identifier: Apache-2.0
"""Processes that do one job together, as `torchrun` starts them: one word of each before anything is exchanged.

Every exchange begins with a word from each worker, and nothing else is ever waited for. A worker that fails says so in
its place and goes; the others hear it in the exchange they are at, and end with its error. So nobody waits for one that
is gone, and who is alone has nobody to talk to and never starts anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fewbit.errors import FewbitError

T = TypeVar("T")
_Form = tuple[torch.dtype, tuple[int, ...], str]  # dtype, shape, kind of device


class WorkerStopped(FewbitError):
    """Another worker of the same job failed."""


@dataclass(frozen=True)
class _Fault:
    """The word of a worker that goes."""

    text: str


@dataclass(frozen=True)
class _Raised:
    """The word of the first worker that all have the error of."""

    error: FewbitError


class Workers:
    """The workers of a job, seen from one of them; without any, one that is alone.

    Args:
        rank: which one this is; the first, 0, is the one that writes.
        count: how many there are.
        group: what their words go through, on the CPU.

    >>> alone = Workers()
    >>> alone.is_first, alone.say("here"), alone.first(lambda: 7)
    (True, ['here'], 7)
    """

    def __init__(self, rank: int = 0, count: int = 1, group: Any = None):
        self.rank, self.count, self._group = rank, count, group
        self._talking = False

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    def say(self, word: Any = None) -> list[Any]:
        """Say a word, and hear that of each, in their order; the first thing of every exchange.

        Raises:
            WorkerStopped: one of them failed.
        """
        if self.count == 1:
            return [word]
        words: list[Any] = [None] * self.count
        with self._exchange():
            dist.all_gather_object(words, word, group=self._group)
        faults = [(rank, each) for rank, each in enumerate(words) if isinstance(each, _Fault)]
        if faults and not isinstance(word, _Fault):
            rank, fault = faults[0]
            raise WorkerStopped(f"worker {rank} of {self.count} stopped: {fault.text}")
        return words

    def first(self, make: Callable[[], T]) -> T:
        """What the first worker makes, or the error it makes, for all of them."""
        if self.count == 1:
            return make()
        made: Any = None
        if self.is_first:
            try:
                made = make()
            except FewbitError as error:
                made = _Raised(error)
        made = self.say(made)[0]
        if isinstance(made, _Raised):
            raise made.error
        found: T = made
        return found

    def handed(self, tensors: Mapping[str, Tensor] | None, *, giver: int, taker: int) -> dict[str, Tensor]:
        """Tensors of one worker for another, or for all.

        Args:
            tensors: the giver's; of no meaning for others.
            giver: who has them.
            taker: who gets them, or -1 for all.

        Returns:
            The tensors for who gets them, on the kind of device they were on; nothing for others.
        """
        given = dict(tensors or {}) if self.rank == giver else {}
        words = self.say({name: (x.dtype, tuple(x.shape), x.device.type) for name, x in given.items()})
        forms: dict[str, _Form] = words[giver]
        if self.count == 1 or giver == taker:
            return given
        if self.rank not in (giver, taker) and taker >= 0:
            return {}
        with self._exchange():
            return {name: self._hand(given.get(name), form, giver, taker) for name, form in forms.items()}

    @contextmanager
    def together(self) -> Iterator[None]:
        """Within the block a worker that fails lets the others know."""
        try:
            yield
        except WorkerStopped:
            raise
        except BaseException as error:
            if self.count > 1 and not self._talking:
                with suppress(WorkerStopped):  # the fault itself is what matters
                    self.say(_Fault(f"{type(error).__name__}: {error}"))
            raise

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        """An exchange that breaks leaves nobody to talk to."""
        self._talking = True
        try:
            yield
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise WorkerStopped(f"another worker of {self.count} is gone, without a word: {reason}") from error
        self._talking = False

    def _hand(self, x: Tensor | None, form: _Form, giver: int, taker: int) -> Tensor:
        dtype, shape, kind = form
        direct = kind == "cuda" and "cuda:nccl" in dist.get_backend_config()
        group = None if direct else self._group
        wire = torch.empty(shape, dtype=dtype, device=kind if direct else "cpu") if x is None else x.contiguous()
        wire = wire if direct else wire.cpu()
        if not wire.numel():
            return wire
        flat = wire.reshape(-1).view(torch.uint8)  # bytes: not every type of ours is one that is sent
        if taker < 0:
            dist.broadcast(flat, giver, group=group)
        elif self.rank == giver:
            dist.send(flat, taker, group=group)
        else:
            dist.recv(flat, giver, group=group)
        return wire.to(kind) if x is None else x
