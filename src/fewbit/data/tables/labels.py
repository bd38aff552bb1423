# SPDX-License-Identifier: Apache-2.0
"""Labels as class numbers: names by their sorted order in train, whole numbers as they are when they are 0 … n-1.

`-1`, null, NaN and the empty text mean "not labelled" and become -1. A list is a row with several labels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

UNLABELED = -1
_WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]{0,17}))(?:\.0*)?")


@dataclass(frozen=True)
class Labels:
    """How the values of a label column become class numbers.

    Args:
        classes: the name of each class, by its number.
        numbers: the number of each value as it stands in the data, made plain by `plain_label`.
        remarks: what a user should know about how they were made, as `(code, message)`.

    >>> labels = Labels.of(["spam", "ham", "spam"])
    >>> labels.classes, labels.encode("spam"), labels.encode(None)
    (('ham', 'spam'), 1, -1)
    >>> Labels.of(["1", "2"]).remarks[0][1]
    'labels 1, 2 become 0 … 1'
    """

    classes: tuple[str, ...]
    numbers: Mapping[Any, int] = field(repr=False)
    remarks: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, values: Iterable[Any]) -> Labels:
        """The labels of a column from all values of its train split."""
        found = {plain for value in values for plain in _plains(value) if plain is not None}
        found.discard(UNLABELED)
        kinds = {type(value) for value in found}
        if kinds <= {int}:
            return cls._of_numbers(sorted(found))
        names = sorted({str(value) for value in found})
        remarks = [("labels-alike", f"{' and '.join(map(repr, alike))} are told apart") for alike in _alike(names)]
        if len(kinds) > 1:
            remarks.append(("labels-mixed", f"labels are {' and '.join(sorted(k.__name__ for k in kinds))}"))
        numbers = {name: number for number, name in enumerate(names)}
        return cls(tuple(names), {value: numbers[str(value)] for value in found}, tuple(remarks))

    @classmethod
    def _of_numbers(cls, found: list[int]) -> Labels:
        classes = tuple(map(str, found))
        numbers = {value: number for number, value in enumerate(found)}
        if found == list(range(len(found))):
            return cls(classes, numbers)
        shown = ", ".join(classes[:5]) + (", …" if len(classes) > 5 else "")
        return cls(classes, numbers, (("labels-remapped", f"labels {shown} become 0 … {len(found) - 1}"),))

    def encode(self, value: Any) -> int | list[int]:
        """The class number of a value, or the numbers of a list.

        Raises:
            BadLabel: the value cannot be a class, or train does not have it.
        """
        if isinstance(value, list):
            return [self._number(item) for item in value]
        return self._number(value)

    def _number(self, value: Any) -> int:
        plain = plain_label(value)
        if plain is None or plain == UNLABELED:
            return UNLABELED
        number = self.numbers.get(plain)
        if number is None:
            number = self.numbers.get(str(plain))
        if number is None:
            raise BadLabel("unseen-label", f"label {value!r} is not one of the {len(self.classes)} classes of train")
        return number


class BadLabel(ValueError):
    """A value that is no class; says under which code."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


def plain_label(value: Any) -> Any:
    """A label in its plain form: `2.0`, `"2"` and `"2.0"` are 2, NaN and `""` are `None`, names stay.

    Raises:
        BadLabel: a value that cannot be a class.

    >>> [plain_label(value) for value in (2.0, "2", "2.0", "007", "", True)]
    [2, 2, 2, '007', None, 1]
    """
    if value is None or isinstance(value, int):
        return value if value is None else int(value)
    if isinstance(value, float):
        if math.isnan(value):
            return None
        if value.is_integer():
            return int(value)
        raise BadLabel("bad-label", f"label {value!r} is not a whole number; for regression say task='text-regression'")
    if isinstance(value, str):
        whole = _WHOLE.fullmatch(value)
        return int(whole[1]) if whole else (value or None)
    raise BadLabel("bad-label", f"a label cannot be {type(value).__name__}")


def number_label(value: Any) -> float | None:
    """The number a regression is to predict; `None` where there is none.

    Raises:
        BadLabel: a value that is not a finite number.

    >>> [number_label(value) for value in (2, "0.5", "")]
    [2.0, 0.5, None]
    """
    if value is None or value == "":
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise BadLabel("bad-label", f"{str(value)[:40]!r} is not a number") from None
    if math.isinf(number):
        raise BadLabel("bad-label", f"{value!r} is not a finite number")
    return None if math.isnan(number) else number


def _alike(names: Iterable[str]) -> Iterable[list[str]]:
    """The names that differ in nothing but case and the spaces round them."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.strip().casefold(), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _plains(value: Any) -> Iterable[Any]:
    for item in value if isinstance(value, list) else [value]:
        try:
            yield plain_label(item)
        except BadLabel:
            continue  # the row that has it is told about when it is read or checked
