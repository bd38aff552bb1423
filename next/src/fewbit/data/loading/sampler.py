# SPDX-License-Identifier: Apache-2.0
"""The batch sampler: which samples are read at which step, in which process.

The permutation of an epoch depends on seed and epoch only, and is common to all processes. A step takes the next
`batch_size` samples for every process, so two processes with half the batch size read at each step what one would read.
No sample is read twice in an epoch, and no process is ever without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fewbit.data.text.roles import Ints
from fewbit.errors import DataError, UsageError, plural
from fewbit.rng import generator


class BatchSampler:
    """The batches of one process, epoch after epoch; knows the next one.

    Args:
        count: samples of the dataset.
        batch_size: samples per batch of each process.
        seed: of the permutations.
        shuffle: a new permutation in every epoch.
        drop_last: leave out a last step that is not full.
        rank: number of this process.
        world: how many processes there are.
        lengths: of the samples, to put samples of like length into a batch.
        pool: batches that are grouped together.

    Raises:
        DataError: fewer samples than processes.

    >>> sampler = BatchSampler(5, 2, shuffle=False)
    >>> [batch.tolist() for batch in sampler.batches()]
    [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        count: int,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int = 0,
        world: int = 1,
        lengths: Ints | None = None,
        pool: int = 100,
    ):
        self.epoch = self.batch = 0
        self.seed, self._shuffle, self._rank, self._world = seed, shuffle, rank, world
        self._lengths, self._pool, self._size = lengths, pool, batch_size * world
        full, rest = divmod(count, self._size)
        ends = [(step + 1) * self._size for step in range(full)]
        if rest and not drop_last:
            if rest >= world or not full:
                ends.append(count)
            elif batch_size == 1:  # some processes get a second sample in the last step
                ends[-1] = count
            else:  # the last two steps share their samples evenly
                ends[-1:] = [count - (self._size + rest) // 2, count]
        if not ends or count < world:
            raise DataError(
                f"{plural(count, 'sample')} are too few for {plural(world, 'process')}", code="no-samples",
                expected=f"at least {self._size if drop_last else world}",
                hint="more data, a smaller batch_size, or drop_last=False",
            )  # fmt: skip
        self._ends = ends
        self._identity = {
            "count": count, "samples per step": self._size, "seed": seed, "shuffle": shuffle, "drop_last": drop_last,
            "length_grouping": lengths is not None,
        }  # fmt: skip

    def __len__(self) -> int:
        """Batches per epoch, the same for every process."""
        return len(self._ends)

    def permutation(self, epoch: int) -> Ints:
        """Every sample of an epoch, for all processes."""
        random = generator(self.seed, epoch)
        count = int(self._identity["count"])
        if self._lengths is not None:
            return group_lengths(self._lengths, self._size, self._pool, random)
        return random.permutation(count) if self._shuffle else np.arange(count)

    def batches(self) -> list[Ints]:
        """The batches of this process in the current epoch."""
        steps = np.split(self.permutation(self.epoch)[: self._ends[-1]], self._ends[:-1])
        return [np.array_split(step, self._world)[self._rank] for step in steps] if self._world > 1 else steps

    def advance(self) -> None:
        """Count a batch that was handed out; after the last one the next epoch begins."""
        self.batch += 1
        if self.batch == len(self):
            self.epoch, self.batch = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Epoch and number of the next batch, and what the order depends on."""
        return {"epoch": self.epoch, "batch": self.batch, "order": dict(self._identity)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position saved by `state_dict`.

        Raises:
            UsageError: the state belongs to another order of samples.
        """
        differences = [
            f"{name} was {state['order'].get(name)} and is {value}"
            for name, value in self._identity.items()
            if state["order"].get(name) != value
        ]
        if differences:
            raise UsageError(
                f"the state belongs to another order: {'; '.join(differences)}", code="state-mismatch",
                expected="the same data, seed and batch_size", hint="load it into a loader of the same configuration",
            )  # fmt: skip
        self.epoch, self.batch = int(state["epoch"]), int(state["batch"])


def group_lengths(lengths: Ints, batch_size: int, pool: int, random: np.random.Generator) -> Ints:
    """A permutation in which each batch has samples of like length: shuffle, sort within pools, shuffle the batches.

    There are at least four pools: with one, every epoch would have the same batches. The samples that do not fill a
    batch come last; chance decides which, so that they are not always the longest.

    >>> order = group_lengths(np.array([1, 9, 2, 8, 1, 9, 2]), 2, 50, np.random.default_rng(0))
    >>> sorted(order.tolist())
    [0, 1, 2, 3, 4, 5, 6]
    """
    count, shuffled = len(lengths), random.permutation(len(lengths))
    rest = shuffled[count - count % batch_size :]  # a random choice, since the order is random
    pool_size = batch_size * min(pool, max(1, count // (4 * batch_size)))
    full = shuffled[: len(shuffled) - len(rest)]
    pools = [full[start : start + pool_size] for start in range(0, len(full), pool_size)]
    batches = [part[np.argsort(lengths[part], kind="stable")].reshape(-1, batch_size) for part in pools]
    stacked = np.concatenate(batches) if batches else np.empty((0, batch_size), np.int64)
    return np.concatenate([stacked[random.permutation(len(stacked))].reshape(-1), rest])
