# SPDX-License-Identifier: Apache-2.0
"""A mended copy of a row file, without the rows nothing can be made of.

A file without faults is copied byte for byte. In a file with faults the rows that could be read keep their values
(as `Row.values` has them: the obvious repair made), the others are left out; text is written as UTF-8 with LF.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import compress
from pathlib import Path
from typing import Any

import orjson

from fewbit.data.findings import Code, Severity
from fewbit.data.tables import compression
from fewbit.data.tables.csv_record import joined
from fewbit.data.tables.csv_table import CsvTable
from fewbit.data.tables.json_table import JsonTable
from fewbit.data.tables.parquet import ParquetTable
from fewbit.data.tables.rules import Rules
from fewbit.data.tables.table import Row, Table
from fewbit.data.tables.text_table import TextTable

_STAYS = frozenset({"header-space", "header-like-data", "delimiter-unclear", "not-rows"})
"""What is said about a file and only its owner can change."""


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
            return [f"{table.name}: left out, no row of it can be read ({_words(dropped + mended)})"]
        target = self._target(table, _plain_name(table.name), out)
        _write(target, table, kept)
        changes = [f"{table.name}: written again{_how(table, target)}"]
        changes += [f"{table.name}: {count:,} × {code}: row left out" for code, count in sorted(dropped.items())]
        changes += [f"{table.name}: {count:,} × {code}: mended" for code, count in sorted(mended.items())]
        return changes

    def _faults(self, table: Table) -> tuple[Counter[str], Counter[str], bytearray]:
        """How often each fault is mended, how often it costs a row, and which rows are kept."""
        notes = [note.code for note in table.notes() if self._counts(note.code)]
        mended, dropped = Counter(notes), Counter[str]()
        kept = bytearray()
        for row in table.rows():
            found = [fault.code for fault in row.faults if self._counts(fault.code)]
            fatal = found if row.values is None or _incurable(row, table) else self._failed(row)
            (dropped if fatal else mended).update(fatal or found)
            kept.append(row.values is not None and not fatal)
        if "nul-byte" in notes:  # the header's
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
    """Whether a CSV row, written again, would have its fault again: a NUL, or nothing where a number is declared."""
    assert row.values is not None
    nul = any(fault.code == "nul-byte" for fault in row.faults)
    return nul or (isinstance(table, CsvTable) and None in row.values.values())


def _plain_name(name: str) -> str:
    path = Path(name)
    return str(path.with_suffix("")) if path.suffix.lower() in compression.SUFFIXES else name


def _how(table: Table, target: Path) -> str:
    how = " as UTF-8 with LF" if isinstance(table, TextTable) else ""
    if isinstance(table, JsonTable) and table.shape.kind == "data":
        how += ", the rows alone"
    return how if target.name == table.path.name else f"{how}, as {target.name}"


def _words(counts: Counter[str]) -> str:
    return ", ".join(f"{code} × {count:,}" for code, count in sorted(counts.items())) or "empty"


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
