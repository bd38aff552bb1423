# SPDX-License-Identifier: Apache-2.0
"""Listening to a pass over tables for the types of their columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fewbit.data.tables.csv_kinds import KINDS
from fewbit.data.tables.schema import Schema
from fewbit.data.tables.table import Fault, Row, Table
from fewbit.data.tables.text_column import TextColumn

_PLACES = 5


def take_columns(
    schema: Schema, file: str, names: Sequence[str], columns: Sequence[Sequence[Any]], lines: Sequence[int]
) -> None:
    """Take in rows that come by column; a text column brings the kinds of its values with it."""
    schema.rows += len(lines)
    for name, column in zip(names, columns):
        if isinstance(column, TextColumn):
            kinds, words = column.kinds, list(KINDS)
        else:
            found = [_word(value) for value in column]
            words = list(dict.fromkeys(found))
            kinds = np.array([words.index(word) for word in found], dtype=np.uint8)
        for kind, count in enumerate(np.bincount(kinds, minlength=len(words)).tolist()):
            if count:
                at = np.flatnonzero(kinds == kind)[:_PLACES].tolist()
                schema.add_column(name, words[kind], count, [(file, int(lines[row])) for row in at])


def _word(value: Any) -> str:
    return "null" if value is None else type(value).__name__


class SchemaSurvey:
    """Fills a schema."""

    def __init__(self) -> None:
        self.schema = Schema()
        self.file = ""

    def fault(self, fault: Fault) -> None:
        """Not asked for here."""

    def rows(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.values is not None and not row.faults:
                self.schema.add(row.values, (self.file, row.line))

    def columns(
        self, names: Sequence[str], columns: Sequence[Sequence[Any]], lines: Sequence[int], digests: object = None
    ) -> None:
        take_columns(self.schema, self.file, names, columns, lines)


def schema_of(tables: Iterable[Table]) -> Schema:
    """The schema of some tables: one pass over each."""
    survey = SchemaSurvey()
    for table in tables:
        survey.file = table.name
        table.scan(survey)
    return survey.schema
