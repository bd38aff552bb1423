# SPDX-License-Identifier: Apache-2.0
"""Hugging Face datasets: folders written by `save_to_disk`, and objects of the `datasets` library.

A saved folder is Arrow files and JSON, so it is read without the library, also inside an archive. Objects with an
output format (`with_format("torch")`) are left as they are; rows of all others are read like rows of files.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from fewbit.data.formats import _arrow, _features
from fewbit.data.formats._features import Features, feature_rows
from fewbit.data.images.decode import IMAGE_ISSUES
from fewbit.data.rows.meaning import ROW_ISSUES, ROW_OPTIONS
from fewbit.data.rows.shards import RowFile
from fewbit.data.rows.table import Row, union
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
    "row-unreadable",
    Severity.ERROR,
    "row that the datasets library cannot give",
    "read that row by hand",
    "raise",
    ("drop",),
)
COLUMNS_DIFFER = IssueType(
    "columns-differ", Severity.WARNING, "splits with different columns", "cast the splits to the same features"
)
ISSUES = (FOLDER_BROKEN, ROW_UNREADABLE, COLUMNS_DIFFER, *_arrow.ISSUES, *_features.ISSUES)


def detect(files: Files) -> Detection | None:
    """The JSON files that `save_to_disk` writes."""
    names = set(files.names()[:10_000])
    saved = "dataset_dict.json" in names or {"state.json", "dataset_info.json"} <= names
    return Detection(0.98, "saved by datasets.save_to_disk") if saved else None


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> Source:
    """Read the schemas of the Arrow files; with `full` depth validate every record batch."""
    row_files: list[RowFile] = []
    features, columns = [], {}
    for folder, split in _saved_splits(files, report):
        state = _json(files, f"{folder}state.json", report)
        info = _json(files, f"{folder}dataset_info.json", report)
        listed = state.get("_data_files")
        names = (
            [entry.get("filename") for entry in listed if isinstance(entry, Mapping)]
            if isinstance(listed, list)
            else []
        )
        for name in names:
            if not isinstance(name, str) or f"{folder}{name}" not in files.names():
                report.add(
                    FOLDER_BROKEN, f"there is no file {folder}{str(name)[:100]}", Location(f"{folder}state.json")
                )
            else:
                row_files.append(RowFile(f"{folder}{name}", split))
        features.append(Features.of(info.get("features")))
        columns[split or ""] = tuple(info.get("features") or ())
    _compare_columns(columns, report)
    table = _arrow.ArrowTable(files, _by_split(row_files), "arrow", report)
    if depth == "full":
        table.check(report)
    return feature_rows(table, features, files, report, depth=depth, options=options)


def scan_object(data: Any, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> Source:
    """The samples of an object of the `datasets` library.

    Args:
        data: a `Dataset`, `DatasetDict`, `IterableDataset` or `IterableDatasetDict`.
        report: takes issues.
        depth: `full` reads every row.
        options: those of rows.
    """
    from fewbit.data.objects import ObjectSource, check_elements

    report.data_format = "huggingface"
    named = dict(data) if isinstance(data, Mapping) else {str(getattr(data, "split", None) or ""): data}
    splits = {_split_name(name): dataset for name, dataset in named.items()}
    splits = {name: splits[name] for name in sorted(splits, key=_split_order)}
    described = {name: _features_of(dataset) for name, dataset in splits.items()}
    _compare_columns({name: tuple(columns) for name, columns in described.items() if columns}, report)
    features = [Features.of(columns) for columns in described.values()]
    datasets = sys.modules["datasets"]
    if any(isinstance(dataset, datasets.IterableDataset) for dataset in splits.values()):
        return feature_rows(
            StreamTable(splits, report), features, None, report, depth=depth, options=options, local_paths=True
        )
    single = next(iter(splits.values())) if len(splits) == 1 else None
    if single is not None and single.format["type"] is not None:  # with_format("torch"): the user chose it
        facts: dict[str, Any] = {"batched": False, "columns": list(single.column_names)}
        if (names := next(iter(features[0].classes.values()), None)) is not None:
            facts["classes"] = names
        source = ObjectSource(single, facts, "Dataset", runs_code=True)
        if depth == "full":
            check_elements(source, report)
        return source
    return feature_rows(DatasetTable(splits), features, None, report, depth=depth, options=options, local_paths=True)


class DatasetTable:
    """Rows of map-style datasets, one split after the other; images stay bytes.

    Args:
        datasets: datasets by split.
    """

    def __init__(self, datasets: Mapping[str, Any]):
        self._splits = list(datasets)
        # What Arrow holds, through the dataset's own selection and order, and not what its features would decode.
        self._datasets = [dataset.with_format("arrow") for dataset in datasets.values()]
        self.columns: Sequence[str] = union(dataset.column_names for dataset in self._datasets)
        self.embedded: tuple[str, ...] = ()
        self._starts = [0]
        for dataset in self._datasets:
            self._starts.append(self._starts[-1] + len(dataset))

    def __len__(self) -> int:
        return self._starts[-1]

    def row(self, index: int) -> Row:
        """One row."""
        return self.fetch([index])[0]

    def fetch(self, indices: Sequence[int]) -> list[Row]:
        """Several rows, those of a split together."""
        rows: dict[int, Row] = {}
        for number in range(len(self._datasets)):
            start, stop = self._starts[number], self._starts[number + 1]
            requested = sorted({index for index in indices if start <= index < stop})
            if requested:
                rows |= zip(
                    requested, self._read(number, self._datasets[number], [index - start for index in requested])
                )
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
                for name in self.embedded:
                    for offset, row in enumerate(rows):
                        row[name] = {"row": first + offset}
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
            return _arrow.to_rows(dataset[list(positions)])
        except Exception as error:  # the library passes on whatever Arrow and fsspec raise
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            raise SampleError(
                Issue(ROW_UNREADABLE, reason, self.location(self._starts[number] + positions[0]))
            ) from error


class StreamTable:
    """Rows of streamed datasets, kept in a temporary file as they are read."""

    def __init__(self, datasets: Mapping[str, Any], report: DataReport):
        from fewbit.data.spool import Spool

        # Images stay bytes; without features nothing would be decoded anyway.
        streams = {name: dataset.decode(False) if dataset.features else dataset for name, dataset in datasets.items()}
        self._spool = Spool(
            lambda: ([name, row] for name, dataset in streams.items() for row in dataset), "the stream", report
        )
        self.columns: Sequence[str] = union(dataset.column_names or () for dataset in datasets.values())
        self.embedded: tuple[str, ...] = ()

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
        while True:
            block: list[Row] = []
            try:
                while len(block) < size:
                    block.append(self.row(start + len(block)))
            except IndexError:
                size = 0
            if block:
                yield start, block
            if not size:
                return
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


def _by_split(row_files: Sequence[RowFile]) -> list[RowFile]:
    return sorted(row_files, key=lambda file: _split_order(file.split or ""))


def _features_of(dataset: Any) -> Mapping[str, Any]:
    features = getattr(dataset, "features", None)
    described: Mapping[str, Any] = features.to_dict() if features is not None else {}
    return described


def _compare_columns(columns: Mapping[str, tuple[str, ...]], report: DataReport) -> None:
    if len({frozenset(names) for names in columns.values()}) > 1:
        description = "; ".join(f"{split or 'all'}: {', '.join(names[:20])}" for split, names in columns.items())
        report.add(COLUMNS_DIFFER, f"{plural(len(columns), 'split')}: {description}", samples=0)


def example(folder: Path) -> Path:
    """A saved dataset of two splits with class names."""
    datasets = require("datasets", extra="hf", purpose="Hugging Face datasets")
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    )
    splits = {}
    for split, count in (("train", 12), ("validation", 4)):
        rows = {
            "text": [f"text {number} of {split}" for number in range(count)],
            "label": [n % 2 for n in range(count)],
        }
        splits[split] = datasets.Dataset.from_dict(rows, features=features)
    datasets.disable_progress_bars()
    datasets.DatasetDict(splits).save_to_disk(str(folder))
    return folder


FORMAT = Format(
    "huggingface", "Hugging Face dataset", "a folder written by save_to_disk, or a hub name such as hf:org/name",
    (*ISSUES, *ROW_ISSUES, *IMAGE_ISSUES), detect, scan, example,
    options=(FormatOption("config", "configuration of a dataset on the hub"), *ROW_OPTIONS), unit="row",
)  # fmt: skip
