# SPDX-License-Identifier: Apache-2.0
"""CSV and TSV files: a header and one row per record; folders of shards, splits by file name, also `.gz` and `.zst`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fewbit.data.rows import csv_reader, header, shards, text
from fewbit.data.rows.copy import write_text_tables
from fewbit.data.rows.csv_reader import TYPES, CsvReader, CsvRecord, parse_record
from fewbit.data.rows.header import HEADER_LIKE_DATA, HEADER_MISSING, column_names, find_delimiter, like_data
from fewbit.data.rows.shards import detect_tables, row_files
from fewbit.data.rows.source import ROW_ISSUES, ROW_OPTIONS, RowSource, row_source
from fewbit.data.rows.text import EMPTY_FILE, TextFile, encoding_message, open_text, text_head
from fewbit.data.rows.text_table import Shard, TextTable
from fewbit.data.types import DataReport, Depth, Detection, Files, Format, FormatOption, Location
from fewbit.errors import UsageError, nearest, plural

SUFFIXES = (".csv", ".tsv")
_HEADER_LIMIT = 1 << 20


def detect(files: Files) -> Detection | None:
    """CSV or TSV files by their names; next to images only if the first file names them."""
    return detect_tables(files, SUFFIXES, "CSV")


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> RowSource:
    """Read headers; with `full` depth every row."""
    table_shards: list[Shard] = []
    for file in row_files(files, SUFFIXES, report):
        text_file = open_text(files, file.name, report, options.get("encoding"))
        reader = open_csv(text_file, report, options) if text_file is not None else None
        table_shards += [Shard(reader, file.split)] if reader is not None else []
    table = TextTable(table_shards, report, text_only=not options.get("types"))
    return row_source(table, files, report, depth=depth, options=options)


def open_csv(text_file: TextFile, report: DataReport, options: Mapping[str, Any]) -> CsvReader | None:
    """Find delimiter and header of a file; `None` after reporting that it has none."""
    head, is_complete = _head(text_file)
    if not head.strip():
        report.add(EMPTY_FILE, "there is nothing in it", Location(text_file.name))
        return None
    delimiter, begin = find_delimiter(head, text_file.name, report, options.get("delimiter"))
    separator = delimiter.encode()
    record = parse_record(head, begin, separator)
    while record is not None and record.fields == [b""] and record.end < len(head):  # blank lines may come first
        begin = record.end
        record = parse_record(head, begin, separator)
    given = options.get("header")
    user_names = [str(name).strip() for name in (given.split(",") if isinstance(given, str) else given or ())]
    if user_names:
        return CsvReader(text_file, user_names, delimiter, begin, _types(options.get("types"), user_names))
    location = Location(text_file.name, line=1 + head.count(b"\n", 0, begin))
    reason = _unusable_header(record, is_complete)
    if record is None or reason:
        report.add(HEADER_MISSING, reason, location)
        return None
    fields = [field.decode() for field in record.fields]
    names = column_names(fields, location, report)
    if reason := like_data(fields, _below(head, record.end, separator)):
        report.add(HEADER_LIKE_DATA, reason, location)
    return CsvReader(text_file, names, delimiter, record.end, _types(options.get("types"), names), names != fields)


def _head(text_file: TextFile) -> tuple[bytes, bool]:
    """The first piece of a text that holds complete records, and whether it is the entire text."""
    head, is_complete = text_head(text_file.pieces(), text.HEAD)
    if b"\n" not in head and not is_complete:
        return text_head(text_file.pieces(), _HEADER_LIMIT)
    return head, is_complete


def _unusable_header(record: CsvRecord | None, is_complete: bool) -> str:
    """The reason why the first record cannot be the header; empty if it can."""
    if record is None:
        return "the first line opens a quote that is not closed"
    if not record.complete and not is_complete:
        return "the first line is too long"
    if len(record.fields) > header.MOST_COLUMNS:
        return f"the first line has {plural(len(record.fields), 'field')}"
    joined = b"".join(record.fields)
    if b"\0" in joined:
        return "the first line holds a NUL byte; UTF-16 needs its encoding named"
    try:
        joined.decode()
    except UnicodeDecodeError as error:
        return f"{encoding_message(joined, error)} in the first line; name the encoding, cp1252 for example"
    return ""


def _below(head: bytes, position: int, separator: bytes) -> list[list[str]]:
    """Some records after the header."""
    rows: list[list[str]] = []
    while position < len(head) and len(rows) < 50:
        record = parse_record(head, position, separator)
        if record is None or not record.complete:
            break
        rows.append([field.decode("utf-8", "replace") for field in record.fields])
        position = record.end
    return rows


def _types(types: Any, names: Sequence[str]) -> dict[str, str]:
    """Declared types, `label=int,score=float` or a mapping.

    Raises:
        UsageError: there is no such type or column.
    """
    if isinstance(types, str):
        types = dict(pair.partition("=")[::2] for pair in types.split(","))
    declared = {str(name).strip(): getattr(kind, "__name__", str(kind)).strip() for name, kind in (types or {}).items()}
    for name, kind in declared.items():
        for noun, value, allowed in (("column", name, names), ("type", kind, TYPES)):
            if value not in allowed:
                raise UsageError(
                    f"no {noun} is called {value!r}", code="data-option", param="data_option",
                    expected=", ".join(nearest(value, allowed) or list(allowed)[:20]),
                    hint="{data_option=types=label=int}",
                )  # fmt: skip
    return {name: kind for name, kind in declared.items() if kind != "str"}


def example(folder: Path) -> Path:
    """Reviews with labels in two splits."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ("great film", "bad film", 'a "classic", they say', "two\nlines")
    for name, count in (("train.csv", 16), ("test.csv", 4)):
        lines = ["id,text,label\n"]
        for number in range(count):
            quoted = words[number % 4].replace('"', '""')
            lines.append(f'{name[:2]}{number},"{quoted} {number}",{("positive", "negative")[number % 2]}\n')
        (folder / name).write_text("".join(lines), encoding="utf-8", newline="")
    return folder


FORMAT = Format(
    "csv", "CSV and TSV files", "train.csv, test.csv with a header, such as text,label",
    (*shards.ISSUES, *text.ISSUES, *header.ISSUES, *csv_reader.ISSUES, *ROW_ISSUES), detect, scan, example,
    (
        FormatOption("delimiter", "character between fields: , ; | or tab"),
        FormatOption("encoding", "of files that are not UTF-8, such as cp1252"),
        FormatOption("header", "column names of files without a header line, as text,label", (str, list)),
        FormatOption("types", "types of columns, as label=int,score=float; other columns stay text", (str, dict)),
        *ROW_OPTIONS,
    ),
    write_text_tables, "row", SUFFIXES,
)  # fmt: skip
