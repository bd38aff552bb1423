# SPDX-License-Identifier: Apache-2.0
"""`Loader`: batches on a device, one epoch after the other, from where one was."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Literal

from fewbit.data.collate import BATCH_SIZE
from fewbit.data.dataset import Dataset
from fewbit.data.devices._choice import Target, choose_device
from fewbit.data.keys import is_whole
from fewbit.data.loader_report import LoaderReport
from fewbit.data.loaders.ahead import Processes, by_reader, by_threads
from fewbit.data.loaders.fetching import Fetch, Fetched, Job
from fewbit.data.loaders.sharing import find_share
from fewbit.data.loaders.transfer import on_device
from fewbit.data.loaders.workers import Workers, choose_workers
from fewbit.data.sampling_order import SamplingOrder
from fewbit.data.steps._held import hold
from fewbit.data.steps.length_grouping import order_of
from fewbit.errors import UsageError


class Loader:
    """Batches on a device. Going through it once is an epoch; the next time is the next epoch, in another order.

    Args:
        dataset: the samples.
        collator: makes a batch of a list of samples.
        target: where batches go, from `choose_device`, or a word for it.
        batch_size: samples of a batch, of each process; the collator's if left out.
        seed: of the shuffle.
        shuffle: whether each epoch has an order of its own.
        drop_last: whether a last batch with fewer samples is left out.
        workers: how many threads or processes prepare batches; measured if left out.
        prefetch: how many batches they may be ahead; two for each of them if left out.
        rank: which process this is; found out if left out.
        world: how many processes there are.

    >>> from fewbit.data.collate import Collator
    >>> loader = Loader(Dataset([{"x": i} for i in range(5)], batched=False), Collator(batch_size=2), shuffle=False)
    >>> [batch["x"].tolist() for batch in loader], len(loader), loader.epoch
    ([[0, 1], [2, 3], [4]], 3, 1)
    """

    def __init__(
        self,
        dataset: Dataset,
        collator: Callable[[list[Any]], Any],
        target: Target | str = "cpu",
        *,
        batch_size: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        workers: int | None = None,
        prefetch: int | None = None,
        rank: int | None = None,
        world: int | None = None,
    ):
        if workers is not None and not is_whole(workers):
            raise UsageError(f"workers={workers!r}", expected="a whole number from 0 up, or none to measure")
        self.dataset, self.collator = dataset, collator
        self.target = target if isinstance(target, Target) else choose_device(target)
        self.batch_size: int = batch_size or getattr(collator, "batch_size", None) or BATCH_SIZE
        self.epoch = 0
        self.report = LoaderReport(self.target.name, self.target.why, notes=list(getattr(collator, "notes", ())))
        self._source = hold(dataset.source, dataset.record)
        self._seed, self._shuffle, self._drop_last = seed, shuffle, drop_last
        self._rank, self._world = find_share(rank, world)
        self._fetch = Fetch(self._source, collator, seed)
        self._wanted, self._prefetch = workers, prefetch
        self._workers: Workers | None = None
        self._processes: Processes | None = None
        self._position = 0
        self._resumed = False

    @property
    def device(self) -> Any:
        """What `tensor.to` takes for the device batches are on."""
        return self.target.device

    def __len__(self) -> int:
        """Batches of this epoch, the same for every process."""
        return len(self._order())

    def __iter__(self) -> Iterator[Any]:
        """The batches of an epoch: from the position that was loaded, else from the first."""
        if not self._resumed:
            self._position = 0
        self._resumed = False
        return self._read()

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next. The position in it is kept if it is the one that was loaded."""
        if epoch != self.epoch:
            self.epoch, self._position, self._resumed = epoch, 0, False

    def state_dict(self) -> dict[str, Any]:
        """Where reading is: what was handed out, not what was prepared. JSON values."""
        return {"epoch": self.epoch, "batch": self._position, "order": self._order().facts()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there: the next batch is the one that would have come next.

        Raises:
            UsageError: the state is of other data, or of another batch size, seed or order.
        """
        before = self.epoch
        self.epoch = int(state["epoch"])
        now = self._order().facts()
        differs = {name: (value, now.get(name)) for name, value in state["order"].items() if now.get(name) != value}
        if differs:
            self.epoch = before
            faults = "; ".join(f"{name} was {was} and is {here}" for name, (was, here) in differs.items())
            helps = "samples of a step are batch_size times processes; they may be shared otherwise, but not be others"
            raise UsageError(f"the position is of another order: {faults}", where="load_state_dict", try_=helps)
        self._position, self._resumed = int(state["batch"]), True

    def _order(self) -> SamplingOrder:
        self._fetch.begin(self.epoch)
        grouped = order_of(self._source) if self._shuffle else None
        return SamplingOrder(
            len(self._source),
            self.batch_size,
            self._seed,
            self._shuffle,
            self._drop_last,
            self._rank,
            self._world,
            None if grouped is None else grouped.order,
        )

    def _read(self) -> Iterator[Any]:
        asked = time.perf_counter()
        last = asked
        for fetched in on_device(self._fetched(), self.target):
            if fetched.error is not None:
                raise fetched.error
            self._position += 1
            now = time.perf_counter()
            self.report.add(fetched.tally, now - asked, now - last)
            last = now
            yield fetched.batch
            asked = time.perf_counter()
        self.epoch, self._position = self.epoch + 1, 0

    def _fetched(self) -> Iterator[Fetched]:
        order, epoch, start = self._order(), self.epoch, self._position

        def jobs() -> Iterator[Job]:
            for step, batch in enumerate(order.batches(epoch, start), start):
                yield Job(epoch, step, batch.tolist())

        if self._workers is None:
            self._workers = self._choose(list(islice(jobs(), 3)))
            self.report.workers, self.report.kind, self.report.why_workers = self._workers
        number, kind, _ = self._workers
        if kind == "process":
            self._processes = self._processes or Processes(self._fetch, number, self._prefetch)
            return self._processes.fetch(jobs())
        if kind == "thread":
            return by_threads(self._fetch, jobs(), number, self._prefetch)
        return by_reader(self._fetch, jobs())

    def _choose(self, jobs: list[Job]) -> Workers:
        if self._wanted is None:
            return choose_workers(self._fetch, jobs, ahead=self.target.streams)
        why = f"workers={self._wanted} was asked for"
        if self._wanted == 0:
            return Workers(0, "none", why)
        kind: Literal["thread", "process"] = "process" if self._fetch.lends else "thread"
        return Workers(self._wanted, kind, why)
