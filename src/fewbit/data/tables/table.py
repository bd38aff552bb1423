# SPDX-License-Identifier: Apache-2.0
"""The contract of a table: one file of rows, whatever its kind, streamed in order or read at random.

A table never decides what to do about a fault. It hands every fault out beside the row it belongs to, and
one place above (`row_source`) applies the policy. The order is the same on both ways: `list(table.rows())`
equals `[table.row(i) for i in range(table.count())]`, faulty rows included.

    JsonTable      json_table.py   .jsonl, .ndjson, .json
    CsvTable       csv_table.py    .csv, .tsv
    ParquetTable   parquet.py      .parquet

What tables of text have in common is in `text_table.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a row or with a whole file.

    Args:
        code: the kebab-case code, declared in the `CODES` of the table's own subject and gathered in `codes.py`.
        message: what was found, with the values in it.
        line: line of the file, from 1; `None` when the file has no lines.
        offset: byte offset in the file's plain UTF-8 text (after unpacking and transcoding).
        field: the column, when one is to blame.
        fix: what to try, when the code's own text can be bettered.
    """

    code: str
    message: str
    line: int | None = None
    offset: int | None = None
    field: str | None = None
    fix: str | None = None


class Broken(Exception):
    """A stream of bytes cannot go on. Caught by the table that reads it, never seen by a user."""

    def __init__(self, code: str, message: str, *, offset: int | None = None, fix: str | None = None):
        super().__init__(message)
        self.fault = Fault(code, message, offset=offset, fix=fix)


class Row(NamedTuple):
    """One row as found: its values, or what is wrong with it, or both.

    Args:
        values: the columns. With faults beside them, these are the values after the obvious repair (a short row
            padded, the last of two equal keys taken). `None`: nothing could be made of the row.
        line: where the row begins, from 1; `None` when the file has no lines.
        faults: empty for a good row.
    """

    values: dict[str, Any] | None
    line: int | None
    faults: tuple[Fault, ...] = ()


def broken_row(fault: Fault) -> Row:
    """The row that stands for the place where a file breaks off."""
    return Row(None, fault.line, (fault,))


class Columns(NamedTuple):
    """Faultless rows by column.

    Args:
        names: of the columns.
        values: `values[c]` has the values of `names[c]`, one for each row. A CSV hands out `text_column.TextColumn`s:
            their `kinds` and `lengths` are arrays that cost nothing, their values are decoded when asked for. A
            million rows are checked in time only if values are asked for in few columns (labels).
        lines: the line each row begins on.
        digests: a 64-bit hash of each row's values, for finding repeated rows.
    """

    names: Sequence[str]
    values: Sequence[Iterable[Any]]
    lines: Sequence[int]
    digests: Sequence[int]


class Survey:
    """Who listens to a full pass over a table; this one listens to nothing (see `survey.py` for one that does)."""

    def fault(self, fault: Fault) -> None:
        """A fault of the file, or of a row that is not handed on."""

    def rows(self, rows: Sequence[Row], digests: Sequence[int] | None = None) -> None:
        """Some rows, in order, their faults inside; any number at a time, a few thousand at best.

        `digests[r]`, where the kind hands out columns too, is the row's hash by the same rule as there.
        """

    def columns(self, batch: Columns) -> None:
        """Some faultless rows by column."""


class Table(ABC):
    """One file of rows.

    Args:
        path: the file.
        name: its name relative to the dataset's root, for places.
    """

    kind: str

    def __init__(self, path: Path, name: str):
        self.path = path
        self.name = name

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """Every row in order, in bounded memory and without an index; a file that breaks ends in a faulty row."""

    @abstractmethod
    def count(self) -> int:
        """How many rows `rows` yields; builds the index or finds it in the cache."""

    @abstractmethod
    def row(self, index: int) -> Row:
        """The row at an index from 0 to `count() - 1`."""

    @abstractmethod
    def line(self, index: int) -> int | None:
        """Where the row at an index begins, without reading it."""

    def notes(self) -> Sequence[Fault]:
        """What is to say about the file as a whole, found in its beginning: an odd header, a guessed delimiter."""
        return ()

    def progress(self, rows: int) -> tuple[str, int, int | None]:
        """How far a pass is that has handed out so many rows: in which unit, how many are done, of how many."""
        return "rows", rows, None

    def scan(self, survey: Survey) -> None:
        """One full pass: every note, row and fault to the survey. A kind that can go by columns overrides this."""
        for note in self.notes():
            survey.fault(note)
        batch: list[Row] = []
        for row in self.rows():
            batch.append(row)
            if len(batch) == 4096:
                survey.rows(batch)
                batch = []
        survey.rows(batch)
