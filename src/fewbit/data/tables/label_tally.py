# SPDX-License-Identifier: Apache-2.0
"""The labels of every split with their counts and first places, and what is wrong with them, for a report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fewbit.data.findings import DataReport
from fewbit.data.tables.labels import UNLABELED, BadLabel, Labels, number_label, plain_label
from fewbit.data.tables.schema import Spot, Tally, place_of

_DISTINCT = 1 << 16


class LabelTally:
    """Counts labels by split.

    Args:
        report: takes the findings.
        column: the label column.
        numbers: the labels are numbers to predict; they are looked at, not counted.
    """

    def __init__(self, report: DataReport, column: str, *, numbers: bool):
        self.report = report
        self.column = column
        self.numbers = numbers
        self.too_many = False
        self._splits: dict[str, dict[Any, Tally]] = {}

    def add(self, split: str, values: Iterable[tuple[Any, Spot]]) -> None:
        """Take in the labels of some rows; a value that cannot be a label is told at once."""
        tallies = self._splits.setdefault(split, {})
        plain = number_label if self.numbers else plain_label
        for value, spot in values:
            for item in value if isinstance(value, list) and not self.numbers else (value,):
                try:
                    found = plain(item)
                except BadLabel as error:
                    self._tell(error.code, str(error), spot)
                    continue
                if self.numbers:
                    continue
                if found not in tallies and len(tallies) >= _DISTINCT:
                    self.too_many = True
                    continue
                tallies.setdefault(found, Tally()).add(1, (spot,))

    def finish(self, *, whole: bool) -> None:
        """Say what the labels are together.

        Args:
            whole: every row was seen. If not, nothing can be said about classes that train does not have.
        """
        if self.numbers:
            return
        train = self._splits.get("train")
        labels = Labels.of(train if train is not None else {v for found in self._splits.values() for v in found})
        self.report.understood["classes"] = list(labels.classes)
        self.report.understood["labels"] = self._counts(labels)
        if self.too_many:
            self._tell("bad-label", "the column has too many different values to be classes")
        for code, message in labels.remarks if whole else ():
            self._tell(code, message)
        for split, tallies in self._splits.items():
            unlabelled = [tallies[value] for value in (None, UNLABELED) if value in tallies]
            if unlabelled:
                count = sum(tally.count for tally in unlabelled)
                self._tell("unlabeled", f"{count:,} rows of {split} have no label", unlabelled[0].spots[0])
            for value, tally in tallies.items() if whole else ():
                if value not in (None, UNLABELED) and _number(labels, value) is None:
                    message = f"label {value!r} stands {tally.count:,} times in {split} and never in train"
                    self._tell("unseen-label", message, tally.spots[0])

    def _counts(self, labels: Labels) -> dict[str, dict[str, int]]:
        """How often each class stands in each split."""
        table: dict[str, dict[str, int]] = {}
        for split, tallies in self._splits.items():
            row = table[split] = dict.fromkeys(labels.classes, 0)
            for value, tally in tallies.items():
                number = _number(labels, value)
                if number is not None:
                    row[labels.classes[number]] += tally.count
        return table

    def _tell(self, code: str, message: str, spot: Spot = ("", None, None)) -> None:
        self.report.add(code, message, place_of(spot, self.column))


def _number(labels: Labels, value: Any) -> int | None:
    try:
        number = labels.encode(value)
    except BadLabel:
        return None
    return number if isinstance(number, int) and number >= 0 else None
