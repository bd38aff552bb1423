# SPDX-License-Identifier: Apache-2.0
"""Steps that choose or change rows: filtering, sampling, mixing, functions of the user."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fewbit.data.loading.views import Context, View, length_of
from fewbit.data.text.content import texts_in
from fewbit.data.text.roles import IGNORED, Ints
from fewbit.data.types import Issue, IssueType, Location, Sample, SampleError, Severity, spread
from fewbit.data.user_code import load_function, user_code
from fewbit.errors import DataError, nearest, plural
from fewbit.rng import generator

if TYPE_CHECKING:
    from fewbit.data.loading.config import CustomConfig

STEP_DROPPED = IssueType(
    "step-dropped", Severity.NOTE, "sample that a preprocessing step leaves out", "nothing, if that is meant", "drop"
)
_NOT_EMPTY = ("text", "prompt", "completion", "messages", "input_ids")
_DRAW, _MIX = 17, 23  # steps draw from separate streams of random numbers


def filter_rows(view: View, context: Context) -> View:
    """Leave samples out by length, emptiness, pattern or function, counted by reason."""
    settings = context.settings
    function = settings.filter_function
    if isinstance(function, str):
        function = load_function(function, param="filter_function")
    remaining = []
    for index, sample in context.preparation.usable(view):
        reason = _reason_to_drop(sample, settings, view.location(index))
        if reason is None and function is not None and not _call(function, sample, index):
            reason = f"{_name(function)} returned false"
        if reason is None:
            remaining.append(index)
        else:
            context.preparation.drop(f"filtering: {reason}", view.location(index))
    return view.select(remaining)


def _reason_to_drop(sample: Sample, settings: CustomConfig, location: Location) -> str | None:
    empty, labels = settings.filter_empty, sample.get("labels")
    for name in empty if isinstance(empty, tuple) else [name for name in _NOT_EMPTY if empty and name in sample]:
        value = _column(sample, name, location)
        if value is None or (hasattr(value, "__len__") and not len(value.strip() if isinstance(value, str) else value)):
            return f"{name} is empty"
    if empty is True and labels is not None and np.ndim(labels) and not np.any(np.asarray(labels) != IGNORED):
        return "nothing in it is learned"
    shortest, longest = settings.filter_min_length, settings.filter_max_length
    if shortest is not None or longest is not None:
        length = length_of(sample)
        if length is None:
            return "it has no length"
        if length < (shortest or 0):
            return f"shorter than {shortest:,}"
        if longest is not None and length > longest:
            return f"longer than {longest:,}"
    for patterns, must_match in ((settings.filter_include, True), (settings.filter_exclude, False)):
        for column, pattern in patterns.items():
            value = _column(sample, column, location)
            text = "\n".join(texts_in({column: value})) if isinstance(value, list | tuple) else str(value)
            if bool(re.search(pattern, text)) is not must_match:
                return f"{column} {'does not match' if must_match else 'matches'} {pattern!r}"
    return None


def sample(view: View, context: Context) -> View:
    """Some of the samples: a count or a share, each class in proportion, or drawn by weight with repeats."""
    settings, total = context.settings, len(view)
    if context.split is not None and context.split not in settings.sampling_splits:
        return view
    count = total if settings.sampling_count is None else settings.sampling_count
    if settings.sampling_share is not None:
        count = round(settings.sampling_share * total)
    if settings.sampling_weights is not None:
        weights = _weights(view, settings)
        context.note(f"sampling: {count:,} samples drawn by weight from {total:,}, with repeats")
        return view.select(np.sort(generator(settings.seed, _DRAW).choice(total, count, p=weights / weights.sum())))
    if count >= total:
        if count > total:
            context.note(f"sampling: {count:,} samples requested, there are {total:,}")
        return view
    context.note(f"sampling: {plural(count, 'sample')} of {total:,}")
    values = None if settings.sampling_by is None else _values(view, settings.sampling_by)
    return view.select(np.sort(spread(values, total, count, settings.seed)))


def _weights(view: View, settings: CustomConfig) -> np.ndarray:
    """How often each sample is drawn: by a column of weights, or by the value of `sampling_by`."""
    setting = settings.sampling_weights
    if settings.sampling_by is None:
        weights = np.array(_values(view, str(setting)), np.float64)
    else:
        values = [str(value) for value in _values(view, settings.sampling_by)]
        names, codes, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
        by_name = setting if isinstance(setting, Mapping) else dict(zip(names.tolist(), 1 / counts))
        missing = [name for name in names.tolist() if name not in by_name]
        if missing:
            raise DataError(
                f"there is no weight for {', '.join(missing[:10])}", code="sampling-weights", param="sampling_weights",
                expected=f"a weight for each value of {settings.sampling_by!r}", hint="add it",
            )  # fmt: skip
        weights = np.array([by_name[name] for name in names.tolist()], np.float64)[codes]
    if not np.all(np.isfinite(weights)) or weights.min(initial=0) < 0 or weights.sum() <= 0:
        raise DataError(
            f"{setting!r} does not give weights", code="sampling-weights", param="sampling_weights",
            expected="numbers from 0 up, not all 0", hint="correct them",
        )  # fmt: skip
    return weights


def _values(view: View, column: str) -> Sequence[Any]:
    """A column of every sample; classes without decoding images, where they are known."""
    strata = view.strata() if column in ("label", "labels", "class") else None
    if strata is not None:
        return strata
    return [_column(view.get(index), column, view.location(index)) for index in range(len(view))]


def mix(view: View, context: Context) -> View:
    """Several datasets as one, drawn by weight for training, one after the other otherwise."""
    settings = context.settings
    views = [view, *(context.open(data) for data in settings.mixing_with)]
    lengths = np.array([len(part) for part in views], np.int64)
    if context.split == "train":
        weights = np.array(settings.mixing_weights or lengths, np.float64)
        dataset, position = interleave(lengths, weights, settings.mixing_stop, settings.seed)
    else:
        dataset = np.repeat(np.arange(len(lengths)), lengths)
        position = np.concatenate([np.arange(length) for length in lengths])
    counts = np.bincount(dataset, minlength=len(views)).tolist()
    context.note(f"mixing: {' + '.join(f'{count:,}' for count in counts)} samples")
    known = [part.lengths for part in views if part.lengths is not None]
    starts = np.cumsum(lengths) - lengths
    token_counts = np.concatenate(known)[starts[dataset] + position] if len(known) == len(views) else None
    return View(MixedSamples(views, dataset, position), lengths=token_counts, varies=any(v.varies for v in views))


@dataclass(frozen=True, eq=False)
class MixedSamples:
    """Samples of several views in one order: from which view each comes, and from which position there."""

    views: Sequence[View]
    dataset: Ints
    position: Ints

    def __len__(self) -> int:
        return len(self.dataset)

    def get(self, index: int, epoch: int = 0) -> Sample:
        return self.views[int(self.dataset[index])].get(int(self.position[index]), epoch)

    def location(self, index: int) -> Location:
        return self.views[int(self.dataset[index])].location(int(self.position[index]))

    def strata(self) -> None:
        """Classes of several datasets need not mean the same."""
        return


def interleave(lengths: Ints, weights: np.ndarray, stop: str, seed: int) -> tuple[Ints, Ints]:
    """Draw a dataset by weight, again and again; each gives its samples in order, and then from its start.

    Args:
        lengths: of the datasets.
        weights: how often each is drawn.
        stop: `first`: when one dataset is exhausted; `all`: when all are.
        seed: of the draw.

    Returns:
        For each sample of the mixed dataset: the index of its source dataset, and its position there.

    >>> dataset, position = interleave(np.array([2, 9]), np.array([1.0, 1.0]), "first", 0)
    >>> position[dataset == 0].tolist()
    [0, 1]
    """
    random, shares = generator(seed, _MIX), weights / weights.sum()
    needed = lengths / shares
    block = int(needed.min() if stop == "first" else needed.max()) + 64
    dataset = np.empty(0, np.int64)
    while True:
        dataset = np.concatenate([dataset, random.choice(len(lengths), block, p=shares)])
        counts = np.cumsum(dataset[:, None] == np.arange(len(lengths)), axis=0)
        exhausted = counts >= lengths
        finished = exhausted.any(axis=1) if stop == "first" else exhausted.all(axis=1)
        if finished.any():
            dataset = dataset[: int(np.argmax(finished)) + 1]
            order = counts[np.arange(len(dataset)), dataset] - 1
            return dataset, order % lengths[dataset]


def apply_function(view: View, reference: str, context: Context) -> View:
    """A step of the user: called with each sample; `None` leaves it out."""
    changed = view.map_by_position(UserStep(load_function(reference, param="preprocessing_steps")))
    return changed.select([index for index, _ in context.preparation.usable(changed)])


@dataclass(frozen=True)
class UserStep:
    """A function of the user that changes one sample."""

    function: Callable[[Sample], Any]

    def __call__(self, sample: Sample, position: int, epoch: int) -> Sample:
        result = _call(self.function, dict(sample), position)
        if result is None:
            raise SampleError(Issue(STEP_DROPPED, f"{_name(self.function)} returned None"))
        if not isinstance(result, Mapping):
            raise DataError(
                f"{_name(self.function)} returned {type(result).__name__}", code="user-step",
                where=f"sample {position}", expected="a dict, or None to leave the sample out",
                hint="return the sample",
            )  # fmt: skip
        return dict(result)


def _call(function: Callable[[Sample], Any], sample: Sample, position: int) -> Any:
    """Call a function of the user; it draws the same random numbers for the same sample in every process."""
    with user_code(_name(function), function, position):
        return function(sample)


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _column(sample: Sample, name: str, location: Location) -> Any:
    if name not in sample:
        raise DataError(
            f"the sample has no column {name!r}", code="no-column", where=str(location),
            expected=", ".join(nearest(name, sample) or sample), hint="correct the name",
        )  # fmt: skip
    return sample[name]
