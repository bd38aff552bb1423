# SPDX-License-Identifier: Apache-2.0
"""Leaves samples out: too short, too long, empty, by a pattern, or by a function of the user's; counted by reason.

Before tokenization a length is a number of characters, after it a number of tokens.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.keys import Key, is_count
from fewbit.data.sample import Place
from fewbit.data.source import Source
from fewbit.data.steps._base import Context
from fewbit.data.steps._held import hold
from fewbit.data.steps._lengths import lengths_of
from fewbit.data.steps._rules import Asked, Between, Empty, Found, Rule
from fewbit.data.views import View
from fewbit.record import Record
from fewbit.registry import is_reference


def is_patterns(value: Any) -> bool:
    """Whether a value is patterns by column, each a regular expression.

    >>> is_patterns({"text": "^Q:"}), is_patterns({"text": "("})
    (True, False)
    """
    try:
        return isinstance(value, Mapping) and all(isinstance(n, str) and re.compile(p) for n, p in value.items())
    except (re.error, TypeError):
        return False


def _length(name: str, doc: str) -> Key:
    return Key(name, None, "a whole number from 1 up, or none", lambda value: value is None or is_count(value), doc)


AFTER: tuple[str, ...] = ()
NEEDS: tuple[str, ...] = ()
KEYS = (
    _length("filter_min_length", "samples shorter than this are left out"),
    _length("filter_max_length", "samples longer than this are left out"),
    Key(
        "filter_empty",
        True,
        "true, false or a list of columns",
        lambda value: isinstance(value, bool) or (isinstance(value, list | tuple) and all(map(_is_name, value))),
        "samples with an empty text, no token or nothing to learn are left out; or those empty in some columns",
    ),
    Key(
        "filter_include",
        {},
        "{column: regular expression}",
        is_patterns,
        "samples in which it is not found are left out",
    ),
    Key("filter_exclude", {}, "{column: regular expression}", is_patterns, "samples in which it is found are left out"),
    Key(
        "filter_function",
        None,
        "'file.py:function', or none",
        lambda value: value is None or callable(value) or is_reference(value),
        "called with a sample; false leaves it out",
    ),
)


def apply(source: Source, context: Context) -> Source:
    """The samples that pass every rule.

    Raises:
        UsageError: there is no such function.
    """
    return Filtered(hold(source, context.record), rules(context.options), context.record)


def rules(options: Mapping[str, Any]) -> list[Rule]:
    """The rules that the keys ask for; the first that says something gives the reason."""
    found: list[Rule] = []
    empty = options.get("filter_empty", True)
    if empty:
        found.append(Empty(None if empty is True else tuple(empty)))
    low, high = options.get("filter_min_length"), options.get("filter_max_length")
    if low is not None or high is not None:
        found.append(Between(low or 0, high))
    for key, wanted in (("filter_include", True), ("filter_exclude", False)):
        found += [Found(key, name, pattern, wanted) for name, pattern in (options.get(key) or {}).items()]
    if options.get("filter_function") is not None:
        found.append(Asked(options["filter_function"]))
    return found


class Filtered(View):
    """The samples of a source that pass; which ones is found in the first pass over them.

    Args:
        inner: to be read in any order.
        rules: each says why a sample is left out, or nothing.
        record: gets one line for each reason, with a count and the first places.
    """

    def __init__(self, inner: Source, rules: list[Rule], record: Record):
        super().__init__(inner)
        self._rules, self._record = rules, record
        self._kept: list[int] | None = None

    def __len__(self) -> int:
        return len(self._indices())

    def __iter__(self) -> Iterator[Any]:
        if self._kept is not None:
            yield from super().__iter__()
            return
        kept: list[int] = []
        reasons: Counter[str] = Counter()
        places: dict[str, list[str]] = {}
        for index, sample in enumerate(self.inner):
            reason = next(filter(None, (rule(sample) for rule in self._rules)), None)
            if reason is None:
                kept.append(index)
                yield sample
                continue
            reasons[reason] += 1
            if reasons[reason] <= 3:
                places.setdefault(reason, []).append(str(self._where(sample, index)))
        if self._kept is None:
            self._kept = kept
            for reason, count in sorted(reasons.items()):
                told = f"filtering: {count:,} of {len(kept) + reasons.total():,} samples: {reason}"
                facts = {"by": "filtering", "why": reason, "count": count, "first": places[reason]}
                self._record.note("left-out", told, where=places[reason][0], **facts)

    def get(self, index: int) -> Any:
        """The sample at an index among those that pass."""
        return self.inner.get(self._indices()[index])

    def place(self, index: int) -> Place:
        """Where it comes from."""
        return self.inner.place(self._indices()[index])

    def lengths(self) -> NDArray[np.int64]:
        """Of each sample that passes."""
        return lengths_of(self.inner)[self._indices()]

    def replan(self) -> None:
        """Look again: the samples have changed."""
        if self._kept is not None:
            self._kept, self._record = None, Record("prepare")  # what was told stays told

    def _indices(self) -> list[int]:
        if self._kept is None:
            for _ in self:
                pass
        assert self._kept is not None
        return self._kept

    def _where(self, sample: Any, index: int) -> Place:
        return getattr(sample, "place", None) or self.inner.place(index)


def _is_name(value: Any) -> bool:
    return isinstance(value, str)
