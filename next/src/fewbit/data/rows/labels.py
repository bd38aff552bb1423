# SPDX-License-Identifier: Apache-2.0
"""The label column of a table: its values are tallied once per split, then numbered as classes.

Names get numbers by their sorted order in train; integers that are 0 … n-1 keep theirs. `-1`, null, NaN and empty text
mean that there is no label, and become -1. A list is a row with several labels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from fewbit.data.rows.check import Tally
from fewbit.data.rows.table import Numbers, Table, field_location
from fewbit.data.rows.text import row_error
from fewbit.data.types import DataReport, IssueType, Location, Severity
from fewbit.errors import plural

UNLABELED = -1
MOST_VALUES = 1 << 16
"""Different values that are remembered; a column with more holds no classes."""
LEAST_ANSWERS = 50
"""A column with more different texts than this, and than half of the rows, holds answers, not classes."""
_SEVERAL, _OTHER = -2, -3
"""Codes of lists, and of values that cannot be remembered."""
_WHOLE_NUMBER = re.compile(r"\+?(-?(?:0|[1-9][0-9]{0,17}))(?:\.0*)?")
_FRACTION = re.compile(r"[+-]?[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?|[+-]?[0-9]+(?:\.[0-9]*)?[eE][+-]?[0-9]+")
_SIGNS = {-1, 1}
"""Labels among which -1 is a class."""

BAD_LABEL = row_error(
    "bad-label", "value that cannot be a class",
    "write names or integers; if it is a number to predict, {data_option=label_type=number}",
)  # fmt: skip
UNSEEN_LABEL = row_error(
    "unseen-label", "label that train does not have", "move such rows to train, or remove them"
)  # fmt: skip
UNLABELED_ROWS = IssueType(
    "unlabeled", Severity.WARNING, "rows without a label, whose label is -1",
    "label them, or leave them out: {on_error=unlabeled=drop}", by_code=("drop",), aliases=("missing-label",),
)  # fmt: skip
LABELS_ALIKE = IssueType(
    "labels-alike", Severity.WARNING, "labels that differ only in case or surrounding spaces",
    "write them the same way if they mean the same",
)  # fmt: skip
LABELS_MIXED = IssueType(
    "labels-mixed", Severity.WARNING, "labels of different types, compared as text",
    "write all labels with the same type",
)  # fmt: skip
LABELS_REMAPPED = IssueType(
    "labels-remapped", Severity.WARNING, "labels that are not 0 … n-1 and get new numbers",
    "give the model's order: {data_option=classes=…}",
)  # fmt: skip
NO_LABEL = IssueType("no-label", Severity.ERROR, "no column that holds labels", "name it: {label_column=…}", "raise")
ISSUES = (BAD_LABEL, UNSEEN_LABEL, UNLABELED_ROWS, LABELS_ALIKE, LABELS_MIXED, LABELS_REMAPPED, NO_LABEL)


class LabelError(ValueError):
    """A value that is no class."""

    def __init__(self, kind: IssueType, message: str):
        super().__init__(message)
        self.kind = kind


def plain_label(value: Any) -> int | str | None:
    """A label in its plain form: `2.0`, `"2"` and `"2.0"` are 2, NaN and `""` are `None`, names stay.

    Raises:
        LabelError: the value cannot be a class.

    >>> [plain_label(value) for value in (2.0, "2", "2.0", "+1", "007", " ", "NaN", True, float("nan"))]
    [2, 2, 2, 1, '007', None, None, 1, None]
    """
    match value:
        case None | "":
            return None
        case int():
            return int(value)
        case float() if math.isnan(value):
            return None
        case float() if value.is_integer():
            return int(value)
        case float():
            raise LabelError(BAD_LABEL, f"{value!r} is not an integer")
        case str():
            bare = value.strip()
            if not bare or bare in ("NaN", "nan"):
                return None
            whole = _WHOLE_NUMBER.fullmatch(bare)
            return int(whole[1]) if whole else value
        case np.generic() if not isinstance(value.item(), np.generic):
            return plain_label(value.item())
    raise LabelError(BAD_LABEL, f"a label cannot be {type(value).__name__}")


def number_label(value: Any) -> float | None:
    """A number to predict; `None` if there is none.

    Raises:
        LabelError: the value is not a finite number.

    >>> [number_label(value) for value in (2, "0.5", "", None)]
    [2.0, 0.5, None, None]
    """
    try:
        is_missing = value is None or (isinstance(value, str) and not value.strip())
        number = float("nan" if is_missing else value)
    except (TypeError, ValueError, OverflowError):
        raise LabelError(BAD_LABEL, f"{str(value)[:40]!r} is not a number") from None
    if math.isinf(number):
        raise LabelError(BAD_LABEL, f"{number} is not a finite number")
    return None if math.isnan(number) else number


@dataclass(frozen=True)
class Labels:
    """Numbers of classes."""

    classes: tuple[str, ...]  # the name of each class
    numbers: Mapping[int | str, int] = field(repr=False)  # the number of each plain label

    def encode(self, value: Any) -> int | list[int]:
        """The class number of a value, or the numbers of a list.

        Raises:
            LabelError: the value cannot be a class, or train does not have it.
        """
        if isinstance(value, list | tuple):
            return [self._number(item) for item in value]
        return self._number(value)

    def name(self, value: Any) -> str | None:
        """The class of a value; `None` if it has none, or several."""
        try:
            number = self.encode(value)
        except LabelError:
            return None
        return self.classes[number] if isinstance(number, int) and number >= 0 else None

    def _number(self, value: Any) -> int:
        label = plain_label(value)
        if label is None or (label == UNLABELED and label not in self.numbers):
            return UNLABELED
        for key in (label, str(label)):
            if key in self.numbers:
                return self.numbers[key]
        count = plural(len(self.classes), "class")
        raise LabelError(UNSEEN_LABEL, f"label {str(value)[:60]!r} is none of the {count} of train")


def given_classes(names: Sequence[str]) -> Labels:
    """Classes in the order the user gave; numbers in the data are positions in it, unless they are names."""
    positions: dict[Any, int] = {number: number for number in range(len(names))}
    return Labels(tuple(names), positions | {plain_label(name): number for number, name in enumerate(names)})


def number_classes(values: Iterable[Any], first: str | None = None) -> tuple[Labels, list[tuple[IssueType, str]]]:
    """The classes of some values, and what a user should know about them.

    Args:
        values: of train.
        first: the class that gets number 0 if it is there; `O` of token tags.

    >>> number_classes(["spam", "ham", "spam", None])[0].classes
    ('ham', 'spam')
    >>> number_classes(["1", "2"])[1][0][1]
    'labels 1, 2 become 0 … 1'
    """
    plain: set[int | str] = set()
    for value in values:
        try:
            label = plain_label(value)
        except LabelError:
            continue  # reported with its row
        if label is not None:
            plain.add(label)
    if plain != _SIGNS:
        plain.discard(UNLABELED)
    types = sorted({type(label).__name__ for label in plain})
    if types in ([], ["int"]):
        ordered: list[Any] = sorted(plain)
        classes = tuple(map(str, ordered))
        labels = Labels(classes, {label: number for number, label in enumerate(ordered)})
        if ordered == list(range(len(ordered))):
            return labels, []
        listed = ", ".join(classes[:5]) + (", …" if len(classes) > 5 else "")
        return labels, [(LABELS_REMAPPED, f"labels {listed} become 0 … {len(classes) - 1}")]
    names = sorted(set(map(str, plain)), key=lambda name: (name != first, name))
    numbers: dict[Any, int] = {name: number for number, name in enumerate(names)}
    variants: dict[str, list[str]] = {}
    for name in names:
        variants.setdefault(name.strip().casefold(), []).append(repr(name))
    remarks = [
        (LABELS_ALIKE, f"{' and '.join(group)} are different classes") for group in variants.values() if len(group) > 1
    ]
    if len(types) > 1:
        remarks.append((LABELS_MIXED, f"labels are {' and '.join(types)}"))
    return Labels(tuple(names), numbers | {label: numbers[str(label)] for label in plain}), remarks


class LabelColumn:
    """Tallies the values of a label column."""

    def __init__(self, column: str, *, numbers: bool = False, tags: bool = False):
        self.column, self.numbers, self.tags = column, numbers, tags
        self.values: list[Any] = []  # different ones, in order of appearance
        self.codes = Numbers()  # of each row
        self._code_of: dict[Any, int] = {}
        self._missing: set[int] = set()  # codes that mean there is no label
        self._tallies: dict[str | None, dict[int, Tally]] = {}
        self._overflow = False
        self._fractions = False  # values are numbers, not all of them integers

    def add(self, positions: np.ndarray, split: str | None, values: Sequence[Any]) -> np.ndarray:
        """Take in the labels of some rows of one split; returns their codes."""
        try:
            codes = np.array([self._code_of[value] for value in values], np.int64)
        except (KeyError, TypeError):
            codes = np.array([self._code(value, several=True) for value in values], np.int64)
        tallies = self._tallies.setdefault(split, {})
        order = np.argsort(codes, kind="stable")
        for where in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
            code = int(codes[where[0]])
            if code == _SEVERAL:
                for row in where.tolist():
                    for item in values[row]:
                        tallies.setdefault(self._code(item), Tally()).add([int(positions[row])])
            else:
                tallies.setdefault(code, Tally()).add(positions[where])
        return codes

    def _code(self, value: Any, *, several: bool = False) -> int:
        if several and isinstance(value, list):
            return _SEVERAL
        value = None if value != value else value
        try:
            code = self._code_of.get(value)
        except TypeError:
            return _OTHER
        if code is None:
            if len(self.values) >= MOST_VALUES:
                self._overflow = True
                return _OTHER
            code = self._code_of[value] = len(self.values)
            self.values.append(value)
            self._missing |= {code} if self._is_missing(value) else set()
        return code

    def _is_missing(self, value: Any) -> bool:
        try:
            label = number_label(value) if self.numbers else plain_label(value)
        except LabelError:
            return False
        return label is None or (label == UNLABELED and not self.numbers)

    def number(self, class_names: Sequence[str] | None, report: DataReport) -> Labels | None:
        """The classes; `None` if the column holds numbers to predict, or answers."""
        if self.numbers:
            return None
        if class_names:
            return self._without_signs(given_classes(class_names))
        train = self._tallies.get("train")
        values = [self.values[code] for code in train if code >= 0] if train is not None else self.values
        rows = sum(tally.count for tallies in self._tallies.values() for tally in tallies.values())
        texts = sum(isinstance(value, str) for value in values)
        self._fractions = not self.tags and _are_fractions(values)
        if self._fractions:
            values = [value for value in values if not _is_fraction(value)]
        elif self._overflow or (not self.tags and texts > max(LEAST_ANSWERS, rows / 2)):
            return None
        labels, remarks = number_classes(values, first="O" if self.tags else None)
        for kind, message in remarks if not self._fractions else ():
            report.add(kind, message, Location(field=self.column))
        return self._without_signs(labels)

    def _without_signs(self, labels: Labels) -> Labels:
        """The classes; where -1 is one of them, it does not mean that there is no label."""
        if UNLABELED in labels.numbers:
            self._missing = {code for code in self._missing if plain_label(self.values[code]) is None}
        return labels

    def report(self, labels: Labels | None, report: DataReport, table: Table) -> set[int]:
        """Report what is wrong with the labels; codes whose rows are to be left out."""
        dropped: set[int] = set()
        for split, tallies in self._tallies.items():
            missing = Tally()
            for code, tally in tallies.items():
                if code in self._missing:
                    missing.count, missing.first = missing.count + tally.count, sorted(missing.first + tally.first)[:3]
                elif (error := self._error(code, labels)) is not None:
                    rows = f"; {plural(tally.count, 'row')} of {split or 'the table'}"
                    message = f"{error}{rows if error.kind is UNSEEN_LABEL else ''}"
                    location = field_location(table, tally.first[0], self.column)
                    if report.add(error.kind, message, location, samples=tally.count) in ("drop", "raise"):
                        dropped.add(code)
            if missing.count and not (split == "test" and set(tallies) <= self._missing):  # often published without
                message = f"{plural(missing.count, 'row')} of {split or 'the table'}{missing.at(table)}"
                location = field_location(table, missing.first[0], self.column)
                if report.add(UNLABELED_ROWS, message, location, samples=missing.count) == "drop":
                    dropped |= self._missing
        if labels is not None:
            report.facts["labels"] = self._counts(labels)
        return dropped

    def _error(self, code: int, labels: Labels | None) -> LabelError | None:
        """What is wrong with a value."""
        try:
            if code < 0:
                return None if self._overflow else LabelError(BAD_LABEL, "a label cannot be dict")
            if self.numbers:
                number_label(self.values[code])
            elif self._fractions and _is_fraction(self.values[code]):
                raise LabelError(BAD_LABEL, f"{self.values[code]} is not an integer")
            elif labels is not None:
                labels.encode(self.values[code])
        except LabelError as error:
            return error
        return None

    def _counts(self, labels: Labels) -> dict[str, dict[str, int]]:
        """How often each class occurs in each split."""
        counts: dict[str, dict[str, int]] = {}
        for split, tallies in self._tallies.items():
            row = counts[split or "all"] = dict.fromkeys(labels.classes, 0)
            for code, tally in tallies.items():
                name = labels.name(self.values[code]) if code >= 0 else None
                if name is not None:
                    row[name] += tally.count
        return counts

    def strata(self, labels: Labels, positions: np.ndarray | range) -> Strata:
        """The class of each position."""
        names = [labels.name(value) or "unlabeled" for value in self.values]
        codes = self.codes[np.asarray(positions), 0]
        return Strata([*names, "several"], np.where(codes < 0, len(names), codes).astype(np.int32))


def _is_fraction(value: Any) -> bool:
    """Whether a text is a number, but not an integer."""
    bare = value.strip() if isinstance(value, str) else ""
    return _FRACTION.fullmatch(bare) is not None and not _WHOLE_NUMBER.fullmatch(bare)


def _are_fractions(values: Sequence[Any]) -> bool:
    """Whether all texts are numbers and some are no integers; `3.5` next to names is a name.

    >>> _are_fractions(["0.5", "1", "2.0", ""]), _are_fractions(["gpt", "3.5"]), _are_fractions(["1", "2.0"])
    (True, False, False)
    """
    texts = [value for value in values if isinstance(value, str)]
    if not any(map(_is_fraction, texts)):
        return False
    return all(_is_fraction(text) or not isinstance(plain_label(text), str) for text in texts)


class Strata(Sequence[str]):
    """A name for each sample, held as a number.

    >>> strata = Strata(["cat", "dog"], np.array([1, 0, 1]))
    >>> list(strata), strata == ["dog", "cat", "dog"]
    (['dog', 'cat', 'dog'], True)
    """

    def __init__(self, names: Sequence[str], codes: np.ndarray):
        self.names, self.codes = list(names), codes

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Strata: ...
    def __getitem__(self, index: int | slice) -> str | Strata:
        if isinstance(index, slice):
            return Strata(self.names, self.codes[index])
        return self.names[int(self.codes[index])]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)
