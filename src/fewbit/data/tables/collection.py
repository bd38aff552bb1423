# SPDX-License-Identifier: Apache-2.0
"""All tables of a dataset with what is known about them together: splits, layout, labels."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from fewbit.data import cache
from fewbit.data.tables.field import field
from fewbit.data.tables.labels import BadLabel, Labels, plain_label
from fewbit.data.tables.layout import Layout, recognise
from fewbit.data.tables.projection import projection
from fewbit.data.tables.rules import Rules
from fewbit.data.tables.shards import Shard, by_split, open_table
from fewbit.data.tables.table import Fault, Row, Table
from fewbit.errors import DataError

_HEAD = 32
_CLASSES = 1 << 16


@dataclass(frozen=True)
class Options:
    """The options of the format, as `formats.rows.read` documents them."""

    encoding: str | None = None
    delimiter: str | None = None
    types: Mapping[str, Any] | None = None
    columns: Mapping[str, str] | Iterable[str] | str | None = None
    label: str | None = None
    layout: str | None = None


class Collection:
    """The tables of a dataset.

    Args:
        source: the file or folder.
        shards: its row files.
        task: `text-classification` and `text-regression` make the label a number; others leave rows as they are.
        options: the user's.
    """

    def __init__(self, source: Path, shards: Sequence[Shard], task: str | None, options: Options):
        self.source = source
        self.options = options
        self.task = task
        self.chosen = projection(options.columns)
        self._tables: dict[str, Table] = {}
        self.splits = by_split(shards)

    def table(self, shard: Shard) -> Table:
        """The table of a shard, opened once."""
        if shard.name not in self._tables:
            known = self.options
            self._tables[shard.name] = open_table(
                shard, encoding=known.encoding, delimiter=known.delimiter, types=known.types
            )
        return self._tables[shard.name]

    @cached_property
    def head(self) -> list[dict[str, Any]]:
        """The first rows that can be read, as they stand in the first file that has any."""
        for shards in self.splits.values():
            for shard in shards:
                first = takewhile(_short, islice(self.table(shard).rows(), _HEAD))
                rows = [row.values for row in first if row.values is not None]
                if rows:
                    return rows
        return []

    @cached_property
    def layout(self) -> Layout:
        """What the rows are, by the first of them."""
        rows = self.head
        if self.chosen is not None:
            rows = [{name: field(row, path) for name, path in self.chosen.items()} for row in rows]
        return recognise(rows, label=self.options.label, layout=self.options.layout)

    @property
    def labelled(self) -> bool:
        """Whether the task has labels at all."""
        return self.task in ("text-classification", "text-regression")

    @property
    def label(self) -> str | None:
        """The label column in the sample, for a task that needs one.

        Raises:
            DataError: there is none.
        """
        if not self.labelled:
            return None
        name = self.layout.columns.get("label")
        if name is None and self.head:
            raise DataError(
                f"no column holds the labels; the columns are {', '.join(self.head[0])}",
                code="no-label",
                where=self.source,
                try_="label='…' names it",
            )
        return name

    @property
    def label_path(self) -> str | None:
        """Where the label lies in a row as it stands in the file."""
        name = self.label
        return name if name is None or self.chosen is None else self.chosen.get(name, name)

    @cached_property
    def labels(self) -> Labels | None:
        """The classes, from all of train (or of everything, when nothing is called train)."""
        path = self.label_path
        if path is None or self.task != "text-classification":
            return None
        train = self.splits.get("train") or [shard for shards in self.splits.values() for shard in shards]
        return Labels.of(value for shard in train for value in self._label_values(shard, path))

    def rules(self, *, encode: bool = True) -> Rules:
        """What is done to each row.

        Args:
            encode: turn labels into numbers, which may take a pass over train.
        """
        name = self.layout.columns.get("messages") if self.layout.name == "chat" else None
        return Rules(
            chosen=self.chosen,
            known=tuple(dict.fromkeys(column for row in self.head for column in row)),
            chat=name,
            label=self.label if encode else None,
            labels=self.labels if encode else None,
            number=self.task == "text-regression",
        )

    def _label_values(self, shard: Shard, path: str) -> list[Any]:
        table = self.table(shard)
        with contextlib.suppress(OSError, json.JSONDecodeError):
            kept = cache.entry("labels", table.path, path, repr(self.options.encoding), repr(self.options.delimiter))
            if kept.exists():
                return list(json.loads(kept.read_bytes()))
            values = _distinct(table, path)
            cache.keep(kept, lambda temporary: temporary.write_text(json.dumps(values)))
            return values
        return _distinct(table, path)


def _short(row: Row) -> bool:
    """Not a row whose end may be gigabytes away."""
    return not row.faults or row.faults[0].code != "row-too-long"


class _Distinct:
    """Listens to a pass over a table for the different values of one column."""

    def __init__(self, path: str):
        self.path = path
        self.found: dict[Any, None] = {}

    def fault(self, fault: Fault) -> None:
        """Not asked for here."""

    def rows(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.values is not None:
                value = field(row.values, self.path)
                self._take(value if isinstance(value, list) else [value])

    def columns(
        self, names: Sequence[str], columns: Sequence[Sequence[Any]], lines: Sequence[int], digests: object = None
    ) -> None:
        if self.path in names:
            self._take(dict.fromkeys(columns[list(names).index(self.path)]))

    def _take(self, values: Iterable[Any]) -> None:
        for value in values:
            with contextlib.suppress(BadLabel):
                self.found[plain_label(value)] = None
        if len(self.found) > _CLASSES:
            raise DataError(
                f"column {self.path!r} has more than {_CLASSES:,} different values",
                code="bad-label",
                expected="the label of a classification",
                try_="label='…' names another column; task='text-regression' for numbers",
            )


def _distinct(table: Table, path: str) -> list[Any]:
    survey = _Distinct(path)
    table.scan(survey)
    return list(survey.found)
