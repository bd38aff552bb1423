# SPDX-License-Identifier: Apache-2.0
"""The contract between a format and everything above it: an ordered, re-iterable source of elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fewbit.data.sample import Place
from fewbit.record import Record


class Source:
    """What a format opens. A subclass with random access defines `__len__` and `get`; a stream defines `__iter__`.

    Attributes:
        batched: `False`, elements are samples without a batch axis; `True`, they are items, model inputs as they are.
        facts: what the format understood (`classes`, `columns`, `splits`, `task`, …), as JSON values.
        targets: names in a sample that are answers and not model inputs, such as `label` or `boxes`.
        record: where the source writes down what it dropped, repaired or assumed.
    """

    batched: bool = False
    targets: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.record = Record("open")

    @property
    def random_access(self) -> bool:
        """Whether `get` works."""
        return type(self).get is not Source.get

    def __len__(self) -> int:
        raise TypeError("the length is not known before the data has been read once; `sum(1 for _ in dataset)` counts")

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self)):
            yield self.get(index)

    def get(self, index: int) -> Any:
        """The element at an index from 0 to `len - 1`."""
        raise TypeError("this data can only be read in order; `next(iter(dataset))` gives the first element")

    def place(self, index: int) -> Place:
        """Where the element at an index comes from, without reading it."""
        return Place(index=index)

    def number(self, index: int) -> int:
        """The number that users know an element by: of a subset, that in the data it was taken from."""
        return index

    def labels(self) -> Sequence[int] | None:
        """The class of every element, where that is known without reading them."""
        return None

    @property
    def is_shuffled(self) -> bool:
        """Whether elements come in a random order already."""
        return False

    def reordered(self, n: int | None, by_item: bool, seed: int) -> Source | None:
        """For a source without random access: a random sample of it, in random order, if it can be had cheaply.

        Args:
            n: how many elements or samples are wanted; `None` for all.
            by_item: whether `n` counts elements.
            seed: of the choice.
        """
        return None

    def sample_count(self) -> int | None:
        """How many samples all elements hold together, or `None` when that takes reading them."""
        if self.batched:
            return None
        try:
            return len(self)
        except TypeError:
            return None


def known_length(source: Source) -> int | None:
    """The number of elements, or `None` for a source that does not know."""
    try:
        return len(source)
    except TypeError:
        return None
