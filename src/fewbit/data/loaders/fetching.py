# SPDX-License-Identifier: Apache-2.0
"""One batch: reading its samples and putting them together, the same in whatever thread or process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fewbit.data.collate import Collator
from fewbit.data.loader_report import Tally, count
from fewbit.data.loaders.users_code import runs_users_code
from fewbit.data.randomness import Loan
from fewbit.data.source import Source
from fewbit.data.steps._epochs import begin_epoch
from fewbit.errors import FewbitError


class Job(NamedTuple):
    """Which batch.

    Args:
        epoch: from 0.
        step: in it, from 0.
        indices: of its samples.
    """

    epoch: int
    step: int
    indices: Sequence[int]


class Fetched(NamedTuple):
    """A batch and what is in it, or what went wrong."""

    batch: Any
    tally: Tally
    error: FewbitError | None = None


class Fetch:
    """Reads batches of a source. It can be pickled if the source and the collator can.

    Args:
        source: read in any order.
        collator: makes a batch of a list of samples.
        seed: of the random numbers that code of the user's draws; each batch has its own, whoever fetches it.

    Attributes:
        lends: whether there is such code, so that the global generators are private while a batch is made.
    """

    def __init__(self, source: Source, collator: Callable[[list[Any]], Any], seed: int):
        self.source, self.collator, self.seed = source, collator, seed
        self.lends = not isinstance(collator, Collator) or runs_users_code(source)
        self._epoch: int | None = None

    def begin(self, epoch: int) -> None:
        """Tell the source which epoch it is, once."""
        if epoch != self._epoch:
            begin_epoch(self.source, epoch)
            self._epoch = epoch

    def __call__(self, job: Job) -> Fetched:
        """The batch; an error of ours comes back as it is, so that its parts survive the way from another process."""
        self.begin(job.epoch)
        try:
            if not self.lends:
                return self._fetch(job)
            drawn = np.random.SeedSequence([self.seed, job.epoch, job.step]).generate_state(1)
            with Loan(int(drawn[0])).lend():
                return self._fetch(job)
        except FewbitError as error:
            return Fetched(None, Tally(0, 0, 0), error)

    def __getitem__(self, job: Job) -> Fetched:  # what a DataLoader of PyTorch asks
        return self(job)

    def _fetch(self, job: Job) -> Fetched:
        samples = [self.source.get(int(index)) for index in job.indices]
        if isinstance(self.collator, Collator):
            batch: Any = self.collator(samples, job.indices)
        else:
            batch = self.collator(samples)
        return Fetched(batch, count(samples, batch))
