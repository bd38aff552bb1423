# SPDX-License-Identifier: Apache-2.0
"""A repaired copy of text tables: unusable rows are left out, certain repairs made, the rest copied byte for byte."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import orjson

from fewbit.data.rows.blocks import Block
from fewbit.data.rows.csv_reader import CsvReader
from fewbit.data.rows.json_reader import JsonReader
from fewbit.data.rows.meaning import RowSource
from fewbit.data.rows.table import Row, nested
from fewbit.data.rows.text_table import Shard, TextTable
from fewbit.data.types import DataReport
from fewbit.errors import plural

_LINES_SHOWN = 5


def write_tables(source: RowSource, folder: Path) -> list[str]:
    """Write the files of a source into a folder; a file without problems is copied byte for byte.

    Args:
        source: scanned with `full` depth.
        folder: empty.

    Returns:
        One line per change.
    """
    table = source.table
    assert isinstance(table, TextTable)
    dropped = set(source.dropped)
    used_names = {shard.name for shard in table.shards}
    changes: list[str] = []
    for shard, report, blocks in table.scan_again():
        target = folder / shard.name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(target.name + ".tmp")
        with temporary.open("wb") as out:
            lost = _write_rows(shard, blocks, dropped, out)
        described = _changes(shard, report, lost)
        if described or _renamed(shard) or shard.reader.text.encoding != "utf-8":
            plain_name = _plain_name(shard.name, used_names)
            os.replace(temporary, folder / plain_name)
            written = f"{shard.name}: written again" + (f" as {plain_name}" if plain_name != shard.name else "")
            changes += [written, *described]
        else:
            temporary.unlink()
            with shard.reader.text.files.open(shard.name) as stream, target.open("wb") as out:
                shutil.copyfileobj(stream, out)
    if source.plan.media is not None:
        _copy_media(source, folder)
    return changes


def _write_rows(shard: Shard, blocks: Iterator[tuple[int, Block]], dropped: set[int], out: BinaryIO) -> int:
    """Write the usable rows of a file; how many were left out by their meaning."""
    reader = shard.reader
    lost = 0
    array = isinstance(reader, JsonReader) and reader.shape.kind in ("array", "data")
    with reader.text.open() as stream:
        if isinstance(reader, CsvReader):
            out.write(_header(reader, stream))
        out.write(b"[\n" if array else b"")
        separator = b""
        for first, block in blocks:
            spans = zip(block.rows, block.starts.tolist(), block.ends.tolist())
            for position, (row, start, end) in enumerate(spans):
                if first + position in dropped:
                    lost += 1
                    continue
                if position in block.repaired:
                    raw = _serialized(reader, row)
                else:
                    stream.seek(start)
                    raw = stream.read(end - start)
                out.write(separator + (raw.rstrip(b"\n") if array else raw))
                separator = b",\n" if array else b"" if raw.endswith((b"\n", b"\r")) else b"\n"
        out.write(b"\n]\n" if array else b"")
    return lost


def _header(reader: CsvReader, stream: BinaryIO) -> bytes:
    """The bytes before the first row, or the new names of the columns."""
    if not reader.renamed:
        stream.seek(0)
        return stream.read(reader.text.begin + reader.lead)
    return _csv_line(reader, list(reader.columns))


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


def _renamed(shard: Shard) -> bool:
    return isinstance(shard.reader, CsvReader) and shard.reader.renamed


def _changes(shard: Shard, report: DataReport, lost: int) -> list[str]:
    """What was left out or repaired, by code, with the first lines."""
    changes = []
    lines: dict[str, list[int]] = {}
    for issue in report.issues:
        lines.setdefault(issue.code, []).append(issue.location.line or 0)
    for code, count in sorted(Counter(report.counts).items()):
        action = report.action(report.types[code])
        if action == "keep":
            continue
        line_list = ", ".join(map(str, lines[code][:_LINES_SHOWN])) + (", …" if count > _LINES_SHOWN else "")
        change = "repaired" if action == "repair" else f"{plural(count, 'row')} left out"
        changes.append(f"{shard.name}: {code}: {change}, {'line' if count == 1 else 'lines'} {line_list}")
    if lost:
        changes.append(f"{shard.name}: {plural(lost, 'row')} left out because of labels, messages or missing files")
    return changes


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


def _copy_media(source: RowSource, folder: Path) -> None:
    """The files that the rows name."""
    media = source.plan.media
    assert media is not None
    column = source.plan.layout.roles[media.kind]
    for index in range(len(source)):
        location = source.location(index)
        position = location.index if location.index is not None else index
        name = media.find(nested(source.plan.project(source.table.row(position)), column), location.file)
        if name is not None and media.files is not None and not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with media.files.open(name) as stream, (folder / name).open("wb") as out:
                shutil.copyfileobj(stream, out)
