# SPDX-License-Identifier: Apache-2.0
"""Data checked whole before anything is done with it: every fault with its place, nothing written beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewbit import registry
from fewbit.data.check import DataCheck
from fewbit.data.dataset import Dataset
from fewbit.data.findings import DataReport, Progress
from fewbit.data.source import Source
from fewbit.data.text import open_text
from fewbit.errors import DataError, FewbitError
from fewbit.record import Record
from fewbit.sparsity.use_cases._base import UseCase

_TASKS = {
    "image_classification": "image-classification",
    "object_detection": "object-detection",
    "segmentation": "segmentation",
    "sequence_classification": "text-classification",
}
"""What formats call the tasks they know."""
_UNLABELLED = "name the columns: columns={'text': '…', 'label': '…'} (--option 'columns={text: …, label: …}')"
_SHOWN = 8


def check_data(
    data: Any, use_case: UseCase, model: Any, *, options: dict[str, Any], record: Record, progress: Progress
) -> None:
    """Check the files of a dataset; what may be a mistake goes into the record.

    Args:
        data: what the user gave; only paths are looked at, since objects are looked at when they are run.
        use_case: what it is for.
        model: whose inputs samples of arrays are held against.
        options: about data: `format`, `reading`, `policy`, which says what happens to faulty samples.
        record: takes a line about each kind of warning.
        progress: shows how far it is.

    Raises:
        DataError: faults that nothing was said about, the first of each kind with its place.
    """
    if not isinstance(data, str | Path) or registry.is_reference(data) or not Path(data).expanduser().exists():
        return
    if options.get("format") is None and isinstance(open_text(data), Source):  # plain text has no faults
        return
    place = Path(data).expanduser()
    reading = dict(options.get("reading") or {})
    own = registry.is_reference(use_case.name)  # what rows mean to it is its own affair
    how: dict[str, Any] = {"format": options.get("format"), "task": None if own else _TASKS.get(use_case.task or "")}
    check = DataCheck(place, **how, progress=progress, **reading)
    label = dict(options.get("columns") or {}).get("label")
    if check.report.format == "npz":
        check = DataCheck(place, **how, model=model, progress=progress, **reading)
    elif check.report.format == "rows" and label is not None:
        check = DataCheck(place, **how, progress=progress, **{"label": label, **reading})
    report = check.run()
    _tell(report, place, excused=options.get("policy") is not None, record=record)


def _tell(report: DataReport, place: Path, *, excused: bool, record: Record) -> None:
    for code, known, found in report.grouped():
        if str(known.severity) == "warn" or (excused and str(known.severity) == "error"):
            first = f", the first: {found[0]}" if found else ""
            record.note(f"data-{code}", f"{report.counts[code]:,} × {known.meaning}{first}", where=place)
    if report.ok or excused:
        return
    kinds = [(code, known, found) for code, known, found in report.grouped() if str(known.severity) == "error"]
    lines = [
        f"{report.counts[code]:,} × {code}: {found[0] if found else known.meaning}" for code, known, found in kinds
    ]
    more = f"`fewbit check {place}` names every place; policy='drop' (--option policy=drop) goes on without them; "
    raise DataError(
        "\n  - ".join(["the data has faults:", *lines[:_SHOWN]]),
        code=kinds[0][0],
        where=place,
        expected="data without faults, before anything is computed",
        try_=_UNLABELLED if kinds[0][0] == "no-label" else more + kinds[0][1].fix,
    )


def first_row(data: Any) -> tuple[str | None, Any]:
    """The format of data and its first row, as far as they can be had without preparing anything; none if not."""

    try:
        opened = data if isinstance(data, Dataset) else Dataset(open_text(data))
        return opened.facts.get("format"), next(iter(opened), None)
    except FewbitError:  # for whoever opens it to tell
        return None, None
