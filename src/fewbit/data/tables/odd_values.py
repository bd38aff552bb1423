# SPDX-License-Identifier: Apache-2.0
"""Values that are there and yet wrong: none, empty, NaN, with characters lost, lists of another length than the rest.

Each is told once a column, with a count and its first places: in a column that is meant to be sparse, a finding for
every row would bury the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fewbit.data.findings import DataReport
from fewbit.data.tables.schema import HOLLOW, Schema, Spot, Tally, place_of

LOST = "\N{REPLACEMENT CHARACTER}"
"""What a careless program writes where it cannot read a character."""

_WIDTHS = 64
_COLUMNS = 1024


class OddValues:
    """Gathers them column by column.

    Args:
        texts: the columns that hold what a model is to read, where an empty value is likely a mistake.
        label: the label column, whose empty values are counted elsewhere.
    """

    def __init__(self, texts: Collection[str], label: str | None):
        self.texts = texts
        self.label = label
        self._lost: dict[str, Tally] = {}
        self._widths: dict[str, dict[int, Tally]] = {}

    def look_for_lost(self, values: Mapping[str, Any], spot: Spot) -> None:
        """Take in a row that may hold a character that was lost, at any depth."""
        for name, value in values.items():
            if LOST in (value if isinstance(value, str) else repr(value)):
                self.lost(name, 1, spot)

    def lost(self, name: str, count: int, spot: Spot) -> None:
        """Some values of a column have lost a character; the first of them stands at the spot."""
        if name in self._lost or len(self._lost) < _COLUMNS:
            self._lost.setdefault(name, Tally()).add(count, [spot])

    def take_list(self, name: str, value: list[Any], spot: Spot) -> None:
        """Take in a list; only lists of fractions, which are embeddings, must be equally long."""
        if value and type(value[0]) is float and (name in self._widths or len(self._widths) < _COLUMNS):
            widths = self._widths.setdefault(name, {})
            if len(value) in widths or len(widths) < _WIDTHS:
                widths.setdefault(len(value), Tally()).add(1, [spot])

    def tell(self, report: DataReport, schema: Schema) -> None:
        """Put what was found into a report; null, NaN and empty values are counted by the schema."""
        for name, types in schema.columns().items():
            hollow = {kind: tally for kind, tally in types.items() if kind in HOLLOW}
            if hollow and name != self.label:
                code = "empty-text" if name in self.texts else "missing-values"
                told = ", ".join(f"{kind} {tally.count:,}{tally.where()}" for kind, tally in sorted(hollow.items()))
                first = min((spot for tally in hollow.values() for spot in tally.spots), key=_order)
                report.add(code, told, place_of(first, name))
        for name, tally in self._lost.items():
            message = f"U+FFFD in {tally.count:,} values{tally.where()}"
            report.add("replacement-character", message, place_of(tally.spots[0], name))
        for name, widths in self._widths.items():
            if len(widths) > 1:
                (usual, _), *others = sorted(widths.items(), key=lambda item: -item[1].count)
                count = sum(tally.count for _, tally in others)
                shown = ", ".join(f"{width:,}{tally.where()}" for width, tally in others[:5])
                message = f"most hold {usual:,} numbers; {count:,} do not: {shown}"
                report.add("ragged-lists", message, place_of(others[0][1].spots[0], name))


def _order(spot: Spot) -> tuple[str, int]:
    file, line, index = spot
    return file, line if line is not None else index or 0
