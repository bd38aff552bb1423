# SPDX-License-Identifier: Apache-2.0
"""What a step takes and returns: a `View` of samples by position and epoch, and the counts of what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fewbit.data.dataset import Dataset
from fewbit.data.text.content import texts_in
from fewbit.data.text.roles import Ints
from fewbit.data.types import DataReport, Issue, Location, Sample, SampleError
from fewbit.errors import DataError, plural

if TYPE_CHECKING:
    from fewbit.data.loading.config import CustomConfig, DatasetConfig

MOST_SHOWN = 3
Function = Callable[[Sample, int, int], Sample]
"""From a sample, its position in the data and the epoch to another sample."""


class Samples(Protocol):
    """What a view is a view of."""

    def __len__(self) -> int: ...

    def get(self, index: int, epoch: int = 0) -> Sample:
        """One sample as it is in one epoch."""
        ...

    def location(self, index: int) -> Location:
        """Where a sample comes from."""
        ...

    def strata(self) -> Sequence[Any] | None:
        """Class of each sample, if known without reading."""
        ...


@dataclass(frozen=True, eq=False)
class View:
    """Some samples, in an order, through functions. Also a `Source`, at epoch 0.

    Args:
        samples: what it is a view of.
        positions: which of these; `None` for all.
        functions: applied one after the other when a sample is read.
        lengths: tokens of each sample, if known without reading.
        varies: whether samples differ from epoch to epoch.
        facts: classes and task.
    """

    samples: Samples
    positions: Ints | None = None
    functions: tuple[Function, ...] = ()
    lengths: Ints | None = None
    varies: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.samples) if self.positions is None else len(self.positions)

    def __getitem__(self, index: int) -> Sample:
        return self.get(index)

    def get(self, index: int, epoch: int = 0) -> Sample:
        """One sample as it is in one epoch."""
        position = self._position(index)
        sample = self.samples.get(position, epoch)
        try:
            for function in self.functions:
                sample = function(sample, position, epoch)
        except SampleError as error:
            if error.issue.location != Location():
                raise
            raise SampleError(Issue(error.issue.type, error.issue.message, self.location(index))) from error
        return sample

    def location(self, index: int) -> Location:
        return self.samples.location(self._position(index))

    def strata(self) -> Sequence[Any] | None:
        """Class of each sample, if known without reading."""
        strata = self.samples.strata()
        return strata if strata is None or self.positions is None else [strata[int(at)] for at in self.positions]

    def select(self, indices: Sequence[int] | Ints) -> View:
        """Some of the samples, in this order."""
        chosen = np.asarray(indices, np.int64)
        positions = chosen if self.positions is None else self.positions[chosen]
        lengths = None if self.lengths is None else self.lengths[chosen]
        return View(self.samples, positions, self.functions, lengths, self.varies)

    def map(self, function: Callable[[Sample], Sample], lengths: Ints | None = None) -> View:
        """Every sample through one more function; `lengths` are those behind it."""
        return self.map_by_position(partial(_of_sample, function), lengths)

    def map_by_position(self, function: Function, lengths: Ints | None = None, *, varies: bool = False) -> View:
        """The same for functions that also depend on position or epoch."""
        return View(self.samples, self.positions, (*self.functions, function), lengths, self.varies or varies)

    def _position(self, index: int) -> int:
        return index if self.positions is None else int(self.positions[index])


def _of_sample(function: Callable[[Sample], Sample], sample: Sample, position: int, epoch: int) -> Sample:
    return function(sample)


@dataclass(frozen=True)
class DatasetSamples:
    """The samples of a dataset, always as dicts."""

    dataset: Dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def get(self, index: int, epoch: int = 0) -> Sample:
        sample = self.dataset[index]
        if isinstance(sample, str):
            return {"text": sample}
        if not isinstance(sample, Mapping):
            raise DataError(
                f"a sample is a {type(sample).__name__}", code="sample-type", where=str(self.location(index)),
                expected="a dict of fields, or text", hint="name its parts: {'image': …, 'label': …}",
            )  # fmt: skip
        return dict(sample)

    def location(self, index: int) -> Location:
        return self.dataset.location(index)

    def strata(self) -> Sequence[Any] | None:
        return self.dataset.strata()


@dataclass
class Preparation:
    """Counts of rows and dropped rows, and notes; shown in a loader's report.

    Args:
        rows: in the requested split.
        dropped: how many were left out, by reason; `first` has a few locations of each.
        notes: what was assumed, changed or counted.
        data: the report of the data itself.
    """

    rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    first: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    data: DataReport = field(default_factory=DataReport)

    def drop(self, reason: str, location: Location) -> None:
        """Count a sample that is left out."""
        self.dropped[reason] += 1
        if self.dropped[reason] <= MOST_SHOWN:
            self.first.setdefault(reason, []).append(str(location))

    def drop_issue(self, issue: Issue) -> None:
        """Count a sample that cannot be used, or raise if that is what `on_error` says."""
        if self.data.add(issue.type, issue.message, issue.location) == "raise":
            raise SampleError(issue)
        self.drop(f"{issue.type.meaning}: {issue.message}", issue.location)

    def usable(self, view: View) -> Iterator[tuple[int, Sample]]:
        """One pass over a view; what cannot be used is counted and left out."""
        for index in range(len(view)):
            try:
                sample = view.get(index)
            except SampleError as error:
                self.drop_issue(error.issue)
                continue
            yield index, sample

    def lines(self) -> list[str]:
        """One line per reason: `3 of 20 rows left out: the answer is empty (rows.jsonl:4, …)`."""
        return [
            f"{count:,} of {plural(self.rows, 'row')} left out: {reason} ({', '.join(self.first[reason])}"
            + (", …)" if count > MOST_SHOWN else ")")
            for reason, count in self.dropped.most_common()
        ]

    def nothing_left(self) -> DataError:
        """The error for data of which no sample can be used."""
        return DataError(
            ": ".join(["no sample is left", *self.lines()[:1]]), code="no-samples", where=self.data.source or None,
            expected="at least one", hint="`fewbit check` lists what is wrong with the data",
        )  # fmt: skip


@dataclass(frozen=True)
class Context:
    """What a step may use.

    Args:
        config: the configuration.
        split: `train`, `validation`, another name, or `None` for all rows.
        preparation: takes what is left out or worth knowing.
        open: opens other data the same way, up to this step.
        cache_key: everything the samples depend on so far; `None` if that is not known.
    """

    config: DatasetConfig
    split: str | None
    preparation: Preparation
    open: Callable[[Any], View]
    cache_key: str | None = None

    @property
    def settings(self) -> CustomConfig:
        return self.config.custom_config

    def note(self, text: str) -> None:
        self.preparation.notes.append(text)


def length_of(sample: Sample) -> int | None:
    """Tokens of a sample, else steps of its signal, else characters of its texts.

    >>> length_of({"input_ids": [5, 6, 7]}), length_of({"text": "four"}), length_of({"label": 3})
    (3, 4, None)
    """
    for name in ("input_ids", "input_values", "input_features", "audio"):
        if name in sample:
            return len(sample[name])
    texts = texts_in(sample)
    return sum(map(len, texts)) if texts else None


def lengths_of(view: View) -> Ints:
    """The length of every sample; reads all of them if the lengths are not known.

    Raises:
        DataError: a sample has no length.
    """
    if view.lengths is not None:
        return view.lengths
    lengths = np.empty(len(view), np.int64)
    for index in range(len(view)):
        length = length_of(view.get(index))
        if length is None:
            raise DataError(
                "a sample has no length", code="no-length", where=str(view.location(index)),
                expected="text, or input_ids", hint="put 'tokenization' before this step",
            )  # fmt: skip
        lengths[index] = length
    return lengths
