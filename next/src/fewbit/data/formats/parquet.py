# SPDX-License-Identifier: Apache-2.0
"""Parquet files: one, or a folder of shards whose names say their split."""

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

SUFFIXES = (".parquet", ".pq")
_MAX_NAMES = 500


def detect(files: Files) -> Detection | None:
    """Files that begin with `PAR1`, or are called `.parquet`."""
    names = files.names()[:_MAX_NAMES]
    tables = [name for name in names if shards.is_row_file(name, SUFFIXES)]
    if not tables:
        single_file = len(names) == 1 and files.read(names[0], 4) == b"PAR1"
        return Detection(0.95, "a Parquet file") if single_file else None
    others = sum(shards.suffix_of(name) in (".csv", ".tsv", ".json", ".jsonl", ".arrow", ".feather") for name in names)
    return Detection(0.95 if not others else 0.6, plural(len(tables), "Parquet file"))


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> Source:
    """Read the footers; with `full` depth decode every row group."""
    table = _arrow.ArrowTable(files, shards.row_files(files, SUFFIXES, report), "parquet", report)
    if depth == "full":
        table.check(report)
    features = _features.schema_features(table.schemas)
    return _features.feature_rows(table, features, files, report, depth=depth, options=options)


def example(folder: Path) -> Path:
    """Train and validation shards of texts with labels."""
    arrow = require("pyarrow", extra="parquet", purpose="Parquet files")
    parquet = require("pyarrow.parquet", extra="parquet", purpose="Parquet files")
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", 12), ("validation", 4)):
        rows = {
            "text": [f"text {number} of {split}" for number in range(count)],
            "label": [n % 2 for n in range(count)],
        }
        parquet.write_table(arrow.table(rows), folder / f"{split}.parquet", row_group_size=5)
    return folder


FORMAT = Format(
    "parquet", "Parquet files", "train-00000-of-00002.parquet, validation.parquet, …",
    (*_arrow.ISSUES, *_features.ISSUES, *shards.ISSUES, *ROW_ISSUES, *IMAGE_ISSUES), detect, scan, example,
    options=ROW_OPTIONS, unit="row",
)  # fmt: skip
