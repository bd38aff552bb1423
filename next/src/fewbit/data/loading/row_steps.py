# SPDX-License-Identifier: Apache-2.0
"""Steps that choose samples: filtering, sampling, mixing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fewbit.data.loading.user_step import call_with_sample, name_of
from fewbit.data.loading.views import Context, Selected, View, length_of, lengths_of, texts_in, usable
from fewbit.data.text.roles import IGNORED, Ints
from fewbit.data.types import Location, Sample
from fewbit.data.user_code import load_function
from fewbit.errors import DataError, nearest, plural
from fewbit.rng import generator

if TYPE_CHECKING:
    from fewbit.data.loading.config import CustomConfig


def apply_filtering(view: View, context: Context) -> View:
    """Leave samples out by length, emptiness, pattern or function, counted by reason."""
    settings = context.settings
    function = settings.filter_function
    if isinstance(function, str):
        function = load_function(function, param="filter_function")
    positions = []
    for index, sample in usable(view, context.preparation):
        reason = _reason_to_drop(sample, settings, view.location(index))
        if reason is None and function is not None and not call_with_sample(function, sample, index):
            reason = f"{name_of(function)} returned false"
        if reason is None:
            positions.append(index)
        else:
            context.preparation.drop(f"filtering: {reason}", view.location(index))
    return Selected(view, positions)


def _reason_to_drop(sample: Sample, settings: CustomConfig, location: Location) -> str | None:
    if settings.filter_empty:
        columns = settings.filter_empty if isinstance(settings.filter_empty, tuple) else None
        if (name := _empty_field(sample, columns, location)) is not None:
            return f"{name} is empty"
        labels = sample.get("labels")
        if columns is None and labels is not None and np.ndim(labels) and not np.any(np.asarray(labels) != IGNORED):
            return "nothing in it is learned"
    if settings.filter_min_length is not None or settings.filter_max_length is not None:
        length = length_of(sample)
        if length is None:
            return "it has no length"
        if length < (settings.filter_min_length or 0):
            return f"shorter than {settings.filter_min_length:,}"
        if settings.filter_max_length is not None and length > settings.filter_max_length:
            return f"longer than {settings.filter_max_length:,}"
    for patterns, must_match in ((settings.filter_include, True), (settings.filter_exclude, False)):
        for column, pattern in patterns.items():
            value = _column(sample, column, location)
            text = "\n".join(texts_in({column: value})) if isinstance(value, list | tuple) else str(value)
            if bool(re.search(pattern, text)) is not must_match:
                return f"{column} {'does not match' if must_match else 'matches'} {pattern!r}"
    return None


def _empty_field(sample: Sample, columns: Sequence[str] | None, location: Location) -> str | None:
    if columns is None:
        columns = [name for name in ("text", "prompt", "completion", "messages", "input_ids") if name in sample]
    for name in columns:
        value = _column(sample, name, location)
        if (
            value is None
            or (isinstance(value, str) and not value.strip())
            or (hasattr(value, "__len__") and not len(value))
        ):
            return name
    return None


def apply_sampling(view: View, context: Context) -> View:
    """Some of the samples: a count or a share, each class in proportion, or drawn by weight with repeats."""
    settings = context.settings
    if context.split is not None and context.split not in settings.sampling_splits:
        return view
    total, random = len(view), generator(settings.seed, 17)
    count = total if settings.sampling_count is None else settings.sampling_count
    if settings.sampling_share is not None:
        count = round(settings.sampling_share * total)
    if settings.sampling_weights is not None:
        weights = _weights(view, settings)
        ends = np.cumsum(weights)
        positions = np.sort(np.searchsorted(ends, random.random(count) * ends[-1], side="right"))
        context.preparation.notes.append(f"sampling: {count:,} samples drawn by weight from {total:,}, with repeats")
        return Selected(view, positions)
    if count >= total:
        if count > total:
            context.preparation.notes.append(f"sampling: {count:,} samples requested, there are {total:,}")
        return view
    values = None if settings.sampling_by is None else _values(view, settings.sampling_by)
    positions = np.sort(random.permutation(total)[:count]) if values is None else stratified(values, count, random)
    context.preparation.notes.append(f"sampling: {plural(count, 'sample')} of {total:,}")
    return Selected(view, positions)


def stratified(values: Sequence[Any], count: int, random: np.random.Generator) -> Ints:
    """Positions of so many samples, each value in proportion; the largest remainders are rounded up.

    >>> values = list("aaaaaabbbc")
    >>> "".join(values[position] for position in stratified(values, 5, np.random.default_rng(0)))
    'aaabb'
    """
    _, codes, sizes = np.unique(np.asarray([str(value) for value in values]), return_inverse=True, return_counts=True)
    exact = sizes * count / max(1, len(values))
    quotas = np.floor(exact).astype(np.int64)
    quotas[np.argsort(quotas - exact, kind="stable")[: count - int(quotas.sum())]] += 1
    order = np.lexsort((random.random(len(values)), codes))
    starts = np.cumsum(sizes) - sizes
    return np.sort(np.concatenate([order[start : start + quota] for start, quota in zip(starts, quotas)]))


def _weights(view: View, settings: CustomConfig) -> np.ndarray:
    setting = settings.sampling_weights
    if isinstance(setting, str) and setting != "balanced":
        weights = np.array(_values(view, setting), np.float64)
        if not np.all(np.isfinite(weights)) or weights.min(initial=0) < 0 or weights.sum() <= 0:
            raise DataError(
                f"column {setting!r} does not hold weights", code="sampling-weights", param="sampling_weights",
                expected="numbers from 0 up, not all 0", hint="correct the column",
            )  # fmt: skip
        return weights
    assert settings.sampling_by is not None
    values = [str(value) for value in _values(view, settings.sampling_by)]
    names, codes, sizes = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    if not isinstance(setting, Mapping):
        return np.asarray((1 / sizes)[codes])
    missing = [name for name in names.tolist() if name not in setting]
    if missing:
        raise DataError(
            f"there is no weight for {', '.join(missing[:10])}", code="sampling-weights", param="sampling_weights",
            expected=f"a weight for each value of {settings.sampling_by!r}", hint="add it",
        )  # fmt: skip
    return np.array([setting[name] for name in names.tolist()])[codes]


def _values(view: View, column: str) -> Sequence[Any]:
    """A column of every sample; classes without decoding images, where they are known."""
    if column in ("label", "labels", "class") and (strata := view.strata()) is not None:
        return strata
    return [_column(view.get(index), column, view.location(index)) for index in range(len(view))]


def apply_mixing(view: View, context: Context) -> View:
    """Several datasets as one, drawn by weight for training, one after the other otherwise."""
    settings = context.settings
    views = [view, *(context.open(data) for data in settings.mixing_with)]
    lengths = np.array([len(source) for source in views], np.int64)
    if not lengths.all():
        number = int(np.flatnonzero(lengths == 0)[0])
        name = "the dataset itself" if number == 0 else str(settings.mixing_with[number - 1])[:80]
        raise DataError(
            f"there is nothing to mix in {name}", code="no-samples", param="mixing_with", expected="samples",
            hint="leave it out",
        )  # fmt: skip
    if context.training:
        weights = np.array(settings.mixing_weights or lengths, np.float64)
        view_index, position = interleave(lengths, weights, settings.mixing_stop, settings.seed)
    else:
        view_index = np.repeat(np.arange(len(lengths)), lengths)
        position = np.concatenate([np.arange(length) for length in lengths])
    shares = np.bincount(view_index, minlength=len(views)).tolist()
    context.preparation.notes.append(f"mixing: {' + '.join(f'{share:,}' for share in shares)} samples")
    return Mixed(views, view_index, position)


class Mixed(View):
    """Samples of several views in one order."""

    def __init__(self, views: Sequence[View], view_index: Ints, position: Ints):
        super().__init__(views[0])
        self._views, self._view_index, self._position = views, view_index, position

    @property
    def varies(self) -> bool:
        """Whether samples differ from epoch to epoch."""
        return any(view.varies for view in self._views)

    def __len__(self) -> int:
        return len(self._view_index)

    def get(self, index: int, epoch: int = 0) -> Sample:
        """One sample of the mixed dataset."""
        return self._views[int(self._view_index[index])].get(int(self._position[index]), epoch)

    def location(self, index: int) -> Location:
        """Where a sample comes from."""
        return self._views[int(self._view_index[index])].location(int(self._position[index]))

    def lengths(self) -> Ints | None:
        """Length of each sample of the mixed dataset."""
        lengths = [lengths_of(view) for view in self._views]
        starts = np.cumsum([0, *(len(values) for values in lengths[:-1])])
        return np.concatenate(lengths)[starts[self._view_index] + self._position]

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
    >>> len(dataset), position[dataset == 0].tolist()
    (3, [0, 1])
    """
    random = generator(seed, 23)
    ends = np.cumsum(weights) / weights.sum()
    expected = lengths * weights.sum() / weights
    block = int(expected.min() if stop == "first" else expected.max()) + 64
    dataset = np.empty(0, np.int64)
    while True:
        draws = np.searchsorted(ends, random.random(block), side="right")
        dataset = np.concatenate([dataset, np.minimum(draws, len(lengths) - 1)])
        draws_of = [np.flatnonzero(dataset == number) for number in range(len(lengths))]
        finished = [int(drawn[length - 1]) for drawn, length in zip(draws_of, lengths) if len(drawn) >= length]
        if finished and (stop == "first" or len(finished) == len(lengths)):
            last = min(finished) if stop == "first" else max(finished)
            break
    position = np.empty(len(dataset), np.int64)
    for drawn, length in zip(draws_of, lengths):
        position[drawn] = np.arange(len(drawn)) % length
    return dataset[: last + 1], position[: last + 1]


def _column(sample: Sample, name: str, location: Location) -> Any:
    if name not in sample:
        raise DataError(
            f"the sample has no column {name!r}", code="no-column", where=str(location),
            expected=", ".join(nearest(name, sample) or sample), hint="correct the name",
        )  # fmt: skip
    return sample[name]
