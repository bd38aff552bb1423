# SPDX-License-Identifier: Apache-2.0
"""Arrow and Feather files, memory-mapped: the file format, and the stream format that `datasets` writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fewbit.data.rows import arrow, shards
from fewbit.data.rows.copy import write_arrow_tables
from fewbit.data.rows.source import ROW_ISSUES, ROW_OPTIONS
from fewbit.data.types import DataReport, Depth, Detection, Files, Format, Source
from fewbit.errors import require

SUFFIXES = (".arrow", ".feather", ".ipc")


def detect(files: Files) -> Detection | None:
    """Files that begin with `ARROW1` or `FEA1`, or are called `.arrow` or `.feather`."""
    return shards.detect_tables(files, SUFFIXES, "Arrow", (b"ARROW1", b"FEA1"))


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> Source:
    """Read the schemas; with `full` depth validate every record batch."""
    return arrow.scan_tables(files, SUFFIXES, "arrow", report, depth=depth, options=options)


def example(folder: Path) -> Path:
    """A Feather file of twelve texts with labels."""
    pyarrow = require("pyarrow", extra="parquet", purpose="Arrow files")
    feather = require("pyarrow.feather", extra="parquet", purpose="Feather files")
    folder.mkdir(parents=True, exist_ok=True)
    rows = {"text": [f"text {number}" for number in range(12)], "label": [number % 2 for number in range(12)]}
    feather.write_feather(pyarrow.table(rows), str(folder / "rows.feather"), compression="uncompressed")
    return folder / "rows.feather"


FORMAT = Format(
    "arrow", "Arrow and Feather files", ".arrow or .feather files; their names say their split",
    (*arrow.ISSUES, *shards.ISSUES, *ROW_ISSUES), detect, scan, example, options=ROW_OPTIONS,
    write=write_arrow_tables, unit="row", suffixes=SUFFIXES,
)  # fmt: skip
