# SPDX-License-Identifier: Apache-2.0
"""Several datasets as one, drawn by weights; what is not for training is put together instead, each sample once.

    custom_config={"mixing_with": ["more.jsonl", "chats.jsonl"], "mixing_weights": [3, 1, 1], "mixing_stop": "all"}

The first weight is that of the dataset itself. Others are what `generate_dataset_config` takes as a name, or a
configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.keys import Key
from fewbit.data.opening import open_source
from fewbit.data.sample import Place
from fewbit.data.source import Source
from fewbit.data.steps._base import Context
from fewbit.data.steps._held import hold
from fewbit.data.steps._lengths import lengths_of
from fewbit.errors import DataError, UsageError
from fewbit.record import Record

STOPS = ("first", "all")

AFTER: tuple[str, ...] = ()
NEEDS: tuple[str, ...] = ()
KEYS = (
    Key(
        "mixing_with",
        (),
        "a list of paths, names or configurations",
        lambda v: isinstance(v, list | tuple),
        "the others",
    ),
    Key(
        "mixing_weights",
        None,
        "a list of numbers above 0, the dataset's own first; or none",
        lambda value: value is None or (isinstance(value, list | tuple) and all(map(_is_weight, value))),
        "how often each is drawn from; none: as often as it has samples",
    ),
    Key(
        "mixing_stop",
        "first",
        f"one of {', '.join(STOPS)}",
        lambda value: value in STOPS,
        "end when the first of them is through, or when all are, the others starting again",
    ),
)


def _is_weight(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def faults(options: Mapping[str, Any]) -> list[str]:
    """Keys that contradict one another, one line each."""
    others, weights = options.get("mixing_with") or (), options.get("mixing_weights")
    found = [] if others else ["mixing_with: expected at least one dataset to mix with"]
    if weights is not None and others and len(weights) != len(others) + 1:
        found.append(f"mixing_weights: {len(weights)} weights for {len(others) + 1} datasets, its own included")
    return found


def apply(source: Source, context: Context) -> Source:
    """The datasets as one.

    Raises:
        UsageError: keys that contradict one another; a dataset that does not open.
        DataError: a dataset without samples.
    """
    wrong = faults(context.options)
    if wrong:
        raise UsageError("; ".join(wrong), where="mixing")
    others = context.options["mixing_with"]
    parts = [hold(part, context.record) for part in (source, *map(context.open or open_source, others))]
    names = ["the dataset itself", *map(_name, others)]
    empty = [name for name, part in zip(names, parts) if not len(part)]
    if empty:
        raise DataError(
            f"nothing is in {', '.join(empty)}", where=f"split {context.split!r}", expected="samples to mix"
        )
    return Mixed(parts, names, context)


class Mixed(Source):
    """Samples of several sources in one order that the seed decides.

    Args:
        parts: read in any order, none empty.
        names: of the parts, for the record.
        context: `mixing_weights`, `mixing_stop`, the split and the seed.
    """

    def __init__(self, parts: Sequence[Source], names: Sequence[str], context: Context):
        super().__init__()
        self.parts = list(parts)
        self.batched = parts[0].batched
        self.targets = frozenset().union(*(part.targets for part in parts))
        self.facts, self.record = parts[0].facts, parts[0].record
        self._names, self._options, self._seed = names, context.options, context.seed
        self._training, self._record = context.split == "train", context.record
        self._made: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self._plan()[0])

    def get(self, index: int) -> Any:
        """The sample at an index of the mixture."""
        part, inside = self._plan()
        return self.parts[int(part[index])].get(int(inside[index]))

    def place(self, index: int) -> Place:
        """Where it comes from."""
        part, inside = self._plan()
        return self.parts[int(part[index])].place(int(inside[index]))

    def lengths(self) -> NDArray[np.int64]:
        """Of each sample of the mixture; a sample that comes twice is read once."""
        part, inside = self._plan()
        each = [lengths_of(source) for source in self.parts]
        starts = np.cumsum([0, *(len(lengths) for lengths in each[:-1])])
        return np.concatenate(each)[starts[part] + inside]

    def replan(self) -> None:
        """Mix again: a part has changed."""
        if self._made is not None:
            self._made, self._record = None, Record("prepare")  # what was told stays told

    def _plan(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self._made is None:
            options, lengths = self._options, np.array([len(part) for part in self.parts])
            if self._training:
                weights = np.array(options.get("mixing_weights") or lengths, np.float64)
                self._made = interleave(lengths, weights, options.get("mixing_stop", "first"), self._seed)
            else:
                self._made = np.repeat(np.arange(len(lengths)), lengths), np.concatenate([*map(np.arange, lengths)])
            self._tell(lengths)
        return self._made

    def _tell(self, lengths: NDArray[np.int64]) -> None:
        assert self._made is not None
        given = np.bincount(self._made[0], minlength=len(lengths))
        for part in self.parts[1:]:  # what was dropped or repaired in the others is told here too
            if part.record is not self._record and part.record is not self.record:
                self._record.lines += part.record.lines
        for name, times, length in zip(self._names, given.tolist(), lengths.tolist()):
            reason = f"mixing: {times:,} samples from {name}, which has {length:,}"
            self._record.note("mixed", reason, where=name, count=times, of=length)


def interleave(
    lengths: NDArray[np.int64], weights: NDArray[np.float64], stop: str, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw a part by weight, again and again; each gives its samples in order and then from the start.

    Returns:
        For each sample of the mixture its part, and its index there.

    >>> part, inside = interleave(np.array([2, 9]), np.array([1.0, 1.0]), "first", seed=0)
    >>> part.tolist(), inside.tolist()
    ([1, 0, 0], [0, 0, 1])
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    ends = np.cumsum(weights) / weights.sum()
    expected = lengths * weights.sum() / weights
    several = int(expected.min() if stop == "first" else expected.max()) + 64
    part = np.empty(0, np.int64)
    while True:
        more = np.searchsorted(ends, rng.random(several), side="right")
        part = np.concatenate([part, np.minimum(more, len(lengths) - 1)])
        given = [np.flatnonzero(part == number) for number in range(len(lengths))]
        through = [int(at[n - 1]) if len(at) >= n else None for at, n in zip(given, lengths)]
        known = [at for at in through if at is not None]
        if known and (stop == "first" or len(known) == len(lengths)):
            last = min(known) if stop == "first" else max(known)
            break
    inside = np.empty(len(part), np.int64)
    for at, length in zip(given, lengths):
        inside[at] = np.arange(len(at)) % length
    return part[: last + 1], inside[: last + 1]


def _name(other: Any) -> str:
    if isinstance(other, Mapping):
        return str(other.get("dataset_name") or other.get("name") or other.get("path"))
    return str(getattr(other, "name", other))[:80]
