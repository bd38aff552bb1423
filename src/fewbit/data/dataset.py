# SPDX-License-Identifier: Apache-2.0
"""`Dataset`: an ordered, re-iterable source of samples, whatever it was made from."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any, overload

from fewbit.data.batch import count_samples
from fewbit.data.fed import Fed
from fewbit.data.feeding import Feeder
from fewbit.data.opening import open_source
from fewbit.data.source import Source, known_length
from fewbit.data.views import Claimed, Head, Mapped, Picked, Shard
from fewbit.errors import DataError, UsageError
from fewbit.record import Record


class Dataset:
    """Anything a user has, as samples in order. Lazy: nothing is read before it is asked for.

    Elements are *samples* (one example, no batch axis: what files hold) or *items* (a model input as it is, batch
    axis included: what a loader or a `transform_fn` gives). Counts are always counts of samples.

    Args:
        data_source: a path, a PyTorch loader or dataset, a tensor or array, a list, a dict of columns, a Hugging Face
            dataset, a generator, a function that returns an iterator, or `None`.
        transform_fn: turns an element into a model input, so that `model(transform_fn(element))` works.
        batched: overrides what is assumed about the batch axis: `True`, elements have one; `False`, they do not.

    >>> dataset = Dataset([{"text": "a"}, {"text": "b"}, {"text": "c"}])
    >>> len(dataset), dataset[1], len(dataset.subset(2, seed=0))
    (3, {'text': 'b'}, 2)
    """

    def __init__(
        self, data_source: Any, transform_fn: Callable[[Any], Any] | None = None, *, batched: bool | None = None
    ):
        source = open_source(data_source)
        if transform_fn is not None:
            source = Mapped(source, transform_fn, batched=True if batched is None else batched)
        elif batched is not None and batched != source.batched:
            source = Claimed(source, batched)
        self.source: Source = source

    def __iter__(self) -> Iterator[Any]:
        return iter(self.source)

    def __len__(self) -> int:
        return len(self.source)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Dataset: ...
    def __getitem__(self, index: int | slice) -> Any:
        length = len(self)
        if isinstance(index, slice):
            return Dataset(Picked(self.source, range(*index.indices(length))))
        if not -length <= index < length:
            raise IndexError(f"sample {index} of {length}")
        return self.source.get(index % length)

    def __repr__(self) -> str:
        length = known_length(self.source)
        noun = "items" if self.batched else "samples"
        kind = self.facts.get("format", type(self.source).__name__)
        return f"Dataset({kind}, {'unknown number of' if length is None else f'{length:,}'} {noun})"

    @property
    def batched(self) -> bool:
        """Whether elements are items, model inputs that carry a batch axis already."""
        return self.source.batched

    @property
    def facts(self) -> dict[str, Any]:
        """What the format understood: `classes`, `columns`, `splits`, `task` … where it has them."""
        return self.source.facts

    @property
    def classes(self) -> list[str] | None:
        """Class names in the order of their ids, when the data has classes."""
        return self.facts.get("classes")

    @property
    def record(self) -> Record:
        """What was dropped, repaired, kept on disk or assumed while reading, with reasons."""
        return self.source.record

    @property
    def sample_count(self) -> int | None:
        """How many samples there are in all, or `None` when only reading them would tell."""
        return self.source.sample_count()

    def subset(self, n: int, seed: int | None = None) -> Dataset:
        """`n` samples: the first ones, or a random choice that depends on the seed alone.

        Counts samples, not batches: of a loader with batches of 128, `subset(300)` reads three items and cuts the
        last to 44. Fewer samples than `n` are all taken.

        Args:
            n: how many samples.
            seed: `None` for the first `n`; a number for a random choice, in the order of the source.
        """
        if n < 0:
            raise UsageError(f"a subset of {n} samples", expected="0 or more")
        if seed is None:
            return Dataset(Head(self.source, n))
        chooser = random.Random(seed)
        if not self.batched:
            count = self._count_elements()
            return Dataset(Picked(self.source, sorted(chooser.sample(range(count), min(n, count)))))
        sizes = [count_samples(item) for item in self.source]
        order = chooser.sample(range(len(sizes)), len(sizes))
        taken = sum(1 for before in accumulate((sizes[i] for i in order), initial=0) if before < n)
        return Dataset(Head(Picked(self.source, sorted(order[: min(taken, len(order))])), n))

    def split(self, *fractions: float, seed: int | None = 0) -> tuple[Dataset, ...]:
        """Disjoint parts that together are everything (when the fractions sum to one).

        Args:
            fractions: the size of each part, such as `0.8, 0.2`.
            seed: decides who goes where; `None` keeps the order and cuts it.

        >>> train, rest = Dataset(list(range(10))).split(0.8, 0.2)
        >>> sorted([*train, *rest])
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
        """
        if not fractions or min(fractions) < 0 or sum(fractions) > 1 + 1e-9:
            raise UsageError(f"fractions {fractions}", expected="numbers from 0 to 1 that sum to at most 1")
        count = self._count_elements()
        order = list(range(count)) if seed is None else random.Random(seed).sample(range(count), count)
        ends = [round(end * count) for end in accumulate(fractions, initial=0.0)]
        return tuple(Dataset(Picked(self.source, sorted(order[start:end]))) for start, end in pairwise(ends))

    def shard(self, rank: int, world: int) -> Dataset:
        """The part of one worker out of `world`: disjoint, nothing lost, nothing twice."""
        if not 0 <= rank < world:
            raise UsageError(f"shard {rank} of {world}", expected="0 <= rank < world")
        return Dataset(Shard(self.source, rank, world))

    def validate(self, model: Any) -> None:
        """Compare the first element with what a model takes, before anything expensive starts.

        Args:
            model: an ONNX or OpenVINO path, a `torch.nn.Module`, a loaded model, or a `Signature`.

        Raises:
            DataError: every mismatch at once, with the input, what was expected, what was found, and the likely fix.
        """
        Feeder(self.source, model).validate(self._first())

    def inputs(self, model: Any, batch_size: int = 1) -> Fed:
        """What a model is called with, one batch at a time, the first element validated before.

        Args:
            model: as in `validate`. It is only looked at, never run.
            batch_size: how many samples a batch holds. Items are passed on as they are: they have a batch axis already.

        Returns:
            An iterator over `(args, kwargs)` for PyTorch, over dicts of arrays under input names for ONNX Runtime and
            OpenVINO; it knows where each came from.
        """
        feeder = Feeder(self.source, model)
        first = feeder.validate(self._first())
        return feeder.feed(iter(self.source), batch_size, whole=first.whole)

    def _first(self) -> Any:
        for element in self.source:
            return element
        raise DataError(
            "the dataset is empty",
            code="no-samples",
            where=self.facts.get("format", type(self.source).__name__),
            expected="at least one sample",
        )

    def _count_elements(self) -> int:
        length = known_length(self.source)
        return sum(1 for _ in self.source) if length is None else length


def open_dataset(
    path: Any,
    *,
    format: str | None = None,
    task: str | None = None,
    split: str | None = None,
    policy: Mapping[str, str] | str | None = None,
    **options: Any,
) -> Dataset:
    """Open a file or folder of any known format, lazily.

    Args:
        path: the file or folder (or any object `Dataset` takes).
        format: a member of `formats` (see `fewbit list formats`) or `"file.py:function"`; detected when left out.
        task: what the data is for, where a format serves several, such as `"segmentation"`.
        split: one split by name; all of them, one after the other, when left out.
        policy: what to do about a fault, by its code: `{"image-truncated": "drop"}`; or `"drop"` for every fault that
            would raise and can be dropped. See `fewbit list findings`.
        options: the format's own options, such as `delimiter` for rows or `workers` for pictures.

    Raises:
        UsageError: no such path, format or option.
        DataError: nothing at the path looks like a dataset.
    """
    return Dataset(open_source(path, format=format, task=task, split=split, policy=policy, **options))
