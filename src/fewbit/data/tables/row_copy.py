# SPDX-License-Identifier: Apache-2.0
"""A mended copy of a row file: UTF-8, LF, one row after another, without the rows nothing can be made of.

A file without faults is copied byte for byte. In a file with faults the rows that could be read keep their values
(as `Row.values` has them: the obvious repair made), the others are left out.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from fewbit.data.findings import Code, Severity
from fewbit.data.tables import compression
from fewbit.data.tables.csv_table import CsvTable
from fewbit.data.tables.json_table import JsonTable
from fewbit.data.tables.rules import Rules
from fewbit.data.tables.table import Row, Table


class RowCopy:
    """Copies tables of one dataset.

    Args:
        codes: the codes of the format.
        rules: what the rows must pass: chats and labels.
        reencode: rewrite even clean files, because they were read in an encoding of the user's choice.
    """

    def __init__(self, codes: dict[str, Code], rules: Rules, *, reencode: bool):
        self.codes = codes
        self.rules = rules
        self.reencode = reencode

    def copy(self, table: Table, out: Path) -> list[str]:
        """Copy one table under its own name into the folder `out` and say what changed."""
        target = out / table.name
        target.parent.mkdir(parents=True, exist_ok=True)
        mended, dropped, kept = self._faults(table)
        if not mended and not dropped and not self.reencode:
            shutil.copyfile(table.path, target)
            return []
        if kept == 0:
            return [f"{table.name}: left out, no row of it can be read ({_words(dropped)})"]
        target = _plain_name(target, table)
        _write(target, table, (row.values for row in table.rows() if row.values is not None and self._passes(row)))
        changes = [f"{table.name}: written again as UTF-8 with LF" + _renamed(table, target)]
        changes += [f"{table.name}: {count:,} × {code}: row left out" for code, count in sorted(dropped.items())]
        changes += [f"{table.name}: {count:,} × {code}: mended" for code, count in sorted(mended.items())]
        return changes

    def _faults(self, table: Table) -> tuple[Counter[str], Counter[str], int]:
        mended = Counter(note.code for note in table.notes() if self._counts(note.code))
        dropped: Counter[str] = Counter()
        kept = 0
        for row in table.rows():
            bad = [fault.code for fault in row.faults if self._counts(fault.code)]
            if row.values is not None and self._passes(row):
                kept += 1
                mended.update(bad)
            else:
                dropped.update(bad or self._failed(row))
        return mended, dropped, kept

    def _counts(self, code: str) -> bool:
        return self.codes[code].severity is not Severity.INFO

    def _passes(self, row: Row) -> bool:
        return not self._failed(row)

    def _failed(self, row: Row) -> list[str]:
        """What chats and labels have against a row; rewriting does not cure that."""
        assert row.values is not None
        found = self.rules.apply(row._replace(values=dict(row.values))).faults[len(row.faults) :]
        return [fault.code for fault in found if self.codes[fault.code].severity is Severity.ERROR]


def _plain_name(target: Path, table: Table) -> Path:
    if target.suffix.lower() in compression.SUFFIXES:
        target = target.with_suffix("")
    return target.with_suffix(".jsonl") if table.kind == "parquet" else target


def _renamed(table: Table, target: Path) -> str:
    return "" if target.name == table.path.name else f", as {target.name}"


def _words(counts: Counter[str]) -> str:
    return ", ".join(f"{code} × {count:,}" for code, count in sorted(counts.items())) or "empty"


def _write(target: Path, table: Table, rows: Iterable[dict[str, Any]]) -> None:
    if isinstance(table, CsvTable):
        with target.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter=table.opening.dialect.delimiter, lineterminator="\n")
            writer.writerow(table.opening.names)
            writer.writerows([row.get(name, "") for name in table.opening.names] for row in rows)
        return
    array = isinstance(table, JsonTable) and table.shape.kind in ("array", "data") and target.suffix.lower() == ".json"
    with target.open("wb") as binary:
        binary.writelines(_array(rows) if array else (_json(row) + b"\n" for row in rows))


def _array(rows: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    before = b"[\n"
    for row in rows:
        yield before + _json(row)
        before = b",\n"
    yield b"\n]\n"


def _json(row: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(row, default=str)
    except TypeError:  # an integer beyond 64 bits
        return json.dumps(row, ensure_ascii=False, default=str).encode()
