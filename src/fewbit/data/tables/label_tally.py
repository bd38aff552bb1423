# SPDX-License-Identifier: Apache-2.0
"""The labels of every split with their counts and first places, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fewbit.data.tables.labels import UNLABELED, BadLabel, Labels, plain_label
from fewbit.data.tables.schema import Spot, Tally
from fewbit.data.tables.table import Fault

_DISTINCT = 1 << 16

Told = tuple[Fault, Spot]


class LabelTally:
    """Counts labels by split.

    Args:
        column: the label column, for messages.
    """

    def __init__(self, column: str):
        self.column = column
        self.too_many = False
        self._splits: dict[str, dict[Any, Tally]] = {}

    def add(self, split: str, values: Iterable[tuple[Any, Spot]], fault: Callable[[Fault], None]) -> None:
        """Take in the labels of some rows; a value that cannot be a label is told at once."""
        tallies = self._splits.setdefault(split, {})
        for value, spot in values:
            for item in value if isinstance(value, list) else (value,):
                try:
                    plain = plain_label(item)
                except BadLabel as error:
                    fault(Fault(error.code, str(error), spot[1], field=self.column))
                    continue
                if plain not in tallies and len(tallies) >= _DISTINCT:
                    self.too_many = True
                    continue
                tally = tallies.setdefault(plain, Tally())
                tally.add(1, (spot,))

    def labels(self) -> Labels:
        """The classes, from train when there is one."""
        train = self._splits.get("train")
        return Labels.of(train if train is not None else {v for found in self._splits.values() for v in found})

    def counts(self, labels: Labels) -> dict[str, dict[str, int]]:
        """How often each class stands in each split."""
        table: dict[str, dict[str, int]] = {}
        for split, tallies in self._splits.items():
            row = table[split] = dict.fromkeys(labels.classes, 0)
            for value, tally in tallies.items():
                number = _number(labels, value)
                if number is not None:
                    row[labels.classes[number]] += tally.count
        return table

    def faults(self, labels: Labels) -> Iterator[Told]:
        """Everything wrong with the labels together, with the place where it was seen first."""
        for code, message in labels.remarks:
            yield Fault(code, message, field=self.column), ("", None)
        for split, tallies in self._splits.items():
            unlabelled = [tallies[value] for value in (None, UNLABELED) if value in tallies]
            if unlabelled:
                count = sum(tally.count for tally in unlabelled)
                message = f"{count:,} rows of {split} have no label"
                yield Fault("unlabeled", message, unlabelled[0].spots[0][1], field=self.column), unlabelled[0].spots[0]
            for value, tally in tallies.items():
                if value not in (None, UNLABELED) and _number(labels, value) is None:
                    message = f"label {value!r} stands {tally.count:,} times in {split} and never in train"
                    yield Fault("unseen-label", message, tally.spots[0][1], field=self.column), tally.spots[0]


def _number(labels: Labels, value: Any) -> int | None:
    try:
        number = labels.encode(value)
    except BadLabel:
        return None
    return number if isinstance(number, int) and number >= 0 else None
