# SPDX-License-Identifier: Apache-2.0
"""Which rows are for learning and which for judging: never the same, and never two equal rows on both sides."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from fewbit.data.sample import Place
from fewbit.data.source import Source, known_length
from fewbit.data.split_names import FILE_WORDS
from fewbit.data.views import View
from fewbit.errors import DataError, UsageError, nearest

VALIDATION = "validation"
_SORTED = orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
Opener = Callable[[str | None], Source]


def split_of(opened: Opener, wanted: str | None, names: Mapping[str, str], options: Mapping[str, Any]) -> Source:
    """The rows of one split.

    `"validation"` is what the files call so; where they do not, it is cut from those to learn from, which then have
    the rest. A split that the files call `test` is nobody's validation unless somebody says so.

    Args:
        opened: opens one split by the files' name, or everything.
        wanted: `"train"`, `"validation"`, or a name of the files' own; none for everything.
        names: what the files are known to call the two.
        options: `train_split`, `validation_split`, `validation_ratio` and `seed` are read.

    Raises:
        UsageError: there is no such split.
    """
    whole = opened(None)
    if wanted is None:
        return whole
    there = list(whole.facts.get("splits") or {})
    named = len([name for name in there if name not in ("all", "unsplit")]) > 0
    train = _own(there, options["train_split"], names.get("train"), "train", "train_split")
    judge = _own(there, options["validation_split"], names.get(VALIDATION), VALIDATION, "validation_split")
    if wanted not in ("train", *_WORDS):
        own = _find(there, wanted)
        if own is None:
            raise UsageError(f"there is no split {wanted!r}", expected=nearest(wanted, [*there, "train", VALIDATION]))
        return opened(own)
    if judge is not None and judge != train:
        if wanted in _WORDS:
            return opened(judge)
        if train is None:
            raise UsageError(
                f"nothing is there to learn from but {', '.join(there)}",
                where="custom_config['train_split']",
                expected="a split that is not the one to judge by",
            )
        return opened(train)
    if train is None and named and len(there) > 1:
        raise UsageError(
            f"the files have the splits {', '.join(there)}, none of them to learn from",
            expected="custom_config={'train_split': …}",
        )
    rows = whole if train is None or len(there) == 1 else opened(train)
    return cut(rows, wanted in _WORDS, options["validation_ratio"], options["seed"])


_WORDS = tuple(word for word, means in FILE_WORDS.items() if means == "val")


def cut(rows: Source, judged: bool, ratio: float, seed: int) -> Source:
    """One of the two parts of rows that say nothing about splits.

    Args:
        rows: all of them.
        judged: whether it is the part to judge by.
        ratio: how much of them that is.
        seed: decides which.

    Raises:
        UsageError: nothing is to be cut off.
    """
    if ratio == 0 or ratio == 1:
        if judged == (ratio == 0):
            raise UsageError(
                f"validation_ratio={ratio}, and the files have no split of their own",
                where="custom_config['validation_ratio']",
                expected="a number between 0 and 1, such as 0.1",
            )
        return rows
    return Cut(rows, judged, ratio, seed)


class Cut(View):
    """The rows of one side. Equal rows are on the same side; which, the seed and their content decide."""

    def __init__(self, inner: Source, judged: bool, ratio: float, seed: int):
        super().__init__(inner)
        self._judged, self._ratio, self._seed = judged, ratio, seed
        self._sides: NDArray[np.bool_] | None = None
        self._chosen: NDArray[np.int64] | None = None
        side = f"{ratio:.0%} of the rows, chosen by the seed {seed}, are to judge by, the rest to learn from"
        inner.record.note("split-cut", f"the files have no split of their own for it: {side}", ratio=ratio, seed=seed)

    def __iter__(self) -> Iterator[Any]:
        if known_length(self.inner) is None:
            limit = int(self._ratio * 2**64)
            yield from (row for row in self.inner if (_draw(row, self._seed) < limit) == self._judged)
            return
        sides = self._side_of()
        yield from (row for row, judged in zip(self.inner, sides) if judged == self._judged)

    def __len__(self) -> int:
        len(self.inner)  # a stream does not know
        return len(self._indices())

    def get(self, index: int) -> Any:
        """The row at an index of this side."""
        return self.inner.get(int(self._indices()[index]))

    def place(self, index: int) -> Place:
        """Where it comes from."""
        return self.inner.place(int(self._indices()[index]))

    def _indices(self) -> NDArray[np.int64]:
        if self._chosen is None:
            self._chosen = np.flatnonzero(self._side_of() == self._judged)
        return self._chosen

    def _side_of(self) -> NDArray[np.bool_]:
        if self._sides is None:
            self._sides = sides(self._draws(), self._ratio)
            if not self._sides.any() or self._sides.all():
                raise DataError(
                    f"{len(self._sides):,} rows, equal ones together, cannot be cut in two",
                    code="too-few-rows",
                    expected="two different rows at least",
                    try_="custom_config={'validation_ratio': 0} learns from all of them",
                )
        return self._sides

    def _draws(self) -> NDArray[np.uint64]:
        first = next(iter(self.inner), None)
        if not isinstance(first, Mapping) or any(hasattr(value, "__array__") for value in first.values()):
            # Pictures would all have to be decoded to be compared.
            return np.array([_draw(number, self._seed) for number in range(len(self.inner))], np.uint64)
        return np.fromiter((_draw(row, self._seed) for row in self.inner), np.uint64)


def sides(draws: NDArray[np.uint64], ratio: float) -> NDArray[np.bool_]:
    """Who is to be judged by: those with the lowest draws, so many that their share is just reached.

    >>> sides(np.array([5, 1, 9, 1], np.uint64), 0.25).tolist()
    [False, True, False, True]
    """
    values, counts = np.unique(draws, return_counts=True)
    wanted = max(1, round(ratio * len(draws)))
    groups = int(np.searchsorted(np.cumsum(counts), wanted)) + 1
    return np.isin(draws, values[: min(groups, max(1, len(values) - 1))]) if len(values) > 1 else draws < 0


def _draw(row: Any, seed: int) -> int:
    """A number of 64 bits that depends on a row's content and the seed alone."""
    try:
        content = orjson.dumps(dict(row) if isinstance(row, Mapping) else row, option=_SORTED, default=repr)
    except TypeError:  # numbers beyond 64 bits, halves of characters
        content = repr(sorted(row.items()) if isinstance(row, Mapping) else row).encode(errors="replace")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8, key=str(seed).encode()).digest(), "little")


def _own(there: Iterable[str], said: str | None, usual: str | None, word: str, key: str) -> str | None:
    """What the files call a split."""
    there = list(there)
    if said is not None:
        found = _find(there, said)
        if found is None:
            raise UsageError(f"{key}={said!r}: there is no such split", expected=nearest(said, there))
        return found
    return next((found for name in (word, usual) if name and (found := _find(there, name))), None)


def _find(there: Iterable[str], name: str) -> str | None:
    """A split by its name, or by another word for the same."""
    there = list(there)
    if name in there:
        return name
    means = FILE_WORDS.get(name.lower())
    return next((own for own in there if means and FILE_WORDS.get(own.lower()) == means), None)
