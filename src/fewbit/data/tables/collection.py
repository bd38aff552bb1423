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
from fewbit.data.tables import chat
from fewbit.data.tables.labels import BadLabel, Labels, plain_label
from fewbit.data.tables.layout import TEXT_PARTS, Layout, label_among, recognise
from fewbit.data.tables.projection import field, has, pairs, projection
from fewbit.data.tables.rules import Rules
from fewbit.data.tables.shards import Shard, by_split
from fewbit.data.tables.table import Columns, Row, Survey, Table
from fewbit.errors import DataError, UsageError, nearest

TASKS = ("text-classification", "text-regression", "text-generation")
"""What rows can serve; the first two make the label a number, the last leaves rows as they are."""

_HEAD = 32
_CLASSES = 1 << 16


@dataclass(frozen=True)
class Options:
    """The options of the format, as `formats.rows.read` documents them."""

    encoding: str | None = None
    delimiter: str | None = None
    types: Mapping[str, Any] | str | None = None
    columns: Mapping[str, str] | Iterable[str] | str | None = None
    label: str | None = None
    layout: str | None = None

    def __post_init__(self) -> None:
        # The command line reads what looks like JSON as JSON: `label=1` is a column called 1.
        for name in ("encoding", "delimiter", "label", "layout"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else str(value))
        types = pairs(self.types) if isinstance(self.types, str) else self.types
        if types is not None and not isinstance(types, Mapping):
            raise UsageError(f"types cannot be {types!r}", where="types", expected="{'label': 'int', …}")
        object.__setattr__(self, "types", types)


class Collection:
    """The tables of a dataset.

    Args:
        source: the file or folder.
        shards: its row files.
        task: one of `TASKS`; without one, rows stay as they are.
        options: the user's.

    Raises:
        UsageError: rows know no such task.
    """

    def __init__(self, source: Path, shards: Sequence[Shard], task: str | None, options: Options):
        if task is not None and task not in TASKS:
            raise UsageError(f"rows cannot serve the task {task!r}", where="task", expected=nearest(task, TASKS))
        self.source = source
        self.options = options
        self.task = task
        self.chosen = projection(options.columns)
        self._tables: dict[Shard, Table] = {}
        self.splits = by_split(shards)

    def table(self, shard: Shard) -> Table:
        """The table of a shard, opened once."""
        if shard not in self._tables:
            self._tables[shard] = self._open(shard)
        return self._tables[shard]

    def _open(self, shard: Shard) -> Table:
        """Options that the file's kind does not have are passed over, as a folder may mix kinds."""
        options = self.options
        if shard.kind == "json":
            from fewbit.data.tables.json_table import JsonTable

            return JsonTable(shard.path, shard.name, encoding=options.encoding)
        if shard.kind == "csv":
            from fewbit.data.tables.csv_table import CsvTable

            types = options.types if isinstance(options.types, Mapping) else None
            encoding, delimiter = options.encoding, options.delimiter
            return CsvTable(shard.path, shard.name, encoding=encoding, delimiter=delimiter, types=types)
        from fewbit.data.tables.parquet import ParquetTable

        return ParquetTable(shard.path, shard.name)

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
    def samples(self) -> list[dict[str, Any]]:
        """The first rows with the columns the user chose."""
        if self.chosen is None:
            return self.head
        return [{name: field(row, path) for name, path in self.chosen.items()} for row in self.head]

    @cached_property
    def layout(self) -> Layout:
        """What the rows are, by the first of them."""
        return recognise(self.samples, label=self.options.label, layout=self.options.layout)

    def lost(self) -> list[str]:
        """What is to say about chosen columns that none of the first rows has."""
        return [
            f"column {name!r}: none of the first {len(self.head)} rows has {path!r}"
            for name, path in (self.chosen or {}).items()
            if self.head and not any(has(row, path) for row in self.head)
        ]

    @cached_property
    def label(self) -> str | None:
        """The label column in the sample, for a task that needs one.

        Raises:
            DataError: there is none.
        """
        if self.task not in ("text-classification", "text-regression"):
            return None
        columns = list(dict.fromkeys(name for row in self.samples for name in row))
        name = self.options.label or self.layout.columns.get("label") or label_among(columns)
        if columns and (name is None or not any(has(row, name) for row in self.samples)):
            what = "no column holds the labels" if name is None else f"the first rows have no column {name!r}"
            raise DataError(
                f"{what}; the columns are {', '.join(columns)}",
                code="no-label",
                where=self.source,
                try_="label='…' names it; with columns=, it must be one of them",
            )
        return name

    @property
    def label_path(self) -> str | None:
        """Where the label lies in a row as it stands in the file."""
        name = self.label
        if name is None or self.chosen is None:
            return name
        first, dot, rest = name.partition(".")
        return self.chosen.get(name) or self.chosen.get(first, first) + dot + rest

    @property
    def text_paths(self) -> list[str]:
        """Where the texts a model is to read lie in a row as it stands in the file."""
        names = [column for part, column in self.layout.columns.items() if part in TEXT_PARTS]
        return names if self.chosen is None else [self.chosen[name] for name in names if name in self.chosen]

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
        known = dict.fromkeys(column for row in self.head for column in row)
        return Rules(
            chosen=self.chosen,
            known=tuple(column for column in known if name is None or column not in chat.COLUMNS),
            chat=name,
            label=self.label if encode else None,
            labels=self.labels if encode else None,
        )

    def _label_values(self, shard: Shard, path: str) -> list[Any]:
        table = self.table(shard)
        with contextlib.suppress(OSError, json.JSONDecodeError):
            options = self.options
            detail = (path, table.path.suffix, *map(repr, (options.encoding, options.delimiter, options.types)))
            kept = cache.entry("labels", table.path, *detail)
            if kept.exists():
                return list(json.loads(kept.read_bytes()))
            values = _distinct(table, path)
            cache.keep(kept, lambda temporary: temporary.write_text(json.dumps(values)))
            return values
        return _distinct(table, path)


def _short(row: Row) -> bool:
    """Not a row whose end may be gigabytes away."""
    return not row.faults or row.faults[0].code != "row-too-long"


class _Distinct(Survey):
    """Listens to a pass over a table for the different values of one column."""

    def __init__(self, path: str):
        self.path = path
        self.found: dict[Any, None] = {}

    def rows(self, rows: Sequence[Row], digests: Sequence[int] | None = None) -> None:
        for row in rows:
            if row.values is not None:
                value = field(row.values, self.path)
                self._take(value if isinstance(value, list) else [value])

    def columns(self, batch: Columns) -> None:
        if self.path in batch.names:
            self._take(dict.fromkeys(batch.values[list(batch.names).index(self.path)]))

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
