# SPDX-License-Identifier: Apache-2.0
"""How the rows of a table become samples: decided once, from the first rows and the user's options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fewbit.data.rows import labels
from fewbit.data.rows.layout import RowLayout, recognize
from fewbit.data.rows.media import MEDIA_MISSING, MediaFiles, media_files
from fewbit.data.rows.table import Row, Table, nested, union
from fewbit.data.types import DataReport, Depth, Files, IssueType, Location, Severity
from fewbit.errors import UsageError, nearest

_HEAD_ROWS = 100
_TASKS = {
    "text-label": "text-classification",
    "token-tags": "token-classification",
    "question-answering": "question-answering",
    **dict.fromkeys(("chat", "preference", "instruction", "prompt-completion", "text"), "text-generation"),
}
_LABEL_TASKS = ("text-classification", "image-classification", "audio-classification")
_GENERATION_TASKS = ("text-generation", "masked-language-modeling", "information-retrieval")

NO_ROWS = IssueType("no-rows", Severity.ERROR, "table without a row", "check how the file was written", "raise")
NO_COLUMN = IssueType(
    "no-column", Severity.ERROR, "column that is in none of the first rows", "check its spelling", "raise", ("keep",)
)
ISSUES = (NO_ROWS, NO_COLUMN)


@dataclass(frozen=True)
class RowPlan:
    """How rows become samples.

    Args:
        layout: which column plays which role.
        projection: key and column of what the user selected; `None` for all columns.
        classes: the user's class names.
        numbers: labels are numbers to predict.
        media: the files an image or audio column names.
        split: the only one to read.
        task: what the user, else the layout, says.
    """

    layout: RowLayout
    projection: Mapping[str, str] | None = None
    classes: Sequence[str] | None = None
    numbers: bool = False
    media: MediaFiles | None = None
    split: str | None = None
    task: str | None = None

    def project(self, row: Row) -> Row:
        """The columns the user selected."""
        if self.projection is None:
            return row
        return {key: nested(row, column) for key, column in self.projection.items()}

    @property
    def label_column(self) -> str | None:
        """The column of labels or tags."""
        return self.layout.roles.get("label") or self.layout.roles.get("tags")


def make_plan(
    table: Table, files: Files | None, report: DataReport, depth: Depth, options: Mapping[str, Any]
) -> RowPlan:
    plan = RowPlan(RowLayout("columns", {}), _projection(options.get("columns")))
    head = [plan.project(row) for row in _head(table)]
    if not head:
        report.add(NO_ROWS, "there is no row that can be used", Location(files.root if files is not None else ""))
    text, label, task = (options.get(name) for name in ("text_column", "label_column", "task"))
    text, label = (str(name) if name is not None else None for name in (text, label))
    task = _task_name(task)
    head_columns = union(row.keys() for row in head)
    for name in (text, label, *((plan.projection or {}).values() if head else ())):
        names = head_columns if name in (text, label) else union(row.keys() for row in _head(table))
        if name is not None and head and name not in names and name.split(".")[0] not in names:
            suggestions = ", ".join(nearest(name, names) or names[:20])
            report.add(NO_COLUMN, f"no column {name!r}; there are {suggestions}", Location(field=name))
    layout = recognize(head, text=text, label=label)
    if task in _GENERATION_TASKS and "label" in layout.roles and layout.name in ("text-label", "text-pair"):
        layout = RowLayout("text", {key: column for key, column in layout.roles.items() if key == "text"})
    if head and task in _LABEL_TASKS and "label" not in layout.roles:
        report.add(labels.NO_LABEL, f"the columns are {', '.join(head_columns[:20])}", table.location(0))
    media = None
    if layout.name in ("image", "audio"):
        media = media_files(files, layout.name)
        if depth == "index":  # `full` looks at every file
            _check_media(table, head, layout, media, report)
    classes = options.get("classes")
    class_names = [name.strip() for name in classes.split(",")] if isinstance(classes, str) else classes
    report.facts["layout"] = str(layout)
    inferred = f"{layout.name}-classification" if media and "label" in layout.roles else _TASKS.get(layout.name)
    return RowPlan(
        layout,
        plan.projection,
        class_names,
        options.get("label_type") == "number",
        media,
        options.get("split"),
        task or inferred,
    )


def _head(table: Table) -> list[Row]:
    """The first rows."""
    rows: list[Row] = []
    for _, block in table.blocks():
        rows.extend(islice(block, _HEAD_ROWS - len(rows)))
        if len(rows) >= _HEAD_ROWS or len(block) >= _HEAD_ROWS:
            break
    return rows


def _projection(selected: Any) -> dict[str, str] | None:
    """Key and column for each column the user selected; `text=body,label`, a list or a mapping.

    >>> _projection("text=body, label"), _projection(["a"])
    ({'text': 'body', 'label': 'label'}, {'a': 'a'})
    """
    if selected is None:
        return None
    if isinstance(selected, str):
        fields = (item.partition("=") for item in selected.split(","))
        pairs = {key.strip(): (column if equals else key).strip() for key, equals, column in fields}
    elif isinstance(selected, Mapping):
        pairs = dict(selected)
    else:
        pairs = {str(name): str(name) for name in selected}
    if not pairs or not all(
        isinstance(key, str) and isinstance(column, str) and key and column for key, column in pairs.items()
    ):
        raise UsageError(
            f"columns cannot be {selected!r}", code="data-option", param="data_option", expected="names of columns",
            hint="{data_option=columns=text=body,label}",
        )  # fmt: skip
    return pairs


def _task_name(task: Any) -> str | None:
    if not isinstance(task, str):
        return None
    from fewbit.data.tasks import find_task

    return find_task(task).name if ":" not in task else None


def _check_media(table: Table, head: Sequence[Row], layout: RowLayout, files: MediaFiles, report: DataReport) -> None:
    """A table whose files are all missing is no table of texts: say so before anything else is read."""
    column = layout.roles[layout.name]
    values = [nested(row, column) for row in head]
    file = table.location(0).file
    if not any(not isinstance(value, str) or files.find(value, file) for value in values):
        message = f"none of the first {len(values)} files is there, such as {str(values[0])[:100]!r}"
        first = table.location(0)
        report.add(
            MEDIA_MISSING,
            message,
            Location(first.file, first.line, first.row, index=0, field=column),
            samples=len(values),
        )
