# SPDX-License-Identifier: Apache-2.0
"""Hugging Face datasets: folders written by `save_to_disk`, and objects of the `datasets` library.

A saved folder is Arrow files and JSON, so it is read without the library, also inside an archive. Objects with an
output format (`with_format("torch")`) are left as they are; rows of all others are read like rows of files.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import orjson

from fewbit.data.rows import arrow
from fewbit.data.rows.arrow import Features
from fewbit.data.rows.shards import RowFile
from fewbit.data.rows.source import ROW_ISSUES, ROW_OPTIONS, row_source
from fewbit.data.rows.table import Row, Table, union
from fewbit.data.splits import SPLITS, split_of_file
from fewbit.data.types import (
    DataReport,
    Depth,
    Detection,
    Files,
    Format,
    FormatOption,
    Issue,
    IssueType,
    Location,
    SampleError,
    Severity,
    Source,
)
from fewbit.errors import plural, require

_MOST_JSON = 64 << 20
_BLOCK = 1000

FOLDER_BROKEN = IssueType(
    "folder-broken", Severity.ERROR, "saved dataset that cannot be loaded", "save it again with save_to_disk", "raise"
)
ROW_UNREADABLE = IssueType(
    "row-unreadable", Severity.ERROR, "row that the datasets library cannot give", "read that row by hand", "raise",
    ("drop",),
)  # fmt: skip
COLUMNS_DIFFER = IssueType(
    "columns-differ", Severity.WARNING, "splits with different columns", "cast the splits to the same features"
)
ISSUES = (FOLDER_BROKEN, ROW_UNREADABLE, COLUMNS_DIFFER, *arrow.ISSUES)


def detect(files: Files) -> Detection | None:
    """The JSON files that `save_to_disk` writes."""
    names = set(files.names()[:10_000])
    saved = "dataset_dict.json" in names or {"state.json", "dataset_info.json"} <= names
    return Detection(0.98, "saved by datasets.save_to_disk") if saved else None


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> Source:
    """Read the schemas of the Arrow files; with `full` depth validate every record batch."""
    row_files: list[RowFile] = []
    features: dict[str, Any] = {}
    names = set(files.names())
    for folder, split in _saved_splits(files, report):
        listed = _json(files, f"{folder}state.json", report).get("_data_files")
        for entry in listed if isinstance(listed, list) else ():
            name = f"{folder}{str(entry.get('filename') if isinstance(entry, Mapping) else entry)[:1000]}"
            if name in names:
                row_files.append(RowFile(name, split))
            else:
                report.add(FOLDER_BROKEN, f"there is no file {name[:200]}", Location(f"{folder}state.json"))
        features[split or ""] = _json(files, f"{folder}dataset_info.json", report).get("features") or {}
    _compare_columns(features, report)
    row_files.sort(key=lambda file: _split_order(file.split or ""))
    table = arrow.ArrowTable(files, row_files, "arrow", report)
    if depth == "full":
        table.check(report)
    described = [Features.of(columns) for columns in features.values()]
    return row_source(table, files, report, depth=depth, options=options, features=described)


def scan_object(data: Any, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> Source:
    """The samples of an object of the `datasets` library.

    Args:
        data: a `Dataset`, `DatasetDict`, `IterableDataset` or `IterableDatasetDict`.
        report: takes issues.
        depth: `full` reads every row.
        options: those of rows.
    """
    from fewbit.data.objects import ObjectSource, check_elements

    report.data_format, report.unit = FORMAT.name, FORMAT.unit
    named = data if isinstance(data, Mapping) else {str(getattr(data, "split", None) or ""): data}
    splits = {_split_name(name): dataset for name, dataset in named.items()}
    splits = {name: splits[name] for name in sorted(splits, key=_split_order)}
    described = {name: dataset.features.to_dict() if dataset.features else {} for name, dataset in splits.items()}
    _compare_columns({name: columns for name, columns in described.items() if columns}, report)
    features = [Features.of(columns) for columns in described.values()]
    first = next(iter(splits.values()))
    streamed = isinstance(first, sys.modules["datasets"].IterableDataset)
    if not streamed and len(splits) == 1 and first.format["type"] is not None:
        # with_format("torch"): the user chose what elements are
        classes = next(iter(features[0].classes.values()), None)
        facts = {"batched": False, "columns": list(first.column_names)} | ({"classes": classes} if classes else {})
        source = ObjectSource(first, facts, "Dataset", runs_code=True)
        if depth == "full":
            check_elements(source, report)
        return source
    table = StreamTable(splits, report) if streamed else DatasetTable(splits)
    return row_source(table, None, report, depth=depth, options=options, features=features, local_paths=True)


class DatasetTable(Table):
    """Rows of map-style datasets, one split after the other; images stay bytes.

    Args:
        datasets: datasets by split.
    """

    def __init__(self, datasets: Mapping[str, Any]):
        self._splits = list(datasets)
        # What Arrow holds, through the dataset's own selection and order, and not what its features would decode.
        self._datasets = [dataset.with_format("arrow") for dataset in datasets.values()]
        self.columns = union(dataset.column_names for dataset in self._datasets)
        self._starts = [0]
        for dataset in self._datasets:
            self._starts.append(self._starts[-1] + len(dataset))

    def __len__(self) -> int:
        return self._starts[-1]

    def fetch(self, indices: Sequence[int]) -> list[Row]:
        """Several rows, those of a split together."""
        rows: dict[int, Row] = {}
        for number, start in enumerate(self._starts[:-1]):
            requested = sorted({index for index in indices if start <= index < self._starts[number + 1]})
            if requested:
                positions = [index - start for index in requested]
                rows |= zip(requested, self._read(number, self._datasets[number], positions))
        if missing := [index for index in indices if index not in rows]:
            raise IndexError(missing[0])
        return [rows[index] for index in indices]

    def blocks(self) -> Iterator[tuple[int, list[Row]]]:
        """All rows in order; images by their row number."""
        for number, dataset in enumerate(self._datasets):
            others = [name for name in dataset.column_names if name not in self.embedded]
            without_images = dataset.select_columns(others) if self.embedded else dataset
            for start in range(0, len(dataset), _BLOCK):
                first = self._starts[number] + start
                positions = range(start, min(start + _BLOCK, len(dataset)))
                rows: list[Row] = self._read(number, without_images, positions) if others else [{} for _ in positions]
                for index, row in enumerate(rows, first):
                    row |= {name: {"row": index} for name in self.embedded}
                yield first, rows

    def location(self, index: int) -> Location:
        """Split, and number of the row in it."""
        number = bisect_right(self._starts, index) - 1
        return Location(self._splits[number], row=index - self._starts[number], index=index)

    def split(self, index: int) -> str | None:
        """The name of the split."""
        return self._splits[bisect_right(self._starts, index) - 1] or None

    def _read(self, number: int, dataset: Any, positions: Sequence[int]) -> list[Row]:
        try:
            return arrow.to_rows(dataset[list(positions)])
        except Exception as error:  # the library passes on whatever Arrow and fsspec raise
            location = self.location(self._starts[number] + positions[0])
            message = f"{type(error).__name__}: {str(error)[:200]}"
            raise SampleError(Issue(ROW_UNREADABLE, message, location)) from error


class StreamTable(Table):
    """Rows of streamed datasets, kept in a temporary file as they are read."""

    def __init__(self, datasets: Mapping[str, Any], report: DataReport):
        from fewbit.data.spool import Spool

        # Images stay bytes; without features nothing would be decoded anyway.
        streams = {name: dataset.decode(False) if dataset.features else dataset for name, dataset in datasets.items()}
        self._spool = Spool(
            lambda: ([name, row] for name, dataset in streams.items() for row in dataset), "the stream", report
        )
        self.columns = union(dataset.column_names or () for dataset in datasets.values())

    def __len__(self) -> int:
        return len(self._spool)

    def row(self, index: int) -> Row:
        """One row; reads the stream as far as that."""
        row: Row = self._spool[index][1]
        return row

    def fetch(self, indices: Sequence[int]) -> list[Row]:
        """Several rows."""
        return [self.row(index) for index in indices]

    def blocks(self) -> Iterator[tuple[int, list[Row]]]:
        """All rows in order, first a few, so that a stream need not be read to its end."""
        start, size = 0, 128
        while self._spool.has(start):
            block = [self.row(index) for index in takewhile(self._spool.has, range(start, start + size))]
            yield start, block
            start, size = start + len(block), _BLOCK

    def location(self, index: int) -> Location:
        """Split, and number of the row."""
        return Location(self.split(index) or "", row=index, index=index)

    def split(self, index: int) -> str | None:
        """The name of the split."""
        return self._spool[index][0] or None


def _saved_splits(files: Files, report: DataReport) -> list[tuple[str, str | None]]:
    """Folder, with its slash, and split of each saved dataset."""
    if "dataset_dict.json" not in files.names():
        split = _json(files, "state.json", report).get("_split")
        return [("", _split_name(split) or None if isinstance(split, str) else None)]
    listed = _json(files, "dataset_dict.json", report).get("splits")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    if not names:
        report.add(FOLDER_BROKEN, "dataset_dict.json lists no splits", Location("dataset_dict.json"))
    return [(f"{name}/", _split_name(name)) for name in names]


def _json(files: Files, name: str, report: DataReport) -> dict[str, Any]:
    try:
        value = orjson.loads(files.read(name, _MOST_JSON)) if name in files.names() else None
    except (orjson.JSONDecodeError, SampleError):
        value = None
    if isinstance(value, dict):
        return value
    report.add(FOLDER_BROKEN, "missing, or no JSON object", Location(name))
    return {}


def _split_name(name: str) -> str:
    """`val` for `validation`; a name that is no split stays."""
    return split_of_file(name) or name


def _split_order(name: str) -> int:
    return SPLITS.index(name) if name in SPLITS else len(SPLITS)  # type: ignore[arg-type]


def _compare_columns(features: Mapping[str, Mapping[str, Any]], report: DataReport) -> None:
    if len({frozenset(columns) for columns in features.values()}) > 1:
        described = [f"{split or 'all'}: {', '.join(list(columns)[:20])}" for split, columns in features.items()]
        report.add(COLUMNS_DIFFER, f"{plural(len(features), 'split')}: {'; '.join(described)}", samples=0)


def example(folder: Path) -> Path:
    """A saved dataset of two splits with class names."""
    datasets = require("datasets", extra="hf", purpose="Hugging Face datasets")
    label = datasets.ClassLabel(names=["bad", "good"])
    features = datasets.Features({"text": datasets.Value("string"), "label": label})
    splits = datasets.DatasetDict()
    for split, count in (("train", 12), ("validation", 4)):
        rows = [{"text": f"text {number} of {split}", "label": number % 2} for number in range(count)]
        splits[split] = datasets.Dataset.from_list(rows, features=features)
    datasets.disable_progress_bars()
    splits.save_to_disk(str(folder))
    return folder


FORMAT = Format(
    "huggingface", "Hugging Face dataset", "a folder written by save_to_disk, or a hub name such as hf:org/name",
    (*ISSUES, *ROW_ISSUES), detect, scan, example,
    options=(FormatOption("config", "configuration of a dataset on the hub"), *ROW_OPTIONS), unit="row",
    suffixes=(".json",),
)  # fmt: skip
