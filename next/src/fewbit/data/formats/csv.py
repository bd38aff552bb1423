# SPDX-License-Identifier: Apache-2.0
"""CSV and TSV files: a header and one row per record; folders of shards, splits by file name, also `.gz` and `.zst`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fewbit.data.audio import AUDIO_ISSUES
from fewbit.data.images.decode import IMAGE_ISSUES
from fewbit.data.rows import blocks, csv_reader, dialect, shards, text
from fewbit.data.rows.csv_opening import open_csv
from fewbit.data.rows.meaning import ROW_ISSUES, ROW_OPTIONS, RowSource, row_source
from fewbit.data.rows.shards import detect_tables, row_files
from fewbit.data.rows.text import open_text
from fewbit.data.rows.text_table import Shard, TextTable
from fewbit.data.types import DataReport, Depth, Detection, Files, Format, FormatOption, SampleError

SUFFIXES = (".csv", ".tsv")


def detect(files: Files) -> Detection | None:
    """CSV or TSV files by their names; next to images only if the first file names them."""
    return detect_tables(files, SUFFIXES, "CSV")


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> RowSource:
    """Read headers; with `full` depth every row."""
    table_shards: list[Shard] = []
    for file in row_files(files, SUFFIXES, report):
        try:
            text_file, issues = open_text(files, file.name, options.get("encoding"))
        except SampleError as error:
            report.add(error.issue.type, error.issue.message, error.issue.location)
            continue
        for issue in issues:
            report.add(issue.type, issue.message, issue.location)
        reader = open_csv(text_file, report, options)
        if reader is not None:
            table_shards.append(Shard(reader, file.split))
    table = TextTable(table_shards, report, text_only=not options.get("types"))
    return row_source(table, files, report, depth=depth, options=options)


def write(source: RowSource, folder: Path) -> list[str]:
    """A copy without the rows that cannot be used."""
    from fewbit.data.rows.copy import write_tables

    return write_tables(source, folder)


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
    (
        *shards.ISSUES, *text.ISSUES, *blocks.ISSUES, *dialect.ISSUES, *csv_reader.ISSUES, *ROW_ISSUES, *IMAGE_ISSUES,
        *AUDIO_ISSUES,
    ),
    detect, scan, example,
    (
        FormatOption("delimiter", "character between fields: , ; | or tab"),
        FormatOption("encoding", "of files that are not UTF-8, such as cp1252"),
        FormatOption("header", "column names of files without a header line, as text,label", (str, list)),
        FormatOption("types", "types of columns, as label=int,score=float; other columns stay text", (str, dict)),
        *ROW_OPTIONS,
    ),
    write, "row",
)  # fmt: skip
