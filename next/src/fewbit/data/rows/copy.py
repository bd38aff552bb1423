# SPDX-License-Identifier: Apache-2.0
"""A repaired copy of a table: unusable rows are left out, certain repairs made, the rest copied byte for byte."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from fewbit.data.rows.arrow import ArrowTable
from fewbit.data.rows.csv_reader import CsvReader
from fewbit.data.rows.json_reader import JsonReader
from fewbit.data.rows.media import BoxTable
from fewbit.data.rows.source import RowSource
from fewbit.data.rows.table import Row, Table, nested
from fewbit.data.rows.text_table import Block, Shard, TextTable
from fewbit.data.types import DataReport, Files
from fewbit.errors import plural, require

_LINES_SHOWN = 5
_BY_MEANING = "left out because of labels, messages, answers, boxes or files"


def write_text_tables(source: RowSource, folder: Path) -> list[str]:
    """Write the CSV or JSON files of a source into a folder; a file without problems is copied byte for byte."""
    changes: list[str] = []
    table, dropped = _stored_rows(source)
    if not isinstance(table, TextTable):  # rows that are not as in the file: questions of a text
        for name in {table.location(index).file for index in range(len(table))}:
            _copy(table.files, name, folder)  # type: ignore[attr-defined]
            if dropped:
                rows = table.fetch([index for index in range(len(table)) if index not in dropped])
                (folder / name).write_bytes(orjson.dumps(rows))
                left_out = f"{plural(len(dropped), 'row')} {_BY_MEANING}"
                changes += [f"{name}: written again as an array of rows", f"{name}: {left_out}"]
        _copy_media(source, folder)
        return changes
    used_names = {shard.name for shard in table.shards}
    for shard, report, blocks in table.scan_again():
        target = folder / shard.name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(target.name + ".tmp")
        with temporary.open("wb") as out:
            lost = _write_rows(shard, blocks, dropped, out)
        described = _changes(shard, report, lost)
        renamed = isinstance(shard.reader, CsvReader) and shard.reader.renamed
        if described or renamed or shard.reader.text.encoding != "utf-8":
            plain_name = _plain_name(shard.name, used_names)
            os.replace(temporary, folder / plain_name)
            written = f"{shard.name}: written again" + (f" as {plain_name}" if plain_name != shard.name else "")
            changes += [written, *described]
        else:
            temporary.unlink()
            _copy(shard.reader.text.files, shard.name, folder)
    _copy_media(source, folder)
    return changes


def write_arrow_tables(source: RowSource, folder: Path) -> list[str]:
    """Write the Parquet or Arrow files of a source without the rows that cannot be used, in the same format."""
    table, dropped = _stored_rows(source)
    assert isinstance(table, ArrowTable)
    changes: list[str] = []
    for number, row_file in enumerate(table.row_files):
        usable = {position: table.usable_rows(position, sorted(dropped)) for position in table.groups_of(number)}
        if all(rows.all() for rows in usable.values()):
            _copy(table.files, row_file.name, folder)
            continue
        target = folder / row_file.name.removesuffix(".gz").removesuffix(".zst")
        target.parent.mkdir(parents=True, exist_ok=True)
        with _writer(table, number, target) as writer:
            for position, rows in usable.items():
                for batch in _usable_batches(table, position, rows):
                    writer.write_batch(batch)
        lost = sum(int((~rows).sum()) for rows in usable.values())
        changes.append(f"{row_file.name}: {plural(lost, 'row')} left out")
    _copy_media(source, folder)
    return changes


def _stored_rows(source: RowSource) -> tuple[Table, set[int]]:
    """The table as it is stored, and the rows of it that are left out."""
    table = source.table
    if not isinstance(table, BoxTable):
        return table, set(source.dropped)
    return table.table, table.dropped.union(*(table.rows_of(image) for image in source.dropped))


def _writer(table: ArrowTable, file: int, target: Path) -> Any:
    arrow = require("pyarrow", extra="parquet", purpose="Parquet and Arrow files")
    schema = table.schemas[file]
    if table.kind == "parquet":
        return require("pyarrow.parquet", extra="parquet", purpose="Parquet files").ParquetWriter(target, schema)
    return arrow.ipc.new_file(str(target), schema)


def _usable_batches(table: ArrowTable, position: int, rows: np.ndarray) -> Iterator[Any]:
    arrow = require("pyarrow", extra="parquet", purpose="Parquet and Arrow files")
    start = 0
    for batch in table.stream(position) if rows.any() else ():
        chosen = rows[start : start + batch.num_rows]
        start += batch.num_rows
        if chosen.any():
            yield batch.filter(arrow.array(chosen))
        if not rows[start:].any():  # what follows may be damaged
            return


def _write_rows(shard: Shard, blocks: Iterator[tuple[int, Block]], dropped: set[int], out: BinaryIO) -> int:
    """Write the usable rows of a file; how many were left out by their meaning."""
    reader = shard.reader
    lost = 0
    array = isinstance(reader, JsonReader) and reader.layout == "array"
    with reader.text.open() as stream:
        if isinstance(reader, CsvReader):  # its header, and what comes before
            lead = _csv_line(reader, list(reader.columns)) if reader.renamed else None
            out.write(lead or stream.read(reader.text.begin + reader.lead))
        out.write(b"[\n" if array else b"")
        separator = b""
        for first, block in blocks:
            for position, (start, end) in enumerate(zip(block.starts.tolist(), block.ends.tolist())):
                if first + position in dropped:
                    lost += 1
                    continue
                if position in block.repaired:
                    raw = _serialized(reader, block.rows[position])
                else:
                    stream.seek(start)
                    raw = stream.read(end - start)
                out.write(separator + (raw.rstrip(b"\n") if array else raw))
                separator = b",\n" if array else b"" if raw.endswith((b"\n", b"\r")) else b"\n"
        out.write(b"\n]\n" if array else b"")
    return lost


def _serialized(reader: object, row: Row) -> bytes:
    if isinstance(reader, CsvReader):
        return _csv_line(reader, [str(row[name]) for name in reader.columns])
    try:
        return orjson.dumps(row) + b"\n"
    except orjson.JSONEncodeError:  # an integer beyond 64 bits
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _csv_line(reader: CsvReader, fields: list[str]) -> bytes:
    out = io.StringIO()
    csv.writer(out, delimiter=reader.delimiter, lineterminator="\n").writerow(fields)
    return out.getvalue().encode()


def _changes(shard: Shard, report: DataReport, lost: int) -> list[str]:
    """What was left out or repaired, by code, with the first lines."""
    changes = []
    for code, count in sorted(report.counts.items()):
        action = report.action(report.types[code])
        if action == "keep":
            continue
        lines = [str(issue.location.line or 0) for issue in report.issues if issue.code == code][:_LINES_SHOWN]
        line_list = ", ".join(lines) + (", …" if count > _LINES_SHOWN else "")
        change = "repaired" if action == "repair" else f"{plural(count, 'row')} left out"
        changes.append(f"{shard.name}: {code}: {change}, {'line' if count == 1 else 'lines'} {line_list}")
    return [*changes, f"{shard.name}: {plural(lost, 'row')} {_BY_MEANING}"] if lost else changes


def _plain_name(name: str, used_names: set[str]) -> str:
    """The name of an unpacked copy that no other file has."""
    base = name
    for suffix in (".gz", ".zst"):
        base = base[: -len(suffix)] if base.lower().endswith(suffix) else base
    if base == name or base not in used_names:
        used_names.add(base)
        return base
    stem, dot, suffix = base.rpartition(".")
    return _plain_name(f"{stem}-unpacked{dot}{suffix}.gz", used_names)


def _copy(files: Files, name: str, folder: Path) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    with files.open(name) as stream, (folder / name).open("wb") as out:
        shutil.copyfileobj(stream, out)


def _copy_media(source: RowSource, folder: Path) -> None:
    """The files that the rows name."""
    media = source.plan.media
    for index in range(len(source)) if media is not None and media.files is not None else ():
        location = source.location(index)
        position = location.index if location.index is not None else index
        assert media is not None and media.files is not None
        name = media.find(nested(source.plan.project(source.table.row(position)), media.columns[0]), location.file)
        if name is not None and not (folder / name).exists():
            _copy(media.files, name, folder)
