# SPDX-License-Identifier: Apache-2.0
"""Labels as class numbers: names by their sorted order in train; integers unchanged if they are 0 … n-1.

`-1`, null, NaN and empty text mean "no label" and become -1. A list is a row with several labels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fewbit.data.types import IssueType, Severity
from fewbit.errors import plural

UNLABELED = -1
LEAST_ANSWERS = 50
"""A column with more different texts than this, and than half of the rows, holds answers, not classes."""
_INTEGER = re.compile(r"(-?(?:0|[1-9][0-9]{0,17}))(?:\.0*)?")

BAD_LABEL = IssueType(
    "bad-label", Severity.ERROR, "value that cannot be a class",
    "write names or integers; if it is a number to predict, {data_option=label_type=number}", "raise", ("drop",),
    "leaves the row out",
)  # fmt: skip
UNSEEN_LABEL = IssueType(
    "unseen-label", Severity.ERROR, "label that train does not have", "move such rows to train, or remove them",
    "raise", ("drop",), "leaves the row out",
)  # fmt: skip
UNLABELED_ROWS = IssueType(
    "unlabeled",
    Severity.WARNING,
    "rows without a label, whose label is -1",
    "label them, or leave them out of training",
)
LABELS_ALIKE = IssueType(
    "labels-alike", Severity.WARNING, "labels that differ only in case or surrounding spaces",
    "write them the same way if they mean the same",
)  # fmt: skip
LABELS_MIXED = IssueType(
    "labels-mixed",
    Severity.WARNING,
    "labels of different types, compared as text",
    "write all labels with the same type",
)
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


@dataclass(frozen=True)
class Labels:
    """How values of a label column become class numbers.

    Args:
        classes: the name of each class.
        numbers: the number of each plain label.
        remarks: what a user should know about the classes.

    >>> labels = Labels.of(["spam", "ham", "spam"])
    >>> labels.classes, labels.encode("spam"), labels.encode(None)
    (('ham', 'spam'), 1, -1)
    >>> Labels.of(["1", "2"]).remarks[0][1]
    'labels 1, 2 become 0 … 1'
    """

    classes: tuple[str, ...]
    numbers: Mapping[Any, int] = field(repr=False)
    remarks: tuple[tuple[IssueType, str], ...] = ()

    @classmethod
    def of(cls, values: Iterable[Any], *, first: str | None = None) -> Labels:
        """The classes of a column from the values of its train split.

        Args:
            values: of train.
            first: the class that gets number 0 if it is there; `O` of token tags.
        """
        labels = {label for value in values for label in _plain_labels(value) if label not in (None, UNLABELED)}
        if not labels or set(map(type, labels)) == {int}:
            ordered = sorted(labels)
            names = tuple(map(str, ordered))
            remarks: list[tuple[IssueType, str]] = []
            if ordered != list(range(len(ordered))):
                listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
                remarks.append((LABELS_REMAPPED, f"labels {listed} become 0 … {len(names) - 1}"))
            return cls(names, {label: number for number, label in enumerate(ordered)}, tuple(remarks))
        sorted_names = sorted({str(label) for label in labels}, key=lambda name: (name != first, name))
        remarks = [
            (LABELS_ALIKE, f"{' and '.join(map(repr, group))} are different classes")
            for group in _case_variants(sorted_names)
        ]
        if len(kinds := {type(label).__name__ for label in labels}) > 1:
            remarks.append((LABELS_MIXED, f"labels are {' and '.join(sorted(kinds))}"))
        by_name = {name: number for number, name in enumerate(sorted_names)}
        return cls(tuple(sorted_names), {label: by_name[str(label)] for label in labels}, tuple(remarks))

    @classmethod
    def from_names(cls, names: Sequence[str]) -> Labels:
        """Classes in the order the user gave; numbers in the data are positions in it."""
        numbers: dict[Any, int] = {number: number for number in range(len(names))}
        for number, name in enumerate(names):
            label = plain_label(name)
            numbers[label] = number
        return cls(tuple(names), numbers)

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
        if label is None or label == UNLABELED:
            return UNLABELED
        number = self.numbers.get(label)
        if number is None:
            number = self.numbers.get(str(label))
        if number is None:
            raise LabelError(
                UNSEEN_LABEL, f"label {str(value)[:60]!r} is none of the {plural(len(self.classes), 'class')} of train"
            )
        return number


def plain_label(value: Any) -> Any:
    """A label in its plain form: `2.0`, `"2"` and `"2.0"` are 2, NaN and `""` are `None`, names stay.

    Raises:
        LabelError: the value cannot be a class.

    >>> [plain_label(value) for value in (2.0, "2", "2.0", "007", "", True)]
    [2, 2, 2, '007', None, 1]
    """
    if isinstance(value, str):
        integer = _INTEGER.fullmatch(value)
        return int(integer[1]) if integer else (value or None)
    if value is None:
        return None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isnan(value):
            return None
        if value.is_integer():
            return int(value)
        raise LabelError(BAD_LABEL, f"{value!r} is not an integer")
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a numpy scalar
        return plain_label(value.item())
    raise LabelError(BAD_LABEL, f"a label cannot be {type(value).__name__}")


def number_label(value: Any) -> float | None:
    """A number to predict; `None` if there is none.

    Raises:
        LabelError: the value is not a finite number.

    >>> [number_label(value) for value in (2, "0.5", "")]
    [2.0, 0.5, None]
    """
    if value is None or value == "":
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise LabelError(BAD_LABEL, f"{str(value)[:40]!r} is not a number") from None
    if math.isinf(number):
        raise LabelError(BAD_LABEL, f"{number} is not a finite number")
    return None if math.isnan(number) else number


def are_answers(distinct_texts: int, rows: int) -> bool:
    """Whether a label column holds free answers: too many different texts to be classes.

    >>> are_answers(900, 1000), are_answers(40, 60), are_answers(120, 10_000)
    (True, False, False)
    """
    return distinct_texts > max(LEAST_ANSWERS, rows / 2)


def _case_variants(names: Iterable[str]) -> list[list[str]]:
    """Names that differ only in case and surrounding spaces."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.strip().casefold(), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _plain_labels(value: Any) -> Iterable[Any]:
    for item in value if isinstance(value, list | tuple) else [value]:
        try:
            yield plain_label(item)
        except LabelError:
            continue  # reported with its row
