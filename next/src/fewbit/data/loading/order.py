# SPDX-License-Identifier: Apache-2.0
"""In which order samples are read: shuffled by epoch, in batches, shared by processes.

The order is global: each step takes the next `world * batch_size` samples, and every process its share of them. So two
processes with half the batch size see at each step what one process sees; no sample is repeated to fill a batch, and
the last step is smaller but never empty for any process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fewbit.data.text.roles import Ints
from fewbit.errors import DataError, plural


@dataclass(frozen=True)
class SamplingOrder:
    """The batches of one process.

    Args:
        count: samples.
        batch_size: samples per batch of each process.
        seed: of the shuffle.
        shuffle: a new order in every epoch.
        drop_last: leave out a last step that is not full.
        rank: number of this process.
        world: how many processes there are.
        lengths: of the samples, to group batches of like length.
        pool: batches that are grouped together.

    Raises:
        DataError: fewer samples than processes.

    >>> order = SamplingOrder(5, 2, shuffle=False)
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
    lengths: Ints | None = None
    pool: int = 100

    def __post_init__(self) -> None:
        if len(self) == 0 or self.count < self.world:
            least = self.step_size if self.drop_last else self.world
            raise DataError(
                f"{plural(self.count, 'sample')} are too few for {plural(self.world, 'process')}", code="no-samples",
                expected=f"at least {least}", hint="more data, a smaller batch_size, or drop_last=False",
            )  # fmt: skip

    @property
    def step_size(self) -> int:
        """Samples per step of all processes."""
        return self.batch_size * self.world

    def __len__(self) -> int:
        """Steps per epoch, the same for every process."""
        if self.drop_last or (self.batch_size == 1 and self.count >= self.world):
            return self.count // self.step_size  # batches of 1 cannot get smaller: some of the last are of 2
        return -(-self.count // self.step_size)

    def indices(self, epoch: int) -> Ints:
        """Every sample of an epoch, for all processes."""
        random = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        if self.lengths is not None:
            return group_lengths(self.lengths, self.step_size, self.pool, random)
        return random.permutation(self.count) if self.shuffle else np.arange(self.count)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Ints]:
        """The batches of this process, from a step on."""
        order, ends = self.indices(epoch), self._ends()
        for step in range(start, len(self)):
            samples = order[ends[step] : ends[step + 1]]
            first, last = (len(samples) * rank // self.world for rank in (self.rank, self.rank + 1))
            yield samples[first:last]

    def facts(self) -> dict[str, Any]:
        """What must be the same for a position in the order to mean the same."""
        return {
            "count": self.count,
            "step_size": self.step_size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "grouped": self.lengths is not None,
        }

    def _ends(self) -> list[int]:
        ends = [step * self.step_size for step in range(len(self) + 1)]
        if not self.drop_last:
            ends[-1] = self.count
        # A last step with fewer samples than processes takes some from the step before.
        if len(ends) > 2 and ends[-1] - ends[-2] < self.world:
            ends[-2] = ends[-1] - self.world
        return ends


def group_lengths(lengths: Ints, batch_size: int, pool: int, random: np.random.Generator) -> Ints:
    """An order in which each batch has samples of like length: shuffle, sort within pools, shuffle the batches.

    There are at least four pools: with one, every epoch would have the same batches. The samples that do not fill a
    batch come last and are taken from anywhere in the last pool, not always its longest.

    >>> order = group_lengths(np.array([1, 9, 2, 8, 1, 9, 2]), 2, 50, np.random.default_rng(0))
    >>> sorted(order.tolist())
    [0, 1, 2, 3, 4, 5, 6]
    """
    count = len(lengths)
    size = batch_size * min(pool, max(1, count // (4 * batch_size)))
    shuffled = random.permutation(count)
    order = shuffled[np.lexsort((lengths[shuffled], np.arange(count) // size))]
    remainder = count % batch_size
    last_pool = (count - 1) // size * size if count else 0
    start = last_pool + int(random.integers(count - last_pool - remainder + 1)) if remainder else count
    batches = np.delete(order, np.s_[start : start + remainder]).reshape(-1, batch_size)
    return np.concatenate([batches[random.permutation(len(batches))].reshape(-1), order[start : start + remainder]])
