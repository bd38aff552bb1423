# SPDX-License-Identifier: Apache-2.0
"""What a run reads, step by step: the same in every run, from any step on, whatever number of processes share it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
import torch

from fewbit.data.dataset import Dataset
from fewbit.data.devices._choice import choose_device
from fewbit.data.loaders.fetching import Fetch
from fewbit.data.randomness import Loan
from fewbit.data.sampling_order import SamplingOrder
from fewbit.data.steps._held import hold
from fewbit.data.steps.length_grouping import order_of
from fewbit.errors import DataError, FewbitError
from fewbit.tuning.calling import as_batch
from fewbit.tuning.digest import digest
from fewbit.tuning.fetching import Fetching, PartJob
from fewbit.tuning.unfit_samples import Unfit

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Part:
    """What one process runs at a time.

    Args:
        batch: inputs and answers.
        items: the numbers of the samples in it, or of the batch; `Feed.name` says them in words.
        last: whether it is the process's last of its step.
        counts: whether anything is learned from it; a process for which a step has no part left runs one that does not
            count, because the others wait for it.
    """

    batch: dict[str, Any]
    items: tuple[int, ...]
    last: bool
    counts: bool = True


@dataclass(frozen=True)
class Sharing:
    """How a step is cut.

    Args:
        batch_size: samples that a process runs at a time.
        accumulation: batches of a step.
        rank: which process this is.
        world: how many there are.
    """

    batch_size: int = 8
    accumulation: int = 1
    rank: int = 0
    world: int = 1


class Feed(Protocol):
    """What a run reads."""

    @property
    def cuts(self) -> bool:
        """Whether batches are cut here, and not made by somebody else."""

    @property
    def steps(self) -> int | None:
        """Steps of an epoch; none if only reading would tell."""

    def epoch(self, number: int, start: int = 0) -> Iterator[Part]:
        """The parts of an epoch for this process, from a step of it on."""

    def fingerprint(self) -> str:
        """What it is, told by its content: another one means other data."""

    def name(self, items: Sequence[int]) -> str:
        """The items of a part, in words."""


class SampleFeed:
    """Samples that can be read in any order.

    What a batch holds depends on the seed, the epoch and its place in it alone, whoever reads it and whatever was read
    before; code that draws random numbers while a sample is made included.

    Args:
        dataset: samples.
        collate: makes a batch of several.
        sharing: how steps are cut.
        device: where batches go.
        seed: of the order, and of everything that is drawn.
        shuffle: another order each epoch.
        workers: threads or processes that prepare batches; measured if none.
    """

    cuts = True

    def __init__(
        self,
        dataset: Dataset,
        collate: Collate,
        sharing: Sharing,
        *,
        device: torch.device | str = "cpu",
        seed: int = 0,
        shuffle: bool = True,
        workers: int | None = 0,
    ):
        self._source = hold(dataset.source, dataset.record)
        self._sharing, self._seed, self._shuffle = sharing, abs(seed), shuffle
        self._fetch = Fetch(self._source, collate, abs(seed))
        self._fetched = Fetching(self._fetch, choose_device(device), workers)
        if len(self._source) == 0:
            raise DataError("there is no sample", code="no-samples", expected="at least one")

    @property
    def steps(self) -> int:
        """Steps of an epoch; the last may have fewer samples."""
        return len(self._order())

    def epoch(self, number: int, start: int = 0) -> Iterator[Part]:
        """The parts of an epoch for this process, from a step of it on."""
        self._fetch.begin(number)
        try:
            for job, fetched in self._fetched(self._jobs(number, start)):
                yield Part(as_batch(fetched), tuple(job.indices), job.last, job.counts)
        except Unfit as error:
            raise error.at(self.name(error.rows)) from error

    def fingerprint(self) -> str:
        """The number of samples, and 32 of them."""
        self._fetch.begin(0)
        count = len(self._source)
        chosen = sorted({round(place) for place in np.linspace(0, count - 1, min(32, count))})
        with Loan(self._seed).lend():
            return digest([count, *(self._source.get(index) for index in chosen)])

    def name(self, items: Sequence[int]) -> str:
        """Samples by their numbers, and the first by its place."""
        place = self._source.place(items[0]) if items else None
        shown = f"{', '.join(map(str, items[:16]))}{' …' if len(items) > 16 else ''}"
        more = " …" if len(items) > 1 else ""
        return f"sample{'s' if more else ''} {shown}{f' ({place}{more})' if place is not None and place.path else ''}"

    def _order(self) -> SamplingOrder:
        grouped = order_of(self._source) if self._shuffle else None
        together = self._sharing.batch_size * self._sharing.accumulation
        ordering = None if grouped is None else grouped.order
        return SamplingOrder(len(self._source), together, self._seed, self._shuffle, ordering=ordering)

    def _jobs(self, epoch: int, start: int) -> Iterator[PartJob]:
        rank, world, size = self._sharing.rank, self._sharing.world, self._sharing.batch_size
        order = self._order()
        for step, samples in enumerate(order.batches(epoch, start), start):
            own = samples[rank::world].tolist()
            first = step * order.together + rank  # a number that no other part of the epoch has
            for at in range(0, len(own), size):
                yield PartJob(epoch, first + at * world, own[at : at + size], at + size >= len(own))
            if not own:
                yield PartJob(epoch, first, samples[:1].tolist(), True, counts=False)


class BatchFeed:
    """Batches that somebody else makes, in their order: a torch DataLoader, a dataset of items.

    Processes take turns. A step that was done before is read again and passed over.

    Args:
        batches: can be gone through again and again.
        sharing: how steps are cut; the batch size is the maker's.
        seed: of what is drawn while batches are made, another one each epoch.
    """

    cuts = False

    def __init__(self, batches: Iterable[Any], sharing: Sharing, *, seed: int = 0):
        self._batches, self._sharing, self._seed = batches, sharing, seed

    @property
    def steps(self) -> int | None:
        """Steps of an epoch, if the maker knows how many batches it makes."""
        try:
            return -(-len(self._batches) // self._sharing.accumulation)  # type: ignore[arg-type]
        except TypeError:
            return None

    def epoch(self, number: int, start: int = 0) -> Iterator[Part]:
        """The parts of an epoch for this process, from a step of it on."""
        group: list[tuple[int, Any]] = []
        for place, batch in enumerate(self._epoch(number)):
            if place < start * self._sharing.accumulation:
                continue
            group.append((place, batch))
            if len(group) == self._sharing.accumulation:
                yield from self._dealt(group)
                group = []
        yield from self._dealt(group)

    def fingerprint(self) -> str:
        """How many steps there are, and the first batch."""
        return digest([self.steps, next(self._epoch(0), None)])

    def name(self, items: Sequence[int]) -> str:
        """Batches by their numbers in the epoch."""
        return f"batch {', '.join(map(str, items))}"

    def _dealt(self, group: Sequence[tuple[int, Any]]) -> Iterator[Part]:
        own = group[self._sharing.rank :: self._sharing.world]
        for place, batch in own:
            yield Part(as_batch(batch), (place,), place == own[-1][0])
        if group and not own:
            yield Part(as_batch(group[0][1]), (group[0][0],), True, counts=False)

    def _epoch(self, number: int) -> Iterator[Any]:
        sampler = getattr(self._batches, "sampler", None)
        for each in (sampler, getattr(self._batches, "dataset", None)):
            if callable(getattr(each, "set_epoch", None)):
                each.set_epoch(number)  # type: ignore[union-attr]
        owned = [getattr(self._batches, "generator", None), getattr(sampler, "generator", None)]
        generators = list({id(each): each for each in owned if each is not None}.values())
        loan = Loan(_mixed(self._seed, number), generators)
        with loan.lend():
            for each in generators:  # its own seed says which orders there are, the epoch which of them
                each.manual_seed(_mixed(each.initial_seed(), number))
        yield from loan.iterate(lambda: self._batches, _failed)


def _mixed(*numbers: int) -> int:
    """One seed made of several numbers."""
    return int.from_bytes(blake2b(repr(numbers).encode(), digest_size=4).digest(), "big")


def _failed(index: int, error: Exception) -> FewbitError:
    return DataError(
        f"the data raised {type(error).__name__}: {str(error)[:300]}", code="data-raised", where=f"batch {index}"
    )
