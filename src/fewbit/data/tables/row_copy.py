# SPDX-License-Identifier: Apache-2.0
"""A mended copy of a row file, without the rows nothing can be made of.

A file without faults is copied byte for byte. In a file with faults the rows that could be read keep their values
(as `Row.values` has them: the obvious repair made). Rows of which nothing can be made, or only a guess (fields
missing or too many, characters lost), are left out; text is written as UTF-8 with LF.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from itertools import compress
from pathlib import Path
from typing import Any

import orjson

from fewbit.data.findings import Code, Severity
from fewbit.data.tables import compression
from fewbit.data.tables.codes import GUESSED
from fewbit.data.tables.csv_record import joined
from fewbit.data.tables.csv_table import CsvTable
from fewbit.data.tables.json_table import JsonTable
from fewbit.data.tables.parquet import ParquetTable
from fewbit.data.tables.rules import Rules
from fewbit.data.tables.schema import Tally
from fewbit.data.tables.table import Row, Table
from fewbit.data.tables.text_table import TextTable

_STAYS = frozenset({"header-space", "header-like-data", "delimiter-unclear", "not-rows"})
"""What is said about a file and only its owner can change."""

_HOPELESS = frozenset({"nul-byte", "bad-encoding", "coco-json"})
"""What is said about a file (or the header of a CSV) that makes a copy of its rows worthless."""

Tallies = dict[str, Tally]


class RowCopy:
    """Copies tables of one dataset.

    Args:
        codes: the codes of the format.
        rules: what the rows must pass: chats and labels.
        names: of all files of the dataset, which no other file may take.
        reencode: rewrite even clean files, because they were read in an encoding of the user's choice.
    """

    def __init__(self, codes: Mapping[str, Code], rules: Rules, names: Iterable[str], *, reencode: bool):
        self.codes = codes
        self.rules = rules
        self.names = frozenset(names)
        self.reencode = reencode

    def copy(self, table: Table, out: Path) -> list[str]:
        """Copy one table into the folder `out`, under its own name where that is free, and say what changed."""
        mended, dropped, kept = self._faults(table)
        if not mended and not dropped and not (self.reencode and isinstance(table, TextTable)):
            shutil.copyfile(table.path, self._target(table, table.name, out))
            return []
        if not any(kept):
            return [f"{table.name}: left out, no row of it can be read ({_words({**mended, **dropped}, table)})"]
        target = self._target(table, _plain_name(table.name), out)
        _write(target, table, kept)
        changes = [f"{table.name}: written again{_how(table, target)}"]
        for code, tally in sorted(dropped.items()):
            rows = "row" if tally.count == 1 else "rows"
            changes.append(
                f"{table.name}: {tally.count:,} × {code}: {rows} left out{tally.where()}{_advice(code, table)}"
            )
        for code, tally in sorted(mended.items()):
            changes.append(f"{table.name}: {tally.count:,} × {code}: mended{tally.where()}")
        return changes

    def _faults(self, table: Table) -> tuple[Tallies, Tallies, bytearray]:
        """Where each fault is mended, where it costs a row, and which rows are kept."""
        mended: Tallies = {}
        dropped: Tallies = {}
        kept = bytearray()
        notes = [note for note in table.notes() if self._counts(note.code)]
        for note in notes:
            mended.setdefault(note.code, Tally()).add(1, [(table.name, note.line, None)])
        for number, row in enumerate(table.rows()):
            found = [fault.code for fault in row.faults if self._counts(fault.code)]
            fatal = found if row.values is None or _incurable(row, table) else self._failed(row)
            for code in fatal or found:
                spot = (table.name, row.line, number if row.line is None else None)
                (dropped if fatal else mended).setdefault(code, Tally()).add(1, [spot])
            kept.append(row.values is not None and not fatal)
        if any(note.code in _HOPELESS for note in notes):
            kept = bytearray(len(kept))
        return mended, dropped, kept

    def _counts(self, code: str) -> bool:
        return self.codes[code].severity is not Severity.INFO and code not in _STAYS

    def _failed(self, row: Row) -> list[str]:
        """What chats and labels have against a row; rewriting does not cure that."""
        assert row.values is not None
        found = self.rules.apply(row._replace(values=dict(row.values))).faults[len(row.faults) :]
        return [fault.code for fault in found if self.codes[fault.code].severity is Severity.ERROR]

    def _target(self, table: Table, name: str, out: Path) -> Path:
        """Where a table goes: under a name, or numbered when that is another's."""
        target = out / name
        stem, dot, suffixes = target.name.partition(".")
        number = 1
        while target.exists() or self._taken(table, target.relative_to(out).as_posix()):
            number += 1
            target = target.with_name(f"{stem}-{number}{dot}{suffixes}")
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def _taken(self, table: Table, name: str) -> bool:
        return name != table.name and name in self.names


def _incurable(row: Row, table: Table) -> bool:
    """Whether a row, written again, would be a guess, or hold nothing where a number is declared."""
    assert row.values is not None
    guessed = any(fault.code in GUESSED for fault in row.faults)
    return guessed or (isinstance(table, CsvTable) and None in row.values.values())


def _advice(code: str, table: Table) -> str:
    return (
        " (encoding='cp1252' or another may read what is not UTF-8)"
        if code == "bad-encoding" and isinstance(table, TextTable)
        else ""
    )


def _plain_name(name: str) -> str:
    path = Path(name)
    return str(path.with_suffix("")) if path.suffix.lower() in compression.SUFFIXES else name


def _how(table: Table, target: Path) -> str:
    how = " as UTF-8 with LF" if isinstance(table, TextTable) else ""
    if isinstance(table, JsonTable) and table.shape.kind == "data":
        how += ", the rows alone"
    return how if target.name == table.path.name else f"{how}, as {target.name}"


def _words(faults: Tallies, table: Table) -> str:
    told = (f"{code} × {tally.count:,}{tally.where()}{_advice(code, table)}" for code, tally in sorted(faults.items()))
    return ", ".join(told) or "empty"


def _write(target: Path, table: Table, kept: bytearray) -> None:
    if isinstance(table, ParquetTable):
        table.write_kept(target, kept)
        return
    source = table.untyped() if isinstance(table, CsvTable) else table
    rows = (row.values for row in compress(source.rows(), kept) if row.values is not None)
    with target.open("wb") as file:
        if isinstance(table, CsvTable):
            file.writelines(_csv(rows, table))
        elif (
            isinstance(table, JsonTable) and table.shape.kind in ("array", "data") and target.suffix.lower() == ".json"
        ):
            file.writelines(_array(rows))
        else:
            file.writelines(_json(row) + b"\n" for row in rows)


def _csv(rows: Iterable[dict[str, Any]], table: CsvTable) -> Iterator[bytes]:
    names, delimiter = table.opening.names, table.opening.dialect.delimiter
    if table.opening.dialect.lead > 1:
        yield f"sep={delimiter}\n".encode()
    yield joined(names, delimiter).encode() + b"\n"
    for row in rows:
        yield joined([row[name] for name in names], delimiter).encode() + b"\n"


def _array(rows: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    before = b"[\n"
    for row in rows:
        yield before + _json(row)
        before = b",\n"
    yield b"\n]\n"


def _json(row: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(row)
    except TypeError:  # an integer beyond 64 bits
        return json.dumps(row, ensure_ascii=False).encode()
