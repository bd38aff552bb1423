# SPDX-License-Identifier: Apache-2.0
"""The label column of a table, read once: values per split, the first row of each, and the classes they make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from fewbit.data.rows.labels import (
    UNLABELED,
    UNLABELED_ROWS,
    UNSEEN_LABEL,
    LabelError,
    Labels,
    are_answers,
    number_label,
    plain_label,
)
from fewbit.data.rows.table import Table
from fewbit.data.types import DataReport, Location
from fewbit.errors import plural

MOST_VALUES = 1 << 16
MOST_CODES = 1 << 23
"""Rows whose values are remembered one by one; for more, a second pass reads them again."""
_SEVERAL = -2
_UNHASHABLE = -3


class LabelColumn:
    """Tallies the values of a label column.

    Args:
        column: its name.
        numbers: the labels are numbers to predict; only looked at.
        tags: the labels are lists, one tag per token.
    """

    def __init__(self, column: str, *, numbers: bool = False, tags: bool = False):
        self.column, self.numbers, self.tags = column, numbers, tags
        self.values: list[Any] = []  # distinct, in order of appearance
        self.codes: np.ndarray | None = np.zeros(0, np.int32)
        self.too_many = False
        self.rows = 0
        self._code_of: dict[Any, int] = {}
        self._counts: dict[str | None, Counter[int]] = {}
        self._first: dict[tuple[str | None, int], int] = {}
        self._code_blocks: list[np.ndarray] = []
        self._bad: list[tuple[int, LabelError]] = []

    def add(self, first: int, split: str | None, values: Sequence[Any]) -> None:
        """Add the labels of consecutive rows of one split."""
        self.rows += len(values)
        if self.tags or list in set(map(type, values)):
            codes = [self._code_of_any(value, first + number, split) for number, value in enumerate(values)]
        else:
            codes = self._codes(values)
            counts = self._counts.setdefault(split, Counter())
            tallied = Counter(codes)
            for code in tallied.keys() - counts.keys():
                self._first[split, code] = first + codes.index(code)
            counts.update(tallied)
        self._code_blocks.append(np.array(codes, np.int32))
        if self.rows > MOST_CODES:
            self._code_blocks, self.codes = [], None

    def _codes(self, values: Sequence[Any]) -> list[int]:
        code_of = self._code_of
        try:
            return [code_of[value] for value in values]
        except (KeyError, TypeError):
            return [self._code(value) for value in values]

    def _code(self, value: Any) -> int:
        if value != value:
            value = None
        try:
            code = self._code_of.get(value)
        except TypeError:
            return _UNHASHABLE
        if code is None:
            if len(self.values) >= MOST_VALUES:
                self.too_many = True
                return _UNHASHABLE
            code = self._code_of[value] = len(self.values)
            self.values.append(value)
        return code

    def _code_of_any(self, value: Any, position: int, split: str | None) -> int:
        """The code of a row that may have several labels; each of them is tallied."""
        counts = self._counts.setdefault(split, Counter())
        items = value if isinstance(value, list) else [value]
        code = _SEVERAL
        for item in items:
            code = self._code(item)
            if code not in counts:
                self._first[split, code] = position
            counts[code] += 1
        return _SEVERAL if isinstance(value, list) else code

    def labels(self, class_names: Sequence[str] | None = None) -> Labels | None:
        """The classes; `None` if the column holds numbers to predict, or answers."""
        if self.numbers:
            return None
        if class_names:
            return Labels.from_names(class_names)
        counts = self._counts.get("train")
        values = [self.values[code] for code in counts if code >= 0] if counts is not None else self.values
        distinct = sum(isinstance(value, str) for value in values)
        if self.too_many or (not self.tags and are_answers(distinct, self.rows)):
            return None
        return Labels.of(values, first="O" if self.tags else None)

    def report(self, labels: Labels | None, report: DataReport, table: Table) -> set[int]:
        """Report what is wrong with the labels; codes whose rows are to be dropped."""
        dropped: set[int] = set()
        if labels is not None:
            for kind, message in labels.remarks:
                report.add(kind, message, Location(field=self.column))
            report.facts["labels"] = self._table(labels)
        for split, counts in self._counts.items():
            missing, unlabeled = 0, self.rows
            for code, count in counts.items():
                location = self._location(table, self._first[split, code])
                try:
                    if self._is_missing(code):
                        missing += count
                        unlabeled = min(unlabeled, self._first[split, code])
                    elif labels is not None and code >= 0:
                        labels.encode(self.values[code])
                    elif code == _UNHASHABLE and not self.too_many:
                        plain_label({})
                except LabelError as error:
                    message = str(error)
                    if error.kind is UNSEEN_LABEL:
                        message = f"{message}; {plural(count, 'row')} of {split or 'the table'}"
                    if report.add(error.kind, message, location, samples=count) in ("drop", "raise"):
                        dropped.add(code)
            total = counts.total()
            if missing and not (split == "test" and missing == total):  # test sets are often published without
                message = f"{plural(missing, 'row')} of {split or 'the table'}"
                report.add(UNLABELED_ROWS, message, self._location(table, unlabeled), samples=missing)
        return dropped

    def _location(self, table: Table, position: int) -> Location:
        location = table.location(position)
        return Location(location.file, location.line, location.row, location.byte, location.index, self.column)

    def _is_missing(self, code: int) -> bool:
        """Whether a value means that there is no label.

        Raises:
            LabelError: it is no label either.
        """
        if code < 0:
            return False
        value = self.values[code]
        return (number_label(value) if self.numbers else plain_label(value)) in (
            None,
            None if self.numbers else UNLABELED,
        )

    def _table(self, labels: Labels) -> dict[str, dict[str, int]]:
        """How often each class occurs in each split."""
        table: dict[str, dict[str, int]] = {}
        for split, counts in self._counts.items():
            row = table[split or "all"] = dict.fromkeys(labels.classes, 0)
            for code, count in counts.items():
                name = labels.name(self.values[code]) if code >= 0 else None
                if name is not None:
                    row[name] += count
        return table

    def joined_codes(self) -> np.ndarray | None:
        """The code of each row; `None` if there were too many rows."""
        if self.codes is not None and self._code_blocks:
            self.codes = np.concatenate([self.codes, *self._code_blocks])
            self._code_blocks = []
        return self.codes
