# SPDX-License-Identifier: Apache-2.0
"""Parquet files: one, or a folder of shards whose names say their split."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fewbit.data.rows import arrow, shards
from fewbit.data.rows.copy import write_arrow_tables
from fewbit.data.rows.source import ROW_ISSUES, ROW_OPTIONS
from fewbit.data.types import DataReport, Depth, Detection, Files, Format, Source
from fewbit.errors import require

SUFFIXES = (".parquet", ".pq")


def detect(files: Files) -> Detection | None:
    """Files that begin with `PAR1`, or are called `.parquet`."""
    return shards.detect_tables(files, SUFFIXES, "Parquet", (b"PAR1",))


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> Source:
    """Read the footers; with `full` depth decode every row group."""
    return arrow.scan_tables(files, SUFFIXES, "parquet", report, depth=depth, options=options)


def example(folder: Path) -> Path:
    """Train and validation shards of texts with labels."""
    pyarrow = require("pyarrow", extra="parquet", purpose="Parquet files")
    parquet = require("pyarrow.parquet", extra="parquet", purpose="Parquet files")
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", 12), ("validation", 4)):
        numbers = range(count)
        rows = {"text": [f"text {number} of {split}" for number in numbers], "label": [n % 2 for n in numbers]}
        parquet.write_table(pyarrow.table(rows), folder / f"{split}.parquet", row_group_size=5)
    return folder


FORMAT = Format(
    "parquet", "Parquet files", "train-00000-of-00002.parquet, validation.parquet, …",
    (*arrow.ISSUES, *shards.ISSUES, *ROW_ISSUES), detect, scan, example, options=ROW_OPTIONS,
    write=write_arrow_tables, unit="row", suffixes=SUFFIXES,
)  # fmt: skip
