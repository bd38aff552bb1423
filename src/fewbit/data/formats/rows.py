# SPDX-License-Identifier: Apache-2.0
"""Rows: .jsonl, .json, .csv, .tsv and .parquet, one file or a folder of shards, also as .gz and .zst.

A sample's keys are the columns of its row. Values of JSON and parquet keep their types; values of a CSV are text
until `types=` declares otherwise. Three things are done to a row, and nothing else:

- a column that the first rows have and this one has not is `None`;
- when the layout is a chat, the messages are under `messages` as `[{"role": …, "content": …}]`;
- with `task="text-classification"` the label column holds the class number (-1: not labelled) and `facts["classes"]`
  the names; with `task="text-regression"` it holds a float.

Without `split=` all splits come one after the other: train, val, test, the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewbit.data import walk
from fewbit.data.findings import DataReport, Policy
from fewbit.data.formats._base import Match
from fewbit.data.sample import Place
from fewbit.data.signature import Signature
from fewbit.data.source import Source
from fewbit.data.tables.codes import CODES as CODES
from fewbit.data.tables.shards import choose, find, is_row_file, kind_of
from fewbit.errors import DataError

if TYPE_CHECKING:
    from fewbit.data.tables.collection import Collection

_LOOK = 500
_PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".npy", ".npz", ".arrow")

Columns = Mapping[str, str] | Iterable[str] | str | None


def detect(source: object) -> Match | None:
    """A file with the suffix of a row file, or a folder that holds some."""
    if not isinstance(source, Path):
        return None
    if source.is_file():
        return Match(0.9, f"a file of rows, {source.name}") if kind_of(source.name) else None
    if not source.is_dir():
        return None
    names = [entry.name.lower() for entry in islice(walk.walk(source), _LOOK)]
    rows = [name for name in names if is_row_file(name)]
    if not rows or "state.json" in names or any(name.endswith("dataset_dict.json") for name in names):
        return None
    others = sum(name.endswith(_PICTURES) for name in names)
    reason = f"{len(rows):,} row files, such as {rows[0]}"
    return Match(0.3 if others > len(rows) else 0.5 if others else 0.85, reason)


def read(
    source: Path,
    *,
    split: str | None = None,
    task: str | None = None,
    policy: Policy,
    columns: Columns = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    types: Mapping[str, Any] | str | None = None,
    label: str | None = None,
    layout: str | None = None,
) -> Source:
    """Open lazily: the first rows are read now, an index is made when the length or a random row is asked for.

    Args:
        source: a file or a folder.
        split: `train`, `val` (also `valid`, `validation`, `dev`) or `test`; everything when left out.
        task: `text-classification` or `text-regression` make the label a number; `text-generation` needs none.
        policy: what to do about faults.
        columns: which columns a sample has, under which names: `{"text": "messages.0.content"}`, or a list.
        encoding: of text files that are neither UTF-8 nor marked otherwise.
        delimiter: of CSV files.
        types: declared types of CSV columns, `{"label": "int"}`; the rest stays text.
        label: the label column.
        layout: what the rows are, when it is not what their columns look like.
    """
    from fewbit.data.tables.collection import Collection, Options
    from fewbit.data.tables.row_source import RowSource

    shards = find(source)
    chosen = choose(source, shards, split)
    options = Options(encoding, delimiter, types, columns, label, layout)
    collection = Collection(source, shards, task, options)
    opened = RowSource(collection, chosen, policy, list(CODES))
    opened.facts.update(_facts(collection))
    if collection.labels is not None:
        opened.facts["classes"] = list(collection.labels.classes)
        for code, message in collection.labels.remarks:
            opened.record.note(code, message, where=collection.label)
    if split is None and len(collection.splits) > 1:
        opened.record.note(
            "all-splits", f"rows of {', '.join(collection.splits)}, one after the other; split= takes one"
        )
    for message in collection.lost():
        opened.record.note("no-column", message)
    opened.record.note("layout", f"rows are read as {collection.layout}; layout=, label= and columns= choose others")
    return opened


def check(
    source: Path,
    report: DataReport,
    *,
    task: str | None = None,
    signature: Signature | None = None,
    quick: bool = False,
    columns: Columns = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    types: Mapping[str, Any] | str | None = None,
    label: str | None = None,
    layout: str | None = None,
) -> None:
    """Every fault of every row (of the first thousand of each file when quick). Options as in `read`."""
    from fewbit.data.tables.collection import Collection, Options
    from fewbit.data.tables.survey import ReportSurvey

    shards = find(source, walk.report_into(report))
    if not shards:
        report.add("no-files", "no file of rows was found", Place(str(source)))
        return
    collection = Collection(source, shards, task, Options(encoding, delimiter, types, columns, label, layout))
    try:
        survey = ReportSurvey(report, collection, quick=quick)
    except DataError as error:
        report.add(error.code or "no-label", error.what, Place(error.where), error.try_)
        collection = Collection(source, shards, None, collection.options)
        survey = ReportSurvey(report, collection, quick=quick)
    for message in collection.lost():
        report.add("no-column", message, Place(str(source)))
    report.understood.update(_facts(collection))
    pairs = [(shard, part) for part, found in collection.splits.items() for shard in found]
    for shard, part in report.progress.track(pairs, total=len(pairs), label="files"):
        survey.take(collection.table(shard), part)
    survey.finish()
    if not any(survey.counts.values()) and "unreadable" not in report.counts:
        report.add("no-rows", "there is not one row that can be read", Place(str(source)))


def fix(
    source: Path,
    out: Path,
    *,
    task: str | None = None,
    signature: Signature | None = None,
    columns: Columns = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    types: Mapping[str, Any] | str | None = None,
    label: str | None = None,
    layout: str | None = None,
) -> list[str]:
    """Write a copy without the rows that cannot be read; files without a fault are copied as they are."""
    from fewbit.data.tables.collection import Collection, Options
    from fewbit.data.tables.row_copy import RowCopy

    shards = find(source)
    collection = Collection(source, shards, task, Options(encoding, delimiter, types, columns, label, layout))
    names = [shard.name for shard in shards]
    copier = RowCopy(CODES, collection.rules(), names, reencode=encoding is not None)
    return [change for shard in shards for change in copier.copy(collection.table(shard), out)]


def _facts(collection: Collection) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "columns": list(dict.fromkeys(name for row in collection.head for name in row)),
        "layout": str(collection.layout),
        "splits": dict.fromkeys(collection.splits),
        "task": collection.task,
    }
    if collection.label is not None:
        facts["label"] = collection.label
    return facts
