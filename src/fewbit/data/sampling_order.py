# SPDX-License-Identifier: Apache-2.0
"""In which order samples are read: shuffled by epoch, cut into batches, and shared among processes.

The order is that of all processes together: each step takes the next `world * batch_size` samples and every process a
part of them. So two processes with half the batch size see at each step what one sees, every sample is read once an
epoch, and nothing is repeated to fill up: the last step is smaller, but never empty for any process. (With batches of
one sample there is nothing to make a last step of; some processes then have two in theirs.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import DataError

Indices = NDArray[np.int64]
Ordering = Callable[[int, int], Indices]
"""From an epoch and the number of samples of a step to all indices."""


@dataclass(frozen=True)
class SamplingOrder:
    """The batches of one process.

    Args:
        count: how many samples there are.
        batch_size: samples of a batch, of each process.
        seed: of the shuffle.
        shuffle: whether each epoch has an order of its own; else it is that of the data.
        drop_last: whether a last step with fewer samples is left out.
        rank: which process this is.
        world: how many there are.
        ordering: gives the order itself, in the place of a shuffle; such as one that groups lengths.

    Raises:
        DataError: fewer samples than processes.

    >>> order = SamplingOrder(count=5, batch_size=2, shuffle=False)
    >>> [batch.tolist() for batch in order.batches(epoch=0)]
    [[0, 1], [2, 3], [4]]
    """

    count: int
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    rank: int = 0
    world: int = 1
    ordering: Ordering | None = None

    def __post_init__(self) -> None:
        if len(self) == 0 or self.count < self.world:
            least = self.together if self.drop_last else self.world
            raise DataError(
                f"{self.count} samples are too few for {self.world} process{'es' * (self.world > 1)}",
                code="no-samples",
                expected=f"{least} or more" + (f", a whole step of {self.together} (drop_last)" * self.drop_last),
                try_="more data, or drop_last=False" if self.drop_last else "more data, or fewer processes",
            )

    @property
    def together(self) -> int:
        """Samples of a step, of all processes."""
        return self.batch_size * self.world

    def __len__(self) -> int:
        """Steps of an epoch: the same for every process."""
        if self.drop_last or (self.batch_size == 1 and self.count >= self.world):
            return self.count // self.together
        return -(-self.count // self.together)

    def indices(self, epoch: int) -> Indices:
        """Every sample of an epoch, for all processes."""
        if self.ordering is not None:
            return self.ordering(epoch, self.together)
        if not self.shuffle:
            return np.arange(self.count)
        return np.random.Generator(np.random.PCG64([self.seed, epoch])).permutation(self.count)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Indices]:
        """The batches of this process, from a step on."""
        order = self.indices(epoch)
        ends = self._ends()
        for step in range(start, len(self)):
            together = order[ends[step] : ends[step + 1]]
            first, last = (len(together) * rank // self.world for rank in (self.rank, self.rank + 1))
            yield together[first:last]

    def facts(self) -> dict[str, Any]:
        """What has to be the same for a position to mean the same."""
        return {
            "count": self.count,
            "together": self.together,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "grouped": self.ordering is not None,
        }

    def _ends(self) -> list[int]:
        ends = [step * self.together for step in range(len(self) + 1)]
        if not self.drop_last:
            ends[-1] = self.count
        # A last step with fewer samples than processes takes some from the one before it.
        if len(ends) > 2 and ends[-1] - ends[-2] < self.world:
            ends[-2] = ends[-1] - self.world
        return ends
