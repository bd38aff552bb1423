# SPDX-License-Identifier: Apache-2.0
"""Samples by position and epoch, one view on top of another; what a step works on, and what it may use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fewbit.data.dataset import Dataset
from fewbit.data.text.content import CHATS, message_text
from fewbit.data.text.roles import Ints
from fewbit.data.types import DataReport, Issue, Location, Sample, SampleError
from fewbit.errors import DataError, plural

if TYPE_CHECKING:
    from fewbit.data.loading.config import CustomConfig

MOST_SHOWN = 3
LENGTH_FIELDS = ("input_ids", "input_values", "input_features", "audio")


@dataclass
class Preparation:
    """Counts of rows and dropped rows, and notes; shown in a loader's report.

    Args:
        rows: in the requested split.
        dropped: how many were left out, by reason.
        first: a few locations of each.
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

    def drop_issue(self, issue: Issue, error: SampleError | None = None) -> None:
        """Count a damaged sample, or raise if that is what `on_error` says."""
        if self.data.add(issue.type, issue.message, issue.location) == "raise":
            raise error or SampleError(issue)
        self.drop(f"{issue.type.meaning}: {issue.message}", issue.location)

    def lines(self) -> list[str]:
        """One line per reason: `3 of 20 rows left out: the answer is empty (rows.jsonl:4, …)`."""
        return [
            f"{count:,} of {plural(self.rows, 'row')} left out: {reason} ({', '.join(self.first[reason])}"
            + (", …)" if count > MOST_SHOWN else ")")
            for reason, count in self.dropped.most_common()
        ]


class View:
    """Samples over another view; by default the same ones.

    Attributes:
        inner: the view below.
        varies: whether samples differ from epoch to epoch.
    """

    def __init__(self, inner: View):
        self.inner = inner

    @property
    def varies(self) -> bool:
        """Whether samples differ from epoch to epoch."""
        return self.inner.varies

    def __len__(self) -> int:
        return len(self.inner)

    def get(self, index: int, epoch: int = 0) -> Sample:
        """One sample as it is in one epoch."""
        return self.inner.get(index, epoch)

    def location(self, index: int) -> Location:
        """Where a sample comes from."""
        return self.inner.location(index)

    def lengths(self) -> Ints | None:
        """Tokens of each sample, if known without reading."""
        return self.inner.lengths()

    def strata(self) -> Sequence[Any] | None:
        """Class of each sample, if known without reading."""
        return self.inner.strata()


@dataclass(frozen=True)
class Context:
    """What a step may use.

    Args:
        settings: of the configuration.
        tokenizer: loads the tokenizer.
        split: `train`, `validation`, another name, or `None` for all rows.
        preparation: takes what is left out or worth knowing.
        open: opens other data the same way, up to this step.
        cache_key: everything the samples depend on so far; `None` if that is not known.
    """

    settings: CustomConfig
    tokenizer: Callable[[], Any]
    split: str | None
    preparation: Preparation
    open: Callable[[Any], View]
    cache_key: str | None = None

    @property
    def training(self) -> bool:
        """Whether the samples are trained on."""
        return self.split == "train"


class DatasetView(View):
    """The samples of a dataset."""

    varies = False

    def __init__(self, dataset: Dataset):
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def get(self, index: int, epoch: int = 0) -> Sample:
        """One sample, always as a dict."""
        sample = self._dataset[index]
        if isinstance(sample, dict):
            return sample
        return {"text": sample} if isinstance(sample, str) else dict(sample)

    def location(self, index: int) -> Location:
        """Where a sample comes from."""
        return self._dataset.location(index)

    def lengths(self) -> Ints | None:
        """Nothing is known."""
        return None

    def strata(self) -> Sequence[Any] | None:
        """Class of each sample, if the source knows."""
        return self._dataset.strata()


class Selected(View):
    """Some samples of a view, in a given order."""

    def __init__(self, inner: View, positions: Sequence[int] | Ints):
        super().__init__(inner)
        self.positions = np.asarray(positions, np.int64)

    def __len__(self) -> int:
        return len(self.positions)

    def get(self, index: int, epoch: int = 0) -> Sample:
        """One sample."""
        return self.inner.get(int(self.positions[index]), epoch)

    def location(self, index: int) -> Location:
        """Where a sample comes from."""
        return self.inner.location(int(self.positions[index]))

    def lengths(self) -> Ints | None:
        """Of the selected samples."""
        lengths = self.inner.lengths()
        return None if lengths is None else lengths[self.positions]

    def strata(self) -> Sequence[Any] | None:
        """Of the selected samples."""
        strata = self.inner.strata()
        return None if strata is None else [strata[int(position)] for position in self.positions]


class Mapped(View):
    """Every sample through a function; `keeps_length` if the number of tokens stays the same."""

    def __init__(self, inner: View, function: Callable[[Sample], Sample], *, keeps_length: bool = False):
        super().__init__(inner)
        self._function, self._keeps_length = function, keeps_length

    def get(self, index: int, epoch: int = 0) -> Sample:
        """One sample."""
        try:
            return self._function(self.inner.get(index, epoch))
        except SampleError as error:
            if error.issue.location == Location():
                raise SampleError(Issue(error.issue.type, error.issue.message, self.location(index))) from error
            raise

    def lengths(self) -> Ints | None:
        """Those below, if the function keeps them."""
        return self.inner.lengths() if self._keeps_length else None


class ViewSource:
    """A view as the source of a `Dataset`, at epoch 0."""

    def __init__(self, view: View, facts: dict[str, Any]):
        self.view, self.facts = view, facts

    def __len__(self) -> int:
        return len(self.view)

    def __getitem__(self, index: int) -> Sample:
        return self.view.get(index)

    def location(self, index: int) -> Location:
        """Where a sample comes from."""
        return self.view.location(index)

    def strata(self) -> Sequence[Any] | None:
        """Class of each sample, if known without reading."""
        return self.view.strata()


def usable(view: View, preparation: Preparation) -> Iterator[tuple[int, Sample]]:
    """One pass over a view; what cannot be used is counted and left out."""
    for index in range(len(view)):
        try:
            yield index, view.get(index)
        except SampleError as error:
            preparation.drop_issue(error.issue, error)


def texts_in(sample: Sample) -> list[str]:
    """Every text of a sample, those of a chat too."""
    texts = [value for value in sample.values() if isinstance(value, str)]
    for name in CHATS:
        turns = [turn for turn in sample.get(name) or () if isinstance(turn, dict)]
        texts += [message_text(turn.get("content", turn.get("value"))) for turn in turns]
    return texts


def length_of(sample: Sample) -> int | None:
    """Tokens of a sample, else steps of its signal, else characters of its texts.

    >>> length_of({"input_ids": [5, 6, 7]}), length_of({"text": "four"}), length_of({"label": 3})
    (3, 4, None)
    """
    for name in LENGTH_FIELDS:
        if name in sample:
            return len(sample[name])
    texts = texts_in(sample)
    return sum(map(len, texts)) if texts else None


def lengths_of(view: View) -> Ints:
    """The length of every sample; reads all of them if the lengths are not known.

    Raises:
        DataError: a sample has no length.
    """
    lengths = view.lengths()
    if lengths is not None:
        return lengths
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
