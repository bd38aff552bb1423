# SPDX-License-Identifier: Apache-2.0
"""Hugging Face datasets: `Dataset`, `DatasetDict`, `IterableDataset`, a folder from `save_to_disk`, a hub name.

A sample is a row under its column names; pictures come as uint8 arrays of shape (height, width, 3), but for those with
one channel beside an `image`: these are masks, and keep their numbers, (height, width). A column
of class names keeps its integers. `facts["class_names"]` has the names by column, `facts["classes"]` those of the first
such column, which is `facts["label"]`.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from fewbit.data.batch import whole_labels
from fewbit.data.findings import Code, DataReport, Policy, Severity
from fewbit.data.formats._base import Match
from fewbit.data.kinds import comes_from
from fewbit.data.objects.class_columns import class_columns, of_all_splits
from fewbit.data.randomness import Loan
from fewbit.data.sample import Place, Sample
from fewbit.data.signature import Signature
from fewbit.data.source import Source
from fewbit.errors import DataError, UsageError, nearest, require

CODES = {
    "no-samples": Code(Severity.ERROR, "the dataset holds no row", "check how it was made"),
    "folder-broken": Code(
        Severity.ERROR, "the saved folder cannot be loaded", "save it again with save_to_disk", "raise"
    ),
    "hub-unreachable": Code(
        Severity.ERROR,
        "the hub does not answer or has no such dataset",
        "download it where there is a network",
        "raise",
    ),
    "row-unreadable": Code(Severity.ERROR, "a row cannot be decoded", "open that row by hand", "raise"),
    "columns-differ": Code(Severity.WARN, "splits differ in their columns", "cast them to the same features"),
    "classes-differ": Code(
        Severity.WARN, "a number is one class in one split and another in the next", "cast them to the same features"
    ),
}

_QUICK = 3
_NUMBERS = ("1", "L", "P", "I", "I;16")
"""Pictures whose pixels are numbers, and no colours."""
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def detect(source: object) -> Match | None:
    """An object of the `datasets` library, a folder it saved, or a name that could be on the hub."""
    if isinstance(source, Path):
        if source.is_dir() and ((source / "dataset_dict.json").is_file() or _is_saved(source)):
            return Match(0.95, "saved by datasets.save_to_disk")
        if not source.exists() and _HUB_NAME.fullmatch(source.as_posix()):
            return Match(0.3, "not a path here, so taken as a dataset's name on the hub")
        return None
    if is_huggingface(source):
        return Match(0.95, f"a datasets.{type(source).__name__}")
    return None


def is_huggingface(source: object) -> bool:
    """Whether an object is a dataset of the `datasets` library."""
    return comes_from(source, *_CLASSES)


_CLASSES = (
    "datasets.arrow_dataset.Dataset",
    "datasets.dataset_dict.DatasetDict",
    "datasets.dataset_dict.IterableDatasetDict",
    "datasets.iterable_dataset.IterableDataset",
)


def read(source: Any, *, split: str | None, task: str | None, policy: Policy, **load_options: Any) -> Source:
    """Open lazily; further options go to `datasets.load_dataset` when the source is a name on the hub."""
    loaded = _load(source, load_options)
    parts = dict(loaded) if isinstance(loaded, Mapping) else {str(getattr(loaded, "split", None) or "all"): loaded}
    if split is not None and split not in parts:
        raise UsageError(f"there is no split {split!r}", where=source, expected=nearest(split, parts))
    chosen = parts if split is None else {split: parts[split]}
    streams = any(comes_from(part, "datasets.iterable_dataset.IterableDataset") for part in chosen.values())
    opened: Source = StreamSource(chosen) if streams else TableSource(chosen)
    opened.facts.update(_facts(parts))
    return opened


def check(
    source: Any, report: DataReport, *, task: str | None, signature: Signature | None, quick: bool, **load_options: Any
) -> None:
    """Decode every row (the first few when quick)."""
    try:
        opened = read(source, split=None, task=task, policy=Policy(CODES), **load_options)
    except DataError as error:
        report.add(error.code or "folder-broken", error.what, Place(str(source)), error.try_)
        return
    report.understood.update(opened.facts)
    columns = opened.facts.get("columns_by_split", {})
    if len({tuple(sorted(names)) for names in columns.values()}) > 1:
        report.add("columns-differ", "; ".join(f"{part}: {', '.join(names)}" for part, names in columns.items()))
    for column in opened.facts["class_names_differ"]:
        report.add("classes-differ", f"the classes of {column!r} have other names or numbers in another split")
    count = 0
    total = None if quick else opened.sample_count()
    steps = iter(report.progress.track(range(_QUICK if quick else 1 << 62), total=total, label="reading rows"))
    rows = iter(opened)
    try:
        for _ in steps:
            next(rows)
            count += 1
    except StopIteration:
        pass
    except DataError as error:
        report.add(error.code or "row-unreadable", error.what, Place(index=count))
    report.understood["samples"] = opened.sample_count() or count
    if count == 0 and not report.counts:
        report.add("no-samples", "there is no row in any split")


class TableSource(Source):
    """Map-style datasets, one split after the other."""

    def __init__(self, parts: Mapping[str, Any]):
        super().__init__()
        self._parts = dict(parts)

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts.values())

    def get(self, index: int) -> Sample:
        name, part, row = self._find(index)
        try:
            return _sample(part[row], name, row)
        except Exception as error:
            raise _unreadable(name, row, error) from error

    def place(self, index: int) -> Place:
        name, _, row = self._find(index)
        return Place(name, index=row)

    def labels(self) -> Sequence[int] | None:
        """The column of classes, which is read without the rest of the rows."""
        column = self.facts.get("label")
        if column is None or self.facts.get("class_names_differ"):
            return None
        try:
            found = [label for part in self._parts.values() for label in part.with_format(None)[column]]
        except KeyError:  # a split without that column
            return None
        return whole_labels(found, len(self))

    def _find(self, index: int) -> tuple[str, Any, int]:
        left = index
        for name, part in self._parts.items():
            if left < len(part):
                return name, part, left
            left -= len(part)
        raise IndexError(index)


class StreamSource(Source):
    """Iterable datasets, one split after the other."""

    def __init__(self, parts: Mapping[str, Any]):
        super().__init__()
        self._parts = dict(parts)

    def __iter__(self) -> Iterator[Sample]:
        for name, part in self._parts.items():
            rows = Loan().iterate(part.__iter__, partial(_unreadable, name))
            for index, row in enumerate(rows):
                yield _sample(row, name, index)


def _load(source: Any, options: dict[str, Any]) -> Any:
    if not isinstance(source, Path):
        return source
    datasets = require("datasets", extra="hf", purpose="reading a Hugging Face dataset")
    if source.is_dir():
        try:
            return datasets.load_from_disk(str(source))
        except Exception as error:
            raise DataError(
                f"datasets cannot load this folder: {type(error).__name__}: {error}",
                code="folder-broken",
                where=source,
                try_=CODES["folder-broken"].fix,
            ) from error
    if not _hub_answers():
        advice = "check the path; HF_HUB_OFFLINE=1 if the dataset is in the local cache of `datasets`"
        raise _not_found(source, "no network to look for it on the hub", advice)
    try:
        return datasets.load_dataset(source.as_posix(), **options)
    except Exception as error:
        advice = "where there is a network: load_dataset(name).save_to_disk(folder), then open the folder here"
        raise _not_found(source, f"the hub gave no such dataset: {type(error).__name__}: {error}", advice) from error


def _not_found(source: Path, what: str, advice: str) -> DataError:
    return DataError(
        f"no file or folder {source.as_posix()!r} here, and {what}",
        code="hub-unreachable",
        where=source.as_posix(),
        expected="a path that exists, or a hub name and a network",
        try_=advice,
    )


def _hub_answers() -> bool:
    """One short try, where the library would make many long ones; a proxy or its own offline mode is left to it."""
    if any(os.environ.get(name) for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HTTPS_PROXY", "https_proxy")):
        return True
    address = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        socket.create_connection((address.hostname or "", address.port or 443), timeout=3).close()
    except OSError:
        return False
    return True


def _is_saved(folder: Path) -> bool:
    return (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()


def _facts(parts: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {"splits": {name: len(p) if hasattr(p, "__len__") else None for name, p in parts.items()}}
    features = {name: getattr(part, "features", None) or {} for name, part in parts.items()}
    facts["columns_by_split"] = {name: list(columns) for name, columns in features.items()}
    facts["class_names"], facts["class_names_differ"] = of_all_splits(list(map(class_columns, features.values())))
    for column, names in facts["class_names"].items():
        facts.setdefault("classes", names)
        facts.setdefault("label", column)
    return facts


def _sample(row: Mapping[str, Any], split: str, index: int) -> Sample:
    beside = [name for name in row if "image" in row and name != "image"]
    made = {name: _plain(value, beside=name in beside) for name, value in row.items()}
    return Sample(made, place=Place(split, index=index))


def _plain(value: Any, *, beside: bool) -> Any:
    if comes_from(value, "PIL.Image.Image"):
        if beside and value.mode in _NUMBERS:
            return np.array(value)
        from fewbit.data.images.decode import WHITE
        from fewbit.data.images.pixels import to_rgb

        return to_rgb(value, WHITE)
    return value


def _unreadable(split: str, row: int, error: Exception) -> DataError:
    return DataError(
        f"a row cannot be decoded: {type(error).__name__}: {error}",
        code="row-unreadable",
        where=f"{split} row {row}",
        try_=CODES["row-unreadable"].fix,
    )
