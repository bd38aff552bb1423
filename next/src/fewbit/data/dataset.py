# SPDX-License-Identifier: Apache-2.0
"""`Dataset`: an order and a transform over a source. Lazy, random access, every method returns a new one."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count as count_up
from itertools import takewhile
from types import MappingProxyType
from typing import Any, overload

import numpy as np

from fewbit.data.types import DataReport, IssueType, Location, SampleError, Severity, Source, spread
from fewbit.errors import UsageError, plural

LEAST_TO_HOLD_OUT = 8
HELD_OUT_SHARE, LEAST_HELD_OUT, MOST_HELD_OUT = 0.1, 32, 256

FEW_CLASSES = IssueType(
    "calibration-few-classes", Severity.WARNING, "classes without a calibration sample",
    "add samples of the other classes, or raise {samples}",
)  # fmt: skip
NOTHING_HELD_OUT = IssueType(
    "held-out-none", Severity.WARNING, "too few samples to hold some out", "add samples, or measure with {validation}"
)
ISSUES = (FEW_CLASSES, NOTHING_HELD_OUT)


class Dataset(Sequence[Any]):
    """Samples of any source: a path, a URL, a loader, a list, a function.

    Args:
        data_source: whatever `open_dataset` takes, or an iterable of samples or batches.
        transform_fn: maps a sample to what the model takes.

    Attributes:
        report: the issues that were found while opening and reading.
        source: what the samples are read from.

    >>> dataset = Dataset([{"x": number} for number in range(100)])
    >>> dataset[0], len(dataset.subset(10))
    ({'x': 0}, 10)
    """

    options: Mapping[str, Any] = MappingProxyType({})
    """How `inputs` prepares images and texts; `open_dataset` sets it."""

    def __init__(self, data_source: Any, transform_fn: Callable[[Any], Any] | None = None):
        from fewbit.data.opening import open_source

        self.source: Source
        self.transform: Callable[[Any], Any] | None
        if isinstance(data_source, Dataset):
            vars(self).update(vars(data_source), transform=_chain(data_source.transform, transform_fn))
            return
        self.source, self.report = open_source(data_source)
        self.transform = transform_fn
        self._order: np.ndarray | None = None  # positions in the source; `None` for all of them
        self._dropped: dict[int, Location] = {}  # by position in the source, shared by all parts of a dataset

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
        dataset = cls.__new__(cls)
        dataset.source, dataset.report = source, report or DataReport(complete=True)
        dataset.transform, dataset._order, dataset._dropped = transform, order, {}
        return dataset

    def __len__(self) -> int:
        return len(self.source) if self._order is None else len(self._order)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Dataset: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.select(range(len(self))[index])
        sample = self.source[self.position(index)]
        return sample if self.transform is None else self.transform(sample)

    def __iter__(self) -> Iterator[Any]:
        """Every sample in order; damaged ones are dropped or raised, as `on_error` says."""
        for _, sample in self.intact():
            yield sample

    def intact(self) -> Iterator[tuple[int, Any]]:
        """Number and content of every sample that can be decoded; those to be dropped are counted once."""
        for index in self.indices():
            try:
                sample = self[index]
            except SampleError as error:
                if self.report.add_error(error) != "drop":
                    raise
                self._dropped[self.position(index)] = error.issue.location
                continue
            yield index, sample

    def indices(self) -> Iterator[int]:
        """All numbers; a stream is asked for one more sample at a time, since its length would read all of it."""
        has = getattr(self.source, "has", None)
        return iter(range(len(self))) if has is None or not self.is_stream else takewhile(has, count_up())

    @property
    def is_stream(self) -> bool:
        """Whether the length is unknown until every sample has been read, as of a generator."""
        return self._order is None and hasattr(self.source, "has")

    def __repr__(self) -> str:
        count = "a stream" if self.is_stream else plural(len(self), "sample")
        return f"Dataset({self.report.data_format or type(self.source).__name__}, {count})"

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
        return self.report.located(self.source.location(self.position(index)))

    @property
    def facts(self) -> Mapping[str, Any]:
        """What is known of the source without decoding: classes, columns, task, splits."""
        return self.source.facts

    @property
    def classes(self) -> Sequence[str] | None:
        """Names of the labels, in the order of their numbers; `None` if there are none."""
        return self.source.facts.get("classes")

    @property
    def fingerprint(self) -> str | None:
        """Changes whenever the samples may have changed; `None` if that cannot be known, as for most objects."""
        content: str | None = getattr(self.source, "fingerprint", None) or self.report.fingerprint
        if content is None or self._order is None:
            return content
        return hashlib.blake2b(self._order.tobytes(), digest_size=16, key=content.encode()[:64]).hexdigest()

    @property
    def record(self) -> dict[str, Any]:
        """What was read, as plain data: source, format, samples, dropped samples, classes and issues by code."""
        return {
            "source": self.report.source,
            "format": self.report.data_format,
            "samples": len(self),
            "dropped": [str(location) for location in self._dropped.values()],
            "issues": dict(self.report.counts),
            **{name: self.facts[name] for name in ("classes", "task", "splits", "columns") if name in self.facts},
        }

    def select(self, numbers: Sequence[int] | np.ndarray | range) -> Dataset:
        """The samples with some numbers."""
        order = np.asarray(numbers, np.int64)
        selection = Dataset(self)
        selection._order = order if self._order is None else self._order[order]
        return selection

    def map(self, transform: Callable[[Any], Any]) -> Dataset:
        """The same samples through one more transform."""
        return Dataset(self, transform)

    def drop_damaged(self) -> Dataset:
        """Without the samples that cannot be decoded and whose issue allows `drop`; decodes every sample once."""
        return self.select([index for index, _ in self.intact()])

    def strata(self) -> Sequence[Any] | None:
        """Class, split or file of each sample, if known without decoding."""
        strata = self.source.strata()
        if strata is None or self._order is None:
            return strata
        return [strata[int(position)] for position in self._order]

    def class_counts(self) -> dict[str, int] | None:
        """Samples per class, if labels are known without decoding."""
        strata = self.strata()
        if strata is None or not (self.classes or self.facts.get("strata") == "class"):
            return None
        counts = Counter(str(value) for value in strata)
        names = [str(name) for name in self.classes or sorted(counts)]
        if not set(counts) <= set(names):  # spread over splits or files, not over classes
            return None
        return {name: counts.get(name, 0) for name in names}

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
        order = spread(self.strata(), len(self), len(self), seed)
        ends = np.round(np.cumsum(shares) * len(self)).astype(int)
        return tuple(self.select(np.sort(order[start:end])) for start, end in zip([0, *ends[:-1]], ends))

    def shard(self, rank: int, world: int) -> Dataset:
        """Every `world`-th sample from `rank` on: disjoint parts for several processes."""
        if not 0 <= rank < world:
            raise UsageError(f"shard {rank} of {world}", code="shard", expected="0 <= rank < world", hint="shard(0, 2)")
        return self.select(range(rank, len(self), world))

    def hold_out(self, samples: int, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Calibration and held-out samples, drawn apart, both spread over the whole dataset.

        Args:
            samples: how many to calibrate with. A tenth of that is held out, at least 32, at most 256, never more than
                a third of the dataset. Of fewer than 8 samples none is held out: the second part is empty.
            seed: of both draws.

        The report gets a warning if nothing is held out, or if some classes have no calibration sample.
        """
        length = len(self)
        held_out = min(max(round(HELD_OUT_SHARE * samples), LEAST_HELD_OUT), MOST_HELD_OUT, length // 3)
        if length < LEAST_TO_HOLD_OUT:
            held_out = 0
            text = f"{plural(length, 'sample')}; it takes {LEAST_TO_HOLD_OUT}"
            self.report.add(NOTHING_HELD_OUT, text, samples=0)
        order = spread(self.strata(), length, length, seed)
        calibration = self.select(order[held_out : held_out + samples])
        calibration._warn_of_few_classes(self.class_counts())
        return calibration, self.select(order[:held_out])

    def _warn_of_few_classes(self, all_counts: Mapping[str, int] | None) -> None:
        """Compare with the samples per class of the dataset that this is drawn from."""
        counts = self.class_counts()
        if counts is None or all_counts is None:
            return
        covered = [name for name in all_counts if counts.get(name)]
        missing = [name for name in all_counts if not counts.get(name)]
        if missing:
            text = f"{plural(len(self), 'sample')} of {len(covered)} of {plural(len(all_counts), 'class')}"
            self.report.add(FEW_CLASSES, f"{text}; none of {', '.join(missing[:5])}", samples=0)

    def inputs(self, model: Any, *, batch_size: int = 1) -> Iterator[Any]:
        """Samples as the inputs of a model: `(args, kwargs)` for a PyTorch module, a dict of arrays for other runtimes.

        Args:
            model: a PyTorch module, or a `ModelInfo`.
            batch_size: samples per batch; batches of a loader keep their size.
        """
        from fewbit.data.inputs import model_inputs

        return model_inputs(self, model, batch_size=batch_size)


def _chain(first: Callable[[Any], Any] | None, second: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    if first is None or second is None:
        return first or second
    return partial(_in_turn, first, second)  # can be sent to a worker process, unlike a lambda


def _in_turn(first: Callable[[Any], Any], second: Callable[[Any], Any], sample: Any) -> Any:
    return second(first(sample))
