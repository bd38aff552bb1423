# SPDX-License-Identifier: Apache-2.0
"""Statistics of columns, a block at a time: types, missing values, lengths, lost characters; in bounded memory.

The union of all rows counts, so nothing depends on their order: `int 8, str 2 at lines 3, 7`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from fewbit.data.rows.table import Row, Table, column_lists
from fewbit.data.types import DataReport, IssueType, Location, Severity
from fewbit.errors import plural

MOST_COLUMNS = 1024
_MOST_LENGTHS = 4096
_FIRST_ROWS = 3
_DEEPEST = 4
_LOST = "\N{REPLACEMENT CHARACTER}"
_NUMBER_START = frozenset("0123456789-.")
_INT = re.compile(r"-?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTS = re.compile(rf"(?:{_INT.pattern}\n)++")
_FLOATS = re.compile(rf"(?:{_FLOAT.pattern}\n)++")
_NAMES = {
    str: "str",
    int: "int",
    float: "float",
    bool: "bool",
    dict: "object",
    list: "list",
    type(None): "null",
    bytes: "bytes",
}

MIXED_TYPES = IssueType(
    "mixed-types",
    Severity.WARNING,
    "column that holds values of different types",
    "write all values with the same type",
    "keep",
    ("raise",),
)
MISSING_VALUES = IssueType(
    "missing-values", Severity.NOTE, "column that holds null or empty values", "fill them, or leave the column out"
)
NAN_VALUES = IssueType("nan-values", Severity.WARNING, "column that holds NaN", "fill them, or leave such rows out")
EMPTY_TEXT = IssueType(
    "empty-text", Severity.WARNING, "rows whose text is null or empty", "fill them, or leave such rows out"
)
RAGGED_LISTS = IssueType(
    "ragged-lists",
    Severity.WARNING,
    "lists of numbers of different lengths",
    "pad or cut them: embeddings have one length",
)
REPLACEMENT_CHARACTER = IssueType(
    "replacement-character",
    Severity.WARNING,
    "text in which characters were lost (U+FFFD)",
    "make the file again from its origin",
)
MANY_COLUMNS = IssueType(
    "many-columns", Severity.WARNING, f"more than {MOST_COLUMNS:,} columns", "put keys that are data into a list"
)
ISSUES = (MIXED_TYPES, MISSING_VALUES, NAN_VALUES, EMPTY_TEXT, RAGGED_LISTS, REPLACEMENT_CHARACTER, MANY_COLUMNS)


@dataclass
class _Tally:
    """How many values, and the rows of the first ones."""

    count: int = 0
    rows: list[int] = field(default_factory=list)


@dataclass
class _Column:
    kinds: dict[str, _Tally] = field(default_factory=dict)
    lengths: Counter[int] = field(default_factory=Counter)
    lost: _Tally = field(default_factory=_Tally)
    widths: dict[int, _Tally] = field(default_factory=dict)


class ColumnStatistics:
    """Gathers statistics of a table.

    Args:
        texts: columns a model is to read, where an empty value is probably a mistake.
        label: the label column, whose empty values are counted elsewhere.
        text_only: all values are text, some of which looks like numbers: a CSV file.
    """

    def __init__(self, texts: Collection[str] = (), label: str | None = None, *, text_only: bool = False):
        self.texts, self.label, self.text_only = frozenset(texts), label, text_only
        self.rows = 0
        self._columns: dict[str, _Column] = {}
        self._overflow = False

    def add(self, first: int, rows: Sequence[Row], lists: Mapping[str, list[Any]] | None = None) -> None:
        """Take in a block.

        Args:
            first: position of its first row.
            rows: all of them.
            lists: the same by column, if the caller has them already.
        """
        self.rows += len(rows)
        self._add("", range(first, first + len(rows)), rows, lists, 0)

    def _add(
        self,
        prefix: str,
        positions: Sequence[int],
        rows: Sequence[Row],
        lists: Mapping[str, list[Any]] | None,
        depth: int,
    ) -> None:
        lists = lists or column_lists(rows)
        groups = {name: (positions, values) for name, values in lists.items()} if lists else _by_key(positions, rows)
        for name, (value_positions, values) in groups.items():
            column = self._column(f"{prefix}{name}")
            if column is not None:
                self._take(column, f"{prefix}{name}", value_positions, values, depth)

    def _column(self, name: str) -> _Column | None:
        column = self._columns.get(name)
        if column is None and len(self._columns) < MOST_COLUMNS:
            column = self._columns[name] = _Column()
        self._overflow = self._overflow or column is None
        return column

    def _take(self, column: _Column, name: str, positions: Sequence[int], values: list[Any], depth: int) -> None:
        types = list(map(type, values))
        for kind in set(types):
            if len(types) == types.count(kind):
                kind_positions, kind_values = positions, values
            else:
                kind_positions = [position for position, value in zip(positions, types) if value is kind]
                kind_values = [value for value, value_type in zip(values, types) if value_type is kind]
            if kind is str:
                self._take_texts(column, name, kind_positions, kind_values)
            elif kind is float:
                total = sum(kind_values)
                flags = [value != value for value in kind_values] if total != total else []
                _count_separately(column, "float", "nan", kind_positions, kind_values, flags)
            elif kind is list:
                self._take_lists(column, kind_positions, kind_values)
            else:
                _count(column.kinds, _NAMES.get(kind, kind.__name__), len(kind_values), kind_positions)
                if kind is dict and depth < _DEEPEST:
                    filled = [value for value in kind_values if value]
                    if filled:
                        filled_positions = (
                            kind_positions
                            if len(filled) == len(kind_values)
                            else [p for p, value in zip(kind_positions, kind_values) if value]
                        )
                        self._add(name + ".", filled_positions, filled, None, depth + 1)

    def _take_texts(self, column: _Column, name: str, positions: Sequence[int], values: list[str]) -> None:
        joined = "".join(values)
        if not joined.isascii() and _LOST in joined:
            lost = [position for position, value in zip(positions, values) if _LOST in value]
            _tally(column.lost, len(lost), lost)
        if name in self.texts and len(column.lengths) < _MOST_LENGTHS:
            column.lengths.update(map(len, values))
        if "" in values:
            _count_separately(column, "", "empty", positions, values, [not value for value in values])
            positions = [position for position, value in zip(positions, values) if value]
            values = [value for value in values if value]
        if not values:
            return
        if not self.text_only:
            _count(column.kinds, "str", len(values), positions)
            return
        for kind, count, kind_positions in _number_kinds(values, positions):
            _count(column.kinds, kind, count, kind_positions)

    def _take_lists(self, column: _Column, positions: Sequence[int], values: list[list[Any]]) -> None:
        column.lengths.update(map(len, values) if len(column.lengths) < _MOST_LENGTHS else ())
        for position, value in zip(positions, values):
            item_types = "|".join(sorted({_NAMES.get(type(item), type(item).__name__) for item in value[:100]}))
            if len(column.kinds) < 64:
                _tally(
                    column.kinds.setdefault(f"list[{item_types}]" if item_types else "list", _Tally()), 1, [position]
                )
            if value and type(value[0]) is float and (len(value) in column.widths or len(column.widths) < 64):
                _tally(column.widths.setdefault(len(value), _Tally()), 1, [position])

    def report(self, report: DataReport, table: Table) -> None:
        """Report what is odd, once per column, with counts and the first locations."""
        for name, column in self._columns.items():
            families = _families(column.kinds)
            if _are_mixed(families, self.text_only):
                rare = min(families.values(), key=lambda tally: (tally.count, -min(tally.rows)))
                location = _field_location(table, rare, name)
                report.add(MIXED_TYPES, self._kinds_text(column, table), location, samples=rare.count)
            self._report_missing(report, table, name, column)
            if column.lost.count:
                message = f"U+FFFD in {plural(column.lost.count, 'value')}"
                report.add(
                    REPLACEMENT_CHARACTER, message, _field_location(table, column.lost, name), samples=column.lost.count
                )
            if len(column.widths) > 1:
                (common, _), *uncommon = sorted(column.widths.items(), key=lambda item: -item[1].count)
                count = sum(tally.count for _, tally in uncommon)
                message = f"most hold {common:,} numbers, {count:,} do not"
                report.add(RAGGED_LISTS, message, _field_location(table, uncommon[0][1], name), samples=count)
        if self._overflow:
            report.add(MANY_COLUMNS, f"statistics of the first {MOST_COLUMNS:,} only", Location())
        report.facts["columns"] = {
            name: self._kinds_text(column, table) for name, column in list(self._columns.items())[:64]
        }
        lengths = {name: _lengths_text(column.lengths) for name, column in self._columns.items() if column.lengths}
        if lengths:
            report.facts["lengths"] = dict(list(lengths.items())[:64])

    def _report_missing(self, report: DataReport, table: Table, name: str, column: _Column) -> None:
        """Null, empty and NaN values."""
        missing = {kind: column.kinds[kind] for kind in ("null", "empty") if kind in column.kinds}
        if missing and name != self.label:
            count = sum(tally.count for tally in missing.values())
            first = min(missing.values(), key=lambda tally: tally.rows[0])
            message = ", ".join(
                f"{kind} {tally.count:,}{_at_lines(table, tally)}" for kind, tally in sorted(missing.items())
            )
            kind = EMPTY_TEXT if name in self.texts else MISSING_VALUES
            report.add(kind, message, _field_location(table, first, name), samples=count)
        if "nan" in column.kinds and name != self.label:
            tally = column.kinds["nan"]
            report.add(
                NAN_VALUES,
                f"NaN in {plural(tally.count, 'row')}",
                _field_location(table, tally, name),
                samples=tally.count,
            )

    def _kinds_text(self, column: _Column, table: Table) -> str:
        """`int 8, str 2 at lines 3, 7`."""
        ordered = sorted(column.kinds.items(), key=lambda item: (-item[1].count, item[0]))
        counts = [
            f"{kind} {tally.count:,}{_at_lines(table, tally) if number else ''}"
            for number, (kind, tally) in enumerate(ordered)
        ]
        return ", ".join(counts)


def _by_key(positions: Sequence[int], rows: Sequence[Row]) -> dict[str, tuple[Sequence[int], list[Any]]]:
    """Positions and values of each key; rows need not have the same keys."""
    groups: dict[str, tuple[list[int], list[Any]]] = {}
    for position, row in zip(positions, rows):
        for name, value in row.items():
            key_positions, values = groups.setdefault(name, ([], []))
            key_positions.append(position)
            values.append(value)
    return dict(groups)


def _count(kinds: dict[str, _Tally], kind: str, count: int, positions: Sequence[int]) -> None:
    _tally(kinds.setdefault(kind, _Tally()), count, positions)


def _tally(tally: _Tally, count: int, positions: Sequence[int]) -> None:
    tally.count += count
    if len(tally.rows) < _FIRST_ROWS:
        tally.rows.extend(positions[: _FIRST_ROWS - len(tally.rows)])


def _count_separately(
    column: _Column, kind: str, odd: str, positions: Sequence[int], values: list[Any], flags: list[bool]
) -> None:
    """Count values of one kind, and those that are odd under another name; an empty kind is not counted."""
    if count := sum(flags):
        _count(column.kinds, odd, count, [position for position, flag in zip(positions, flags) if flag][:_FIRST_ROWS])
    if kind and count < len(values):
        regular_positions = (
            positions if not count else [position for position, flag in zip(positions, flags) if not flag]
        )
        _count(column.kinds, kind, len(values) - count, regular_positions)


def _first_positions(kind: str, kinds: list[str], positions: Sequence[int]) -> list[int]:
    first_positions: list[int] = []
    index = -1
    while len(first_positions) < _FIRST_ROWS:
        try:
            index = kinds.index(kind, index + 1)
        except ValueError:
            break
        first_positions.append(positions[index])
    return first_positions


def _number_kinds(values: list[str], positions: Sequence[int]) -> Iterator[tuple[str, int, Sequence[int]]]:
    """What texts look like: kind, count and first positions. A column of numbers is recognized by one call."""
    if values[0][0] in _NUMBER_START:
        joined = "\n".join(values) + "\n"
        if _INTS.fullmatch(joined):
            yield "int", len(values), positions
            return
        if joined.count(".") == len(values) and _FLOATS.fullmatch(joined):
            yield "float", len(values), positions
            return
    elif _NUMBER_START.isdisjoint(map(itemgetter(0), values)):
        yield "text", len(values), positions
        return
    kinds = ["text" if value[0] not in _NUMBER_START else _number_kind(value) for value in values]
    for kind, count in Counter(kinds).items():
        yield kind, count, positions if count == len(kinds) else _first_positions(kind, kinds, positions)


def _number_kind(text: str) -> str:
    """What a text looks like; a number is what a program writes, so that `007`, `1_000` and `nan` are text.

    >>> [_number_kind(text) for text in ("-1", "0.5", "007", "1e3", "-")]
    ['int', 'float', 'text', 'float', 'text']
    """
    if len(text) > 64:
        return "text"
    return "int" if _INT.fullmatch(text) else "float" if _FLOAT.fullmatch(text) else "text"


def _families(kinds: Mapping[str, _Tally]) -> dict[str, _Tally]:
    """Kinds that belong together, without null and empty values: all numbers, all lists."""
    families: dict[str, _Tally] = {}
    for kind, tally in kinds.items():
        if kind not in ("null", "empty"):
            family = "number" if kind in ("int", "float", "nan") else kind.partition("[")[0]
            joined = families.setdefault(family, _Tally())
            joined.count += tally.count
            joined.rows = sorted({*joined.rows, *tally.rows})[:_FIRST_ROWS]
    return families


def _are_mixed(families: Mapping[str, _Tally], text_only: bool) -> bool:
    if len(families) < 2:
        return False
    # In a CSV some text looks like a number; only a column that is nearly all numbers is odd.
    return not text_only or families["number"].count >= 9 * families["text"].count


def _at_lines(table: Table, tally: _Tally) -> str:
    """` at line 3` or ` at lines 3, 7` of the first values."""
    locations = [table.location(row) for row in tally.rows]
    lines = [location.line if location.line is not None else location.row for location in locations]
    noun = "line" if locations and locations[0].line is not None else "row"
    ellipsis = ", …" if tally.count > len(lines) else ""
    return f" at {noun}{'s' if tally.count > 1 else ''} {', '.join(map(str, lines))}{ellipsis}" if lines else ""


def _field_location(table: Table, tally: _Tally, name: str) -> Location:
    location = table.location(tally.rows[0])
    return Location(location.file, location.line, location.row, location.byte, location.index, name)


def _lengths_text(lengths: Counter[int]) -> str:
    total, count, median = sum(lengths.values()), 0, 0
    for length in sorted(lengths):
        count += lengths[length]
        median = length
        if 2 * count >= total:
            break
    return f"{min(lengths):,} to {max(lengths):,}, median {median:,}"
