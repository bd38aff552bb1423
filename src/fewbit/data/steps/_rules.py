# SPDX-License-Identifier: Apache-2.0
"""Rules that say why a sample is left out. Plain data, so that a source with rules can go to another process."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fewbit.data.randomness import Loan
from fewbit.data.steps._base import NOTHING
from fewbit.data.steps._lengths import MEASURED, length_of, texts_of
from fewbit.errors import DataError, FewbitError
from fewbit.registry import load_reference

Rule = Callable[[Mapping[str, Any]], str | None]
"""Says why a sample is left out, or nothing."""


@dataclass(frozen=True)
class Empty:
    """Nothing is in it: in some columns, or, if none are named, in its text, its tokens, or what is learned of it.

    >>> Empty()({"text": " "}), Empty(("answer",))({"text": " ", "answer": "4"})
    ('text is empty', None)
    """

    columns: tuple[str, ...] | None = None

    def __call__(self, sample: Mapping[str, Any]) -> str | None:
        names = self.columns
        if names is None:
            names = tuple(name for name in ("text", "prompt", "answer", "messages", *MEASURED) if name in sample)
        found = next((name for name in names if _is_empty(column(sample, name))), None)
        if found is not None:
            return f"{found} is empty"
        learned = sample.get("labels") if self.columns is None else None
        if learned is not None and not np.any(np.asarray(learned) != NOTHING):
            return "nothing in it is learned"
        return None


@dataclass(frozen=True)
class Between:
    """It is too short or too long."""

    low: int
    high: int | None

    def __call__(self, sample: Mapping[str, Any]) -> str | None:
        length = length_of(sample)
        if length is None:
            return "it has no length"
        if length < self.low:
            return f"shorter than filter_min_length={self.low}"
        return f"longer than filter_max_length={self.high}" if self.high is not None and length > self.high else None


@dataclass(frozen=True)
class Found:
    """A pattern is found in a column and must not be, or the other way round.

    Args:
        key: the key that asks for it.
        name: of the column.
        pattern: a regular expression, looked for anywhere.
        wanted: whether it has to be there.
    """

    key: str
    name: str
    pattern: str
    wanted: bool

    def __call__(self, sample: Mapping[str, Any]) -> str | None:
        value = column(sample, self.name)
        text = "\n".join(texts_of({self.name: value})) if isinstance(value, list | tuple) else str(value)
        return None if bool(re.search(self.pattern, text)) is self.wanted else f"{self.key} of {self.name}"


class Asked:
    """The user's own function says no.

    Args:
        function: itself, or `"file.py:function"`.
    """

    def __init__(self, function: Any):
        self._given = function
        self._function = load_reference(function) if isinstance(function, str) else function

    def __reduce__(self) -> Any:
        return Asked, (self._given,)  # another process finds it by its file

    def __call__(self, sample: Mapping[str, Any]) -> str | None:
        name = getattr(self._function, "__name__", type(self._function).__name__)
        try:
            with Loan().lend():
                return None if self._function(sample) else f"{name} says no"
        except FewbitError:
            raise
        except Exception as error:
            raise DataError(
                f"{name} raised {type(error).__name__}: {error}",
                code="filter-failed",
                where=getattr(sample, "place", None),
                expected="true or false for every sample",
            ) from error


def column(sample: Mapping[str, Any], name: str) -> Any:
    """A field of a sample.

    Raises:
        DataError: it has none of that name.
    """
    if name not in sample:
        raise DataError(
            f"a sample has no column {name!r}",
            code="no-column",
            where=getattr(sample, "place", None),
            expected=", ".join(sample),
        )
    return sample[name]


def _is_empty(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return value is None or (hasattr(value, "__len__") and len(value) == 0)
