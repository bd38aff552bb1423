# SPDX-License-Identifier: Apache-2.0
"""`Dataset`: an order and a transform over a source. Lazy, random access, every method returns a new one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, takewhile
from typing import Any, overload

import numpy as np

from fewbit.data.types import DataReport, Location, SampleError, Source, spread
from fewbit.errors import UsageError, plural

LEAST_TO_HOLD_OUT = 8
HELD_OUT_SHARE, LEAST_HELD_OUT, MOST_HELD_OUT = 0.1, 32, 256


class Dataset(Sequence[Any]):
    """Samples of any source: a path, a URL, a loader, a list, a function.

    Args:
        data_source: whatever `open_dataset` takes, or an iterable of samples or batches.
        transform_fn: maps a sample to what the model takes.

    Attributes:
        report: the issues that were found while opening and reading.
        classes: names of the labels, or `None`.

    >>> dataset = Dataset([{"x": number} for number in range(100)])
    >>> dataset[0], len(dataset.subset(10))
    ({'x': 0}, 10)
    """

    def __init__(self, data_source: Any, transform_fn: Callable[[Any], Any] | None = None):
        from fewbit.data.opening import open_source

        if isinstance(data_source, Dataset):
            transform = _chain(data_source.transform, transform_fn)
            self._become(data_source._source, data_source.report, data_source._order, transform)
            return
        source, report = open_source(data_source)
        self._become(source, report, None, transform_fn)

    @classmethod
    def of(
        cls,
        source: Source,
        report: DataReport | None = None,
        *,
        order: np.ndarray | None = None,
        transform: Callable[[Any], Any] | None = None,
    ) -> Dataset:
        """A dataset over a source that is already open."""
        made = cls.__new__(cls)
        made._become(source, report or DataReport(complete=True), order, transform)
        return made

    def _become(self, source: Source, report: DataReport, order: np.ndarray | None, transform: Any) -> None:
        self._source, self.report, self._order = source, report, order
        self.transform: Callable[[Any], Any] | None = transform
        self._dropped: list[Location] = []

    def __len__(self) -> int:
        return len(self._source) if self._order is None else len(self._order)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Dataset: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.select(range(len(self))[index])
        sample = self._source[self.position(index)]
        return sample if self.transform is None else self.transform(sample)

    def __iter__(self) -> Iterator[Any]:
        """Every sample in order; damaged ones are dropped or raised, as `on_error` says."""
        for index in self._indices():
            try:
                sample = self[index]
            except SampleError as error:
                action = self.report.add(error.issue.type, error.issue.message, error.issue.location)
                if action != "drop":
                    raise
                self._dropped.append(error.issue.location)
                continue
            yield sample

    def _indices(self) -> Iterator[int]:
        """All positions; a stream is asked for one more sample at a time, since its length would read all of it."""
        more = getattr(self._source, "has", None)
        if self._order is None and more is not None:
            yield from takewhile(more, count())
        else:
            yield from range(len(self))

    def __repr__(self) -> str:
        return f"Dataset({self.report.data_format or type(self._source).__name__}, {plural(len(self), 'sample')})"

    def position(self, index: int) -> int:
        """The position of a sample in the source; a stream is not read to its end for that."""
        if self._order is None and index >= 0:
            return index
        length = len(self)
        if not -length <= index < length:
            raise IndexError(f"sample {index} of {plural(length, 'sample')}")
        index %= length
        return index if self._order is None else int(self._order[index])

    def location(self, index: int) -> Location:
        """Where a sample comes from: file, line, row."""
        return self.report.located(self._source.location(self.position(index)))

    @property
    def source(self) -> Source:
        """What the samples are read from."""
        return self._source

    @property
    def facts(self) -> Mapping[str, Any]:
        """What is known of the source without decoding: classes, columns, task, splits."""
        return self._source.facts

    @property
    def classes(self) -> Sequence[str] | None:
        """Names of the labels, in the order of their numbers."""
        return self._source.facts.get("classes")

    @property
    def record(self) -> dict[str, Any]:
        """What was read, as plain data: source, format, samples, dropped samples, classes and issues by code."""
        facts = {key: value for key, value in self.facts.items() if key in ("classes", "task", "splits", "columns")}
        return {
            "source": self.report.source,
            "format": self.report.data_format,
            "samples": len(self),
            "dropped": [str(location) for location in self._dropped],
            "issues": dict(self.report.counts),
            **facts,
        }

    def select(self, positions: Sequence[int] | np.ndarray | range) -> Dataset:
        """The samples at some positions of this dataset."""
        chosen = np.asarray(positions, np.int64)
        order = chosen if self._order is None else self._order[chosen]
        return Dataset.of(self._source, self.report, order=order, transform=self.transform)

    def map(self, transform: Callable[[Any], Any]) -> Dataset:
        """The same samples through one more transform."""
        return Dataset.of(self._source, self.report, order=self._order, transform=_chain(self.transform, transform))

    def strata(self) -> Sequence[Any] | None:
        """Class, split or file of each sample, if known without decoding."""
        strata = self._source.strata()
        if strata is None or self._order is None:
            return strata
        return [strata[int(position)] for position in self._order]

    def subset(self, count: int, seed: int = 0) -> Dataset:
        """A seeded sample over the whole dataset, each class (or split, or file) in proportion.

        Args:
            count: how many samples, never batches; all of them if there are no more.
            seed: of the draw.
        """
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise UsageError(
                f"a subset of {count!r} samples", code="samples", param="samples", expected="a whole number from 1 up",
                hint="{samples=300}",
            )  # fmt: skip
        return self.select(spread(self.strata(), len(self), count, seed))

    def split(self, *shares: float, seed: int = 0) -> tuple[Dataset, ...]:
        """Disjoint parts, each spread over the whole dataset: `split(0.8, 0.2)`."""
        if not shares or min(shares) <= 0 or sum(shares) > 1 + 1e-9:
            raise UsageError(
                f"shares {shares}", code="split-shares", expected="positive shares that sum to at most 1",
                hint="split(0.8, 0.2)",
            )  # fmt: skip
        ends = np.round(np.cumsum(shares) * len(self)).astype(int)
        order = self._stratified_order(seed)
        starts = [0, *ends[:-1]]
        return tuple(self.select(np.sort(order[start:end])) for start, end in zip(starts, ends))

    def shard(self, rank: int, world: int) -> Dataset:
        """Every `world`-th sample from `rank` on: disjoint parts for several processes."""
        if not 0 <= rank < world:
            raise UsageError(f"shard {rank} of {world}", code="shard", expected="0 <= rank < world", hint="shard(0, 2)")
        return self.select(range(rank, len(self), world))

    def hold_out(self, samples: int, seed: int = 0) -> tuple[Dataset, Dataset | None]:
        """Calibration and held-out samples, drawn apart, both spread over the whole dataset.

        Args:
            samples: how many to calibrate with. A tenth of that is held out, at least 32, at most 256, never more than
                a third of the dataset; nothing if the dataset has fewer than 8 samples.
            seed: of both draws.
        """
        length = len(self)
        if length < LEAST_TO_HOLD_OUT:
            return self.subset(max(samples, 1), seed), None
        wanted = min(max(round(HELD_OUT_SHARE * samples), LEAST_HELD_OUT), MOST_HELD_OUT, length // 3)
        held_out = self.subset(wanted, seed + 1)
        taken = {int(position) for position in spread(self.strata(), length, wanted, seed + 1)}
        rest = self.select([position for position in range(length) if position not in taken])
        return rest.subset(min(samples, len(rest)), seed), held_out

    def class_counts(self) -> dict[str, int] | None:
        """Samples per class, if labels are known without decoding."""
        strata, classes = self.strata(), self.classes
        if strata is None or not classes:
            return None
        counts = Counter(str(value) for value in strata)
        names = [str(name) for name in classes]
        if not set(counts) <= set(names):  # spread over splits or files, not over classes
            return None
        return {name: counts.get(name, 0) for name in names}

    def inputs(self, model: Any, *, batch_size: int = 1) -> Iterator[Any]:
        """Samples as the inputs of a model: `(args, kwargs)` for a PyTorch module, a dict of arrays for other runtimes.

        Args:
            model: a path, a module, or a `ModelInfo`.
            batch_size: samples per batch; batches of a loader keep their size.
        """
        from fewbit.data.inputs import model_inputs

        return model_inputs(self, model, batch_size=batch_size)

    def _stratified_order(self, seed: int) -> np.ndarray:
        """A random order in which every contiguous part has each stratum in proportion."""
        from fewbit.rng import generator

        random = generator(seed, len(self), 1)
        strata = self.strata()
        order = random.permutation(len(self))
        if strata is None:
            return order
        _, codes = np.unique(np.asarray([str(value) for value in strata]), return_inverse=True)
        sizes = np.bincount(codes)
        grouped = order[np.argsort(codes[order], kind="stable")]
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        stratum = codes[grouped]
        # Members of a stratum are spaced evenly over 0..1, from a random start, so that strata interleave.
        position = (np.arange(len(self)) - starts[stratum] + random.random(len(sizes))[stratum]) / sizes[stratum]
        return np.asarray(grouped[np.argsort(position, kind="stable")])


def _chain(first: Callable[[Any], Any] | None, second: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    if first is None or second is None:
        return first or second
    return _Chain(first, second)


class _Chain:
    """Two transforms in a row; a class, so that worker processes can be given one."""

    def __init__(self, first: Callable[[Any], Any], second: Callable[[Any], Any]):
        self.first, self.second = first, second

    def __call__(self, sample: Any) -> Any:
        return self.second(self.first(sample))
