# SPDX-License-Identifier: Apache-2.0
"""Classes that have names: found in the rows to learn from, known, or said; numbered alike in every split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fewbit.data.preparing.known_classes import renumbered
from fewbit.data.sample import Sample
from fewbit.data.tables.labels import BadLabel, Labels, plain_label
from fewbit.errors import DataError, UsageError

OUTSIDE = "O"
"""What taggers call a word that is of no name; it is class 0."""

_FEW = 50
"""So many classes may be as many as there are rows."""

Rows = Callable[[], Iterable[Mapping[str, Any]]]


@dataclass(frozen=True)
class AsItIs:
    """Reads a row as it is, and leaves none out: of pictures none has to be decoded to be counted.

    Args:
        renamed: columns under other names, by the new ones.

    >>> AsItIs({"label": "breed"})({"image": 0, "breed": 3})
    {'image': 0, 'label': 3}
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    drops = False

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a row."""
        old = self.renamed.values()
        kept = {name: value for name, value in row.items() if name not in old}
        return kept | {new: row[column] for new, column in self.renamed.items()}


@dataclass(frozen=True)
class Numbered:
    """Reads a row whose classes have names.

    Args:
        read: reads a row whose classes are numbers.
        column: where the class is, or a list of them.
        labels: the number of each name.
    """

    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    column: str
    labels: Labels

    @property
    def drops(self) -> bool:
        """Whether it may leave a row out."""
        return bool(getattr(self.read, "drops", True))

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a row.

        Raises:
            DataError: its class is none of those.
        """
        found = row.get(self.column)
        try:
            number: Any = self.labels.encode(found.tolist() if isinstance(found, np.ndarray | np.generic) else found)
        except BadLabel as error:
            known = ", ".join(self.labels.classes[:10])
            raise DataError(f"{self.column!r} is {found!r}, none of the classes {known}", code=error.code) from None
        number = np.array(number, found.dtype) if isinstance(found, np.ndarray) else number
        return self.read(Sample({**row, self.column: number}, place=getattr(row, "place", None)))


def numbered(
    read: Callable[[Mapping[str, Any]], dict[str, Any]],
    column: str,
    first: Sequence[Mapping[str, Any]],
    learned: Rows | None,
    said: Sequence[Any] | None,
    known: Sequence[str] | None = None,
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """What reads rows, whether their classes are numbers or names.

    Args:
        read: reads rows whose classes are numbers.
        column: where the class of a row is.
        first: the first rows.
        learned: all rows to learn from; none where reading them would not end.
        said: the user's own word about the names, in the order of their numbers.
        known: what the data calls the numbers in its rows, if it says.

    Raises:
        UsageError: names that nobody can number.
    """
    name = next((each for row in first for each in _names(row.get(column))), None)
    if known is not None and name is None:
        return Numbered(read, column, renumbered(list(known), None if said is None else list(map(str, said)), column))
    if said is not None:
        return Numbered(read, column, _said(list(map(str, said)), named=name is not None))
    if name is None:
        return read
    if learned is None:
        raise UsageError(
            f"the classes in {column!r} are names, such as {name!r}, and not all of them can be read in advance",
            where="custom_config['classes']",
            expected="the names, in the order of their numbers",
            try_=f"custom_config={{'classes': [{name!r}, …]}}, or numbers from 0 up in {column!r}",
        )
    count, values = 0, set()
    for row in learned():
        count += 1
        values |= set(_plain(row.get(column)))
    if len(values) > max(_FEW, count // 2):
        raise UsageError(
            f"{column!r} has {len(values):,} different texts in {count:,} rows: is it an answer, and no class?",
            where="custom_config['columns']",
            expected="few names that stand in many rows",
            try_=f"custom_config={{'columns': {{'prompt': …, 'answer': {column!r}}}}} (--data-option) learns to say it",
        )
    found = Labels.of(values)
    order = sorted(found.classes, key=lambda each: (each != OUTSIDE, each))
    return Numbered(read, column, Labels(tuple(order), {v: order.index(str(v)) for v in found.numbers}, found.remarks))


def _said(names: list[str], *, named: bool) -> Labels:
    """Labels whose names somebody says: of names in the data, or of numbers, which stay what they are."""
    values = [plain_label(name) for name in names]
    if not named and not all(isinstance(value, int) for value in values):
        values = list(range(len(names)))
    return Labels(tuple(names), {value: number for number, value in enumerate(values)})


def _names(value: Any) -> Iterator[str]:
    """The names in a value: what is no number, and not nothing."""
    yield from (each for each in _plain(value) if isinstance(each, str))


def _plain(value: Any) -> Iterator[Any]:
    for each in value if isinstance(value, list) else [value]:
        try:
            found = plain_label(each)
        except BadLabel:
            continue  # the row that has it is told about when it is read
        if found is not None:
            yield found
