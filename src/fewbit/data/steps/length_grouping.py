# SPDX-License-Identifier: Apache-2.0
"""Batches of samples of like length, so that little is padded; which lengths come when is still random.

The samples stay as they are. What a loader reads is the order: a source with `order(epoch, batch_size)` is `Ordered`,
and every `batch_size` indices from the start are a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fewbit.data.keys import Key, is_count
from fewbit.data.source import Source, known_length
from fewbit.data.steps._base import Context
from fewbit.data.steps._held import hold
from fewbit.data.steps._lengths import lengths_of
from fewbit.data.views import Picked, View

Indices = NDArray[np.int64]

AFTER = ("tokenization", "truncation", "masking", "packing", "filtering", "sampling", "mixing", "augmentation")
NEEDS: tuple[str, ...] = ()
KEYS = (
    Key(
        "grouping_pool",
        100,
        "a whole number from 1 up",
        is_count,
        "of the samples of how many batches, drawn at random, batches of like length are made; 1 groups nothing",
    ),
)


@runtime_checkable
class Ordered(Protocol):
    """A source that knows in which order it is best read."""

    def order(self, epoch: int, batch_size: int | None = None) -> Indices:
        """Every index once, so that each `batch_size` of them make a batch."""


def order_of(source: Source) -> Ordered | None:
    """What knows the order of a source: itself, or what it stands on, if that has the same samples in order."""
    while not isinstance(source, Ordered):
        if not isinstance(source, View) or isinstance(source, Picked):
            return None
        if known_length(source) != known_length(source.inner):
            return None
        source = source.inner
    return source


def apply(source: Source, context: Context) -> Source:
    """The same samples, and an order for them."""
    return Grouped(hold(source, context.record), context)


class Grouped(View):
    """A source and the order in which like lengths meet.

    Args:
        inner: read in any order.
        context: `batch_size`, `grouping_pool` and the seed; its record is told what is gained.
    """

    def __init__(self, inner: Source, context: Context):
        super().__init__(inner)
        self._options, self._seed, self._record = context.options, context.seed, context.record
        self._lengths: Indices | None = None
        self._told = False

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.inner)

    def get(self, index: int) -> Any:
        """The sample at an index, as in the source beneath."""
        return self.inner.get(index)

    def lengths(self) -> Indices:
        """Of each sample; read once."""
        if self._lengths is None:
            self._lengths = lengths_of(self.inner)
        return self._lengths

    def replan(self) -> None:
        """Look at the lengths again: the samples have changed."""
        self._lengths = None

    def order(self, epoch: int, batch_size: int | None = None) -> Indices:
        """Every index once; another order in each epoch, the same in each run.

        Args:
            epoch: from 0.
            batch_size: of all ranks together; that of the configuration if left out.
        """
        size = batch_size or self._options.get("batch_size") or 1
        pool = self._options.get("grouping_pool", 100)
        found = group(self.lengths(), size, pool, np.random.Generator(np.random.PCG64([self._seed, epoch])))
        if not self._told:
            self._told = True
            plain = np.random.Generator(np.random.PCG64(self._seed)).permutation(len(found))
            before, after = (padding_share(self.lengths()[order], size) for order in (plain, found))
            reason = f"padding is {after:.1%} of a batch of {size}; without grouping it would be {before:.1%}"
            self._record.note("length-grouped", reason, padding=after, ungrouped=before)
        return found


def group(lengths: Indices, batch_size: int, pool: int, rng: np.random.Generator) -> Indices:
    """Shuffle, sort each pool of batches by length, cut it into batches, shuffle those.

    There are four pools or more, however few samples there are: of a single one each epoch would make the same batches.
    The last batch is the only one that may be smaller.

    >>> order = group(np.array([1, 9, 2, 8, 1, 9, 2]), 2, 50, np.random.default_rng(0))
    >>> sorted(order.tolist()), len(order)
    ([0, 1, 2, 3, 4, 5, 6], 7)
    """
    count = len(lengths)
    pool = batch_size * min(pool, max(1, count // (4 * batch_size)))
    place = np.arange(count) // pool
    shuffled = np.argsort(rng.random(count), kind="stable")
    # Pools one after the other, each by length; equal lengths stay in their random order.
    ordered = shuffled[np.lexsort((lengths[shuffled], place))]
    whole = count - count % batch_size
    # The rest is taken anywhere from the last pool, not always its longest.
    rest = _rest(ordered, count - whole, pool, rng)
    kept = ordered[~np.isin(ordered, rest)] if len(rest) else ordered
    batches = kept.reshape(-1, batch_size)
    return np.concatenate([batches[np.argsort(rng.random(len(batches)), kind="stable")].reshape(-1), rest])


def padding_share(lengths: Indices, batch_size: int) -> float:
    """What share of all places is padding if each batch is as long as its longest sample.

    >>> padding_share(np.array([4, 2, 3, 3]), 2)
    0.1428571428571429
    """
    if not len(lengths):
        return 0.0
    starts = np.arange(0, len(lengths), batch_size)
    sizes = np.diff([*starts, len(lengths)])
    places = int((np.maximum.reduceat(lengths, starts) * sizes).sum())
    return 1 - int(lengths.sum()) / places if places else 0.0


def _rest(ordered: Indices, count: int, pool: int, rng: np.random.Generator) -> Indices:
    """So many neighbours of the last pool."""
    first = (len(ordered) - 1) // pool * pool if len(ordered) else 0
    start = first + int(rng.random() * (len(ordered) - first - count + 1))
    return ordered[start : start + count]
