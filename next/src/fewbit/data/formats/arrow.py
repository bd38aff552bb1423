# SPDX-License-Identifier: Apache-2.0
"""Arrow and Feather files, memory-mapped: the file format, and the stream format that `datasets` writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fewbit.data.formats import _arrow, _features
from fewbit.data.images.decode import IMAGE_ISSUES
from fewbit.data.rows import shards
from fewbit.data.rows.meaning import ROW_ISSUES, ROW_OPTIONS
from fewbit.data.types import DataReport, Depth, Detection, Files, Format, Source
from fewbit.errors import plural, require

SUFFIXES = (".arrow", ".feather", ".ipc")
_MAX_NAMES = 500


def detect(files: Files) -> Detection | None:
    """Files that begin with `ARROW1` or `FEA1`, or are called `.arrow` or `.feather`."""
    names = files.names()[:_MAX_NAMES]
    tables = [name for name in names if shards.is_row_file(name, SUFFIXES)]
    if not tables:
        single_file = len(names) == 1 and files.read(names[0], 6).startswith((b"ARROW1", b"FEA1"))
        return Detection(0.95, "an Arrow file") if single_file else None
    if any(name.rpartition("/")[2] == "state.json" for name in names):
        return Detection(0.6, "Arrow files")  # saved by datasets: the huggingface format reads its metadata too
    others = sum(shards.suffix_of(name) in (".csv", ".tsv", ".json", ".jsonl", ".parquet") for name in names)
    return Detection(0.95 if not others else 0.6, plural(len(tables), "Arrow file"))


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> Source:
    """Read the schemas; with `full` depth validate every record batch."""
    table = _arrow.ArrowTable(files, shards.row_files(files, SUFFIXES, report), "arrow", report)
    if depth == "full":
        table.check(report)
    features = _features.schema_features(table.schemas)
    return _features.feature_rows(table, features, files, report, depth=depth, options=options)


def example(folder: Path) -> Path:
    """A Feather file of twelve texts with labels."""
    arrow = require("pyarrow", extra="parquet", purpose="Arrow files")
    feather = require("pyarrow.feather", extra="parquet", purpose="Feather files")
    folder.mkdir(parents=True, exist_ok=True)
    rows = {"text": [f"text {number}" for number in range(12)], "label": [number % 2 for number in range(12)]}
    feather.write_feather(arrow.table(rows), str(folder / "rows.feather"), compression="uncompressed")
    return folder / "rows.feather"


FORMAT = Format(
    "arrow", "Arrow and Feather files", ".arrow or .feather files; their names say their split",
    (*_arrow.ISSUES, *_features.ISSUES, *shards.ISSUES, *ROW_ISSUES, *IMAGE_ISSUES), detect, scan, example,
    options=ROW_OPTIONS, unit="row",
)  # fmt: skip
