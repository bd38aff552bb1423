# SPDX-License-Identifier: Apache-2.0
"""The columns of a dataset as they are: every type each of them holds, how often, and where the rare ones stand.

A union, so the order of rows and files does not matter. Rows of the same keys and types share one entry, and
most datasets have a handful of those; the columns are worked out from the entries at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fewbit.data.sample import Place
from fewbit.data.tables.codes import GUESSED
from fewbit.data.tables.csv_kinds import KINDS, kind_of
from fewbit.data.tables.table import Columns, Row, Survey, Table
from fewbit.data.tables.text_column import TextColumn

_NAMES = {str: "str", int: "int", float: "float", bool: "bool", type(None): "null"}
_NUMBERS = frozenset({"int", "float"})
HOLLOW = frozenset({"null", "nan", "empty"})
"""Kinds of values that hold nothing; they go with every type."""

_FAMILIES = {"int": "number", "float": "number", "text": "str"}
_PLACES = 5
_ENTRIES = 4096
COLUMNS = 1024
"""How many columns are told apart; a file with more uses its keys as data."""

Spot = tuple[str, int | None, int | None]
"""A file name and a line, or the number of the row in a file without lines."""


def place_of(spot: Spot, field: str | None = None) -> Place:
    """A spot for a finding."""
    file, line, index = spot
    return Place(file or None, line, index=index, field=field)


@dataclass
class Tally:
    """How often one type stands in one column, and the first places."""

    count: int = 0
    spots: list[Spot] = field(default_factory=list)

    def add(self, count: int, spots: Iterable[Spot]) -> None:
        """Take in some more."""
        self.count += count
        if len(self.spots) < _PLACES:
            self.spots = [*self.spots, *spots][:_PLACES]

    def where(self, one_file: bool = True) -> str:
        """The first places in words, lines alone when all are in one file."""
        more = " …" if self.count > len(self.spots) else ""
        if not one_file:
            return f" at {', '.join(map(str, map(place_of, self.spots)))}{more}"
        lines = [f"{line:,}" for _, line, _ in self.spots if line is not None]
        rows = [f"{index:,}" for _, line, index in self.spots if line is None and index is not None]
        many = "s" if len(lines or rows) > 1 or more else ""
        return f" at {'line' if lines else 'sample'}{many} {', '.join(lines or rows)}{more}" if lines or rows else ""


class Schema:
    """What the columns hold.

    >>> schema = Schema()
    >>> for line, label in enumerate([0, 1, "one"], 1):
    ...     schema.add({"label": label}, ("a.jsonl", line, None))
    >>> schema.text("label")
    'int 2, str 1 at line 3'
    """

    def __init__(self) -> None:
        self.rows = 0
        self.overflow = 0
        self._entries: dict[Any, Tally] = {}
        self._columns: dict[str, dict[str, Tally]] = {}

    def add(self, values: Mapping[str, Any], spot: Spot, *, text: bool = False) -> None:
        """Take in one row; in a file of `text`, strings count as what they look like."""
        self.rows += 1
        shape = (tuple(values), tuple(map(_text_shape if text else _shape, values.values())))
        entry = self._entries.get(shape)
        if entry is None:
            if len(self._entries) >= _ENTRIES:
                self._settle()
            entry = self._entries[shape] = Tally()
        entry.count += 1
        if len(entry.spots) < _PLACES:
            entry.spots.append(spot)

    def add_columns(self, file: str, batch: Columns) -> None:
        """Take in rows that come by column; a text column brings the kinds of its values with it."""
        self.rows += len(batch.lines)
        for name, column in zip(batch.names, batch.values):
            if isinstance(column, TextColumn):
                kinds, words = column.kinds, list(KINDS)
            else:
                types = list(map(_shape, column))
                known = list(dict.fromkeys(types))
                kinds, words = np.array([known.index(kind) for kind in types], np.uint8), list(map(_name, known))
            for kind, count in enumerate(np.bincount(kinds, minlength=len(words)).tolist()):
                if count:
                    at = np.flatnonzero(kinds == kind)[:_PLACES].tolist()
                    self._add(name, words[kind], count, [(file, batch.lines[row], None) for row in at])

    def _add(self, name: str, kind: str, count: int, spots: Iterable[Spot]) -> None:
        types = self._columns.get(name)
        if types is None:
            if len(self._columns) >= COLUMNS:
                self.overflow += 1
                return
            types = self._columns[name] = {}
        types.setdefault(kind, Tally()).add(count, spots)

    def columns(self) -> dict[str, dict[str, Tally]]:
        """The types of every column, columns in the order they were first seen."""
        self._settle()
        return self._columns

    def _settle(self) -> None:
        for (keys, shapes), tally in self._entries.items():
            self._expand("", keys, shapes, tally)
        self._entries = {}

    def _expand(self, prefix: str, keys: tuple[str, ...], shapes: tuple[Any, ...], tally: Tally) -> None:
        for key, shape in zip(keys, shapes):
            name = prefix + key
            if isinstance(shape, tuple):
                self._add(name, "object", tally.count, tally.spots)
                inner_keys, inner_shapes = shape
                self._expand(name + ".", inner_keys, inner_shapes, tally)
            else:
                self._add(name, _name(shape), tally.count, tally.spots)

    def missing(self, name: str) -> int:
        """In how many rows a column is absent."""
        parent, _, _ = name.rpartition(".")
        there = sum(tally.count for tally in self.columns().get(name, {}).values())
        rows = self.rows
        if parent in self._columns:
            rows = self._columns[parent].get("object", Tally()).count
        return max(0, rows - there)

    def _by_count(self, name: str) -> list[tuple[str, Tally]]:
        return sorted(self.columns()[name].items(), key=lambda item: (-item[1].count, item[0]))

    def rarest(self, name: str) -> Spot:
        """Where the type a column holds least often was seen first."""
        return self._by_count(name)[-1][1].spots[0]

    def text(self, name: str) -> str:
        """A column in words: its types by how common they are, the rare ones with their places."""
        types = self._by_count(name)
        one_file = len({spot[0] for _, tally in types for spot in tally.spots}) == 1
        parts = [f"{types[0][0]} {types[0][1].count:,}"]
        parts += [f"{kind} {tally.count:,}{tally.where(one_file)}" for kind, tally in types[1:]]
        absent = self.missing(name)
        return ", ".join([*parts, f"missing {absent:,}"] if absent else parts)

    def mixed(self) -> list[str]:
        """The columns whose values no single type holds; numbers go together, null goes with everything.

        In a CSV all is text, and some text looks like a number. Only a column that is nearly all numbers is odd.
        """
        return [name for name, types in self.columns().items() if len(families(types)) > 1 and not _mere_text(types)]


def _mere_text(types: Mapping[str, Tally]) -> bool:
    numbers = sum(tally.count for kind, tally in types.items() if kind in _NUMBERS)
    return "text" in types and numbers < 9 * types["text"].count


def families(types: Iterable[str]) -> set[str]:
    """The kinds of types there are, null left out.

    >>> sorted(families(["int", "float", "null", "list[str]"]))
    ['list', 'number']
    """
    return {_FAMILIES.get(kind) or kind.partition("[")[0] for kind in types if kind not in HOLLOW}


def _shape(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return str if value else "empty"
    if kind is float:
        return float if value == value else "nan"
    if kind is int:
        return int
    if kind is dict:
        return tuple(value), tuple(map(_shape, value.values()))
    if kind is list:
        kinds = set(map(type, value))
        return frozenset("object" if k is dict else _name(k) for k in kinds)
    return kind


def _text_shape(value: Any) -> Any:
    return KINDS[kind_of(value)] if type(value) is str else _shape(value)


def _name(shape: Any) -> str:
    if isinstance(shape, frozenset):
        return f"list[{'|'.join(sorted(shape))}]"
    if isinstance(shape, str):
        return shape
    return _NAMES.get(shape) or str(getattr(shape, "__name__", shape))


def is_guess(row: Row) -> bool:
    """Whether what was made of a faulty row says nothing about the types of its columns."""
    return any(fault.code in GUESSED for fault in row.faults)


class _SchemaSurvey(Survey):
    def __init__(self) -> None:
        self.schema = Schema()
        self.file, self.text = "", False

    def rows(self, rows: Sequence[Row], digests: Sequence[int] | None = None) -> None:
        for row in rows:
            if row.values is not None and not is_guess(row):
                self.schema.add(row.values, (self.file, row.line, None), text=self.text)

    def columns(self, batch: Columns) -> None:
        self.schema.add_columns(self.file, batch)


def schema_of(tables: Iterable[Table]) -> Schema:
    """The schema of some tables: one pass over each."""
    survey = _SchemaSurvey()
    for table in tables:
        survey.file, survey.text = table.name, table.kind == "csv"
        table.scan(survey)
    return survey.schema
