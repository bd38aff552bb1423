# SPDX-License-Identifier: Apache-2.0
"""Parts of a source that are sources themselves: chosen elements, every n-th one, the first n samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fewbit.data.batch import count_samples, cut
from fewbit.data.describe import describe
from fewbit.data.randomness import Loan
from fewbit.data.sample import Place, Sample
from fewbit.data.source import Source, known_length
from fewbit.errors import DataError, FewbitError


class View(Source):
    """A source that stands on another and shares its facts and its record."""

    def __init__(self, inner: Source):
        self.inner = inner
        self.batched = inner.batched
        self.targets = inner.targets
        self.facts = inner.facts
        self.record = inner.record

    @property
    def random_access(self) -> bool:
        return self.inner.random_access

    @property
    def is_shuffled(self) -> bool:
        return self.inner.is_shuffled

    def place(self, index: int) -> Place:
        return self.inner.place(index)

    def number(self, index: int) -> int:
        return self.inner.number(index)


class Picked(View):
    """The elements at some indices, in that order. A stream gives them in its own order."""

    def __init__(self, inner: Source, indices: Sequence[int] | np.ndarray):
        super().__init__(inner)
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[Any]:
        if self.random_access:
            yield from super().__iter__()
            return
        wanted = set(map(int, self._indices))
        for index, element in enumerate(self.inner):
            if index in wanted:
                wanted.remove(index)
                yield element
            if not wanted:
                return

    def get(self, index: int) -> Any:
        return self.inner.get(int(self._indices[index]))

    def place(self, index: int) -> Place:
        return self.inner.place(int(self._indices[index]))

    def number(self, index: int) -> int:
        return self.inner.number(int(self._indices[index]))

    def labels(self) -> Sequence[int] | None:
        labels = self.inner.labels()
        return None if labels is None else [labels[int(index)] for index in self._indices]


class Shard(View):
    """Every `world`-th element from `rank` on: the shards are disjoint and together are everything."""

    def __init__(self, inner: Source, rank: int, world: int):
        super().__init__(inner)
        self._rank, self._world = rank, world

    def __len__(self) -> int:
        return len(range(self._rank, len(self.inner), self._world))

    def __iter__(self) -> Iterator[Any]:
        if self.random_access:
            yield from super().__iter__()
            return
        for index, element in enumerate(self.inner):
            if index % self._world == self._rank:
                yield element

    def get(self, index: int) -> Any:
        return self.inner.get(self._rank + index * self._world)

    def place(self, index: int) -> Place:
        return self.inner.place(self._rank + index * self._world)

    def number(self, index: int) -> int:
        return self.inner.number(self._rank + index * self._world)

    def labels(self) -> Sequence[int] | None:
        labels = self.inner.labels()
        return None if labels is None else labels[self._rank :: self._world]


class Head(View):
    """The first `samples` samples: whole items while they fit, the last one cut to size.

    Only this view has to open an item to count it; it reads one item at a time.
    """

    def __init__(self, inner: Source, samples: int):
        super().__init__(inner)
        self._samples = samples

    @property
    def random_access(self) -> bool:
        return not self.batched and self.inner.random_access

    def __len__(self) -> int:
        if self.batched:
            return super().__len__()
        return min(self._samples, len(self.inner))

    def __iter__(self) -> Iterator[Any]:
        left = self._samples
        if left <= 0:
            return
        for element in self.inner:
            holds = count_samples(element) if self.batched else 1
            yield element if holds <= left else cut(element, left)
            left -= holds
            if left <= 0:
                return

    def get(self, index: int) -> Any:
        return self.inner.get(index)

    def labels(self) -> Sequence[int] | None:
        labels = None if self.batched else self.inner.labels()
        return None if labels is None else labels[: self._samples]

    def sample_count(self) -> int | None:
        inner = self.inner.sample_count()
        return None if inner is None else min(self._samples, inner)


class Claimed(View):
    """The same elements, said by the user to have a batch axis or not to have one."""

    def __init__(self, inner: Source, batched: bool):
        super().__init__(inner)
        self.batched = batched

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.inner)

    def get(self, index: int) -> Any:
        return self.inner.get(index)

    def labels(self) -> Sequence[int] | None:
        return self.inner.labels()

    def reordered(self, n: int | None, by_item: bool, seed: int) -> Source | None:
        inner = self.inner.reordered(n, by_item, seed)
        return None if inner is None else Claimed(inner, self.batched)


class Mapped(View):
    """Every element through the user's own function. What it returns is a model input as it is: an item.

    An error in the function comes out as a `DataError` that names the sample and where it came from.
    """

    def __init__(self, inner: Source, function: Callable[[Any], Any], batched: bool):
        super().__init__(inner)
        self._function = function
        self.batched = batched

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        loan = Loan()
        for index, element in enumerate(self.inner):
            yield self._call(element, index, loan)

    def get(self, index: int) -> Any:
        # Seeded by the index, so that looking at one sample twice shows the same augmentation twice.
        return self._call(self.inner.get(index), index, Loan(index))

    def _call(self, element: Any, index: int, loan: Loan) -> Any:
        try:
            with loan.lend():
                return self._function(element)
        except FewbitError:
            raise
        except Exception as error:
            place = element.place if isinstance(element, Sample) else self.inner.place(index)
            name = getattr(self._function, "__name__", type(self._function).__name__)
            raise DataError(
                f"{name} raised {type(error).__name__}: {error}",
                code="transform-failed",
                where=f"sample {index} ({place})" if place.path else f"sample {index}",
                expected=f"a model input made from {describe(element)}",
                try_=f"call {name}({self._by_hand(index)}) by hand; `model({name}(item))` must work",
            ) from error

    def _by_hand(self, index: int) -> str:
        """What a user types to get at one element of the data before the function."""
        if self.inner.random_access:
            return f"Dataset(data_source)[{index}]"
        return "next(iter(data_source))" if index == 0 else f"next(itertools.islice(data_source, {index}, None))"

    def labels(self) -> Sequence[int] | None:
        return self.inner.labels()

    def reordered(self, n: int | None, by_item: bool, seed: int) -> Source | None:
        inner = self.inner.reordered(n, by_item, seed)
        return None if inner is None else Mapped(inner, self._function, self.batched)

    def sample_count(self) -> int | None:
        return None if self.batched else known_length(self.inner)
