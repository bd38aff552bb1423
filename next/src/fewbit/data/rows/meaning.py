# SPDX-License-Identifier: Apache-2.0
"""What rows mean: `row_source` turns any `Table` into samples of text, chats, labels, images or columns.

row_source     recognizes the layout by the first block
  RowSource    a sample per row, under the keys of its layout; classes are numbered on first access
  survey       with `full` depth: one pass over all rows for types, lengths, labels, chats, files and duplicates
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fewbit.data.rows import chat, columns, duplicates, labels, media
from fewbit.data.rows import plan as plans
from fewbit.data.rows.label_column import LabelColumn
from fewbit.data.rows.labels import UNLABELED, LabelError, Labels, number_label
from fewbit.data.rows.plan import RowPlan, make_plan
from fewbit.data.rows.table import Row, Table, field_location, nested, split_ranges, union
from fewbit.data.splits import SPLITS
from fewbit.data.types import (
    DataReport,
    Depth,
    Files,
    FormatOption,
    Issue,
    IssueType,
    Location,
    Sample,
    SampleError,
)
from fewbit.errors import UsageError

ROW_ISSUES: tuple[IssueType, ...] = (
    *plans.ISSUES, *labels.ISSUES, *columns.ISSUES, *chat.ISSUES, *media.ISSUES, *duplicates.ISSUES,
)  # fmt: skip
"""Every issue `row_source` can report, except those of image files; a format lists them after its own."""

ROW_OPTIONS: tuple[FormatOption, ...] = (
    FormatOption("text_column", "column that holds the text; dots select nested fields"),
    FormatOption("label_column", "column that holds the label"),
    FormatOption("label_type", "class (default) or number, for a number to predict"),
    FormatOption("classes", "names of the classes, in the model's order", (str, list)),
    FormatOption("columns", "columns to read, as text=body,label=meta.score", (str, list, dict)),
)
"""Options `row_source` takes; a format lists them after its own. `task` and `split` are always among the options."""


def row_source(
    table: Table, files: Files | None, report: DataReport, *, depth: Depth, options: Mapping[str, Any]
) -> RowSource:
    """The samples of a table.

    Args:
        table: the rows, of any format. Its own structural issues are already in the report, or will be when it is read.
        files: the dataset, if rows may name images or audio files in it.
        report: takes issues of columns, labels, chats and duplicates.
        depth: `full` reads every row; `index` reads the first block, and labels only when they are asked for.
        options: `text_column`, `label_column`, `label_type`, `classes`, `columns`, `task`, `split`; others are ignored.
    """
    plan = make_plan(table, files, report, depth, options)
    source = RowSource(table, plan, report)
    if depth == "full":
        from fewbit.data.rows.survey import survey

        survey(source, table, plan, report)
    return source


class RowSource:
    """One sample per row.

    Args:
        table: the rows.
        plan: what they mean.
        report: takes issues that are found later.
    """

    def __init__(self, table: Table, plan: RowPlan, report: DataReport):
        self.table, self.plan = table, plan
        self._report = report
        self._positions: np.ndarray | range | None = None
        self._dropped: list[int] = []
        self._labels: Labels | None = None
        self._label_column: LabelColumn | None = None

    @property
    def facts(self) -> Mapping[str, Any]:
        """Layout, roles, columns, splits, classes; reads the table once if that has not happened yet."""
        facts: dict[str, Any] = {"columns": list(self.table.columns), "layout": str(self.plan.layout)}
        facts["roles"] = dict(self.plan.layout.roles)
        if self.plan.task:
            facts["task"] = self.plan.task
        if self.labels is not None:
            facts["classes"] = list(self.labels.classes)
        positions = self._resolved()
        ranges = split_ranges(self.table)
        if set(ranges) - {None}:
            counts = {split or "unsplit": _count_between(positions, *ranges[split]) for split in ranges}
            facts["splits"] = {name: count for name, count in counts.items() if count}
        return facts

    def __len__(self) -> int:
        return len(self._resolved())

    @property
    def length_known(self) -> bool:
        """Whether `len` costs nothing; if not, it reads the table once, and `source[0]` alone is much cheaper."""
        return self._positions is not None

    def __getitem__(self, index: int) -> Sample:
        position = self._position(index)
        return self.sample(position, self.table.row(position))

    def fetch(self, indices: Sequence[int]) -> list[Sample]:
        """Several samples, read together."""
        positions = [self._position(int(index)) for index in indices]
        return [self.sample(position, row) for position, row in zip(positions, self.table.fetch(positions))]

    def location(self, index: int) -> Location:
        """File, and line or row."""
        return self.table.location(self._position(index))

    def strata(self) -> Sequence[Any] | None:
        """The class of each sample, else its split, else its file; `None` if there is only one."""
        positions = np.asarray(self._resolved())
        if self.labels is not None and (codes := self._codes()) is not None and self._label_column is not None:
            names = [self.labels.name(value) or "unlabeled" for value in self._label_column.values]
            table = np.array([*names, "several"], object)
            return list(table[np.where(codes < 0, len(names), codes)[positions]])
        ranges = split_ranges(self.table)
        if len(ranges) > 1:
            splits = np.concatenate(
                [np.full(stop - start, split or "unsplit", object) for split, (start, stop) in ranges.items()]
            )
            return list(splits[positions])
        by_file = getattr(self.table, "files_of", None)
        return None if by_file is None else by_file(positions)

    @property
    def labels(self) -> Labels | None:
        """The classes of the label column; read once, when first asked for."""
        if self.plan.label_column is not None and self._label_column is None:
            self.learn_labels(_read_labels(self.table, self.plan))
        return self._labels

    def learn_labels(self, column: LabelColumn) -> None:
        """Number the classes of a label column that was read, and report what is wrong with it."""
        self._label_column = column
        self._labels = column.labels(self.plan.classes)
        bad = column.report(self._labels, self._report, self.table)
        if bad and (codes := self._codes()) is not None:
            self.drop(np.flatnonzero(np.isin(codes, list(bad))).tolist())
        raise_late(self._report)

    def drop(self, positions: Sequence[int]) -> None:
        """Leave rows of the table out."""
        if positions:
            self._dropped = sorted({*self._dropped, *positions})
            self._positions = None

    @property
    def dropped(self) -> Sequence[int]:
        """Rows of the table that were left out."""
        return self._dropped

    def sample(self, position: int, row: Row) -> Sample:
        """The sample of a row.

        Raises:
            SampleError: it is damaged.
        """
        roles = self.plan.layout.roles
        row = self.plan.project(row)
        sample: Sample = {}
        for key, column in roles.items():
            sample.update(self._value(key, column, row, position))
        if self.plan.layout.name == "instruction":
            sample["prompt"] = "\n\n".join(filter(None, (sample["instruction"], sample.get("input"))))
            sample["completion"] = sample["output"]
        used = {*roles.values(), *(chat.COLUMNS if "messages" in roles else ())}
        for name in self.plan.projection or union((self.table.columns, row)):
            if name not in used and name not in sample:
                sample[name] = row.get(name)
        return sample

    def _value(self, key: str, column: str, row: Row, position: int) -> Sample:
        value = nested(row, column)
        if key == "messages":
            return {key: self._messages(row, column, position)}
        if key in ("label", "tags"):
            return {key: self._label(value, position, column)}
        if self.plan.media is not None and key == self.plan.media.kind:
            return self.plan.media.load(value, field_location(self.table, position, column))
        if key in ("chosen", "rejected") and chat.is_chat(value):
            return {key: chat.normalized(value)[0]}
        return {key: value}

    def _messages(self, row: Row, column: str, position: int) -> list[dict[str, Any]]:
        messages, problems = chat.normalized(chat_of(row, column))
        for kind, message in problems:
            if kind is chat.BAD_MESSAGE and self._report.action(kind) != "keep":
                raise SampleError(Issue(kind, message, field_location(self.table, position, column)))
        return messages

    def _label(self, value: Any, position: int, column: str) -> Any:
        try:
            if self.plan.numbers:
                number = number_label(value)
                return float("nan") if number is None else number
            return value if self.labels is None else self.labels.encode(value)
        except LabelError as error:
            if self._report.action(error.kind) == "keep":
                return UNLABELED
            raise SampleError(Issue(error.kind, str(error), field_location(self.table, position, column))) from error

    def _position(self, index: int) -> int:
        """Row of a sample; needs no length as long as nothing is left out."""
        lazy = self._positions is None and self.plan.split is None and not self._dropped
        if lazy and index >= 0 and (self.plan.label_column is None or self._label_column is not None):
            return index
        positions = self._resolved()
        if not -len(positions) <= index < len(positions):
            raise IndexError(f"sample {index} of {len(positions)}")
        return int(positions[index])

    def _resolved(self) -> np.ndarray | range:
        """Rows of all samples."""
        if self._positions is None:
            _ = self.labels  # may drop rows
            start, stop = 0, len(self.table)
            if self.plan.split is not None:
                start, stop = self._split_range(self.plan.split)
            self._positions = range(start, stop)
            if self._dropped:
                self._positions = np.setdiff1d(np.arange(start, stop), self._dropped)
        return self._positions

    def _split_range(self, split: str) -> tuple[int, int]:
        from fewbit.data.splits import split_of_file

        ranges = {name or "unsplit": span for name, span in split_ranges(self.table).items()}
        name = split if split in ranges else split_of_file(split) or split
        if name not in ranges:
            raise UsageError(
                f"there is no split {split!r}", code="split-missing", param="split",
                expected=", ".join(ranges) if set(ranges) & set(SPLITS) else "files that are named after splits",
                hint=f"{{split={next(iter(ranges), 'train')}}}",
            )  # fmt: skip
        return ranges[name]

    def _codes(self) -> np.ndarray | None:
        """The number of each row's label value; of a very long table by a second pass."""
        assert self._label_column is not None
        codes = self._label_column.joined_codes()
        if codes is not None and len(codes) == self._label_column.rows:
            return codes
        blocks = [self._label_column._codes(values) for _, _, values in label_values(self.table, self.plan)]
        return np.concatenate([np.array(block, np.int32) for block in blocks])

    def __getstate__(self) -> dict[str, Any]:
        self._resolved()
        return {**self.__dict__, "_report": DataReport(on_error=self._report.on_error)}


def chat_of(row: Row, column: str) -> Any:
    """The messages of a row: under `messages`, or under another name that means the same."""
    value = nested(row, column)
    if value is not None:
        return value
    return next((row[name] for name in chat.COLUMNS if row.get(name) is not None), None)


def label_values(table: Table, plan: RowPlan) -> Iterator[tuple[int, str | None, list[Any]]]:
    """Position, split and labels of consecutive rows."""
    column = plan.label_column
    assert column is not None
    for first, rows in table.blocks():
        values = [nested(plan.project(row), column) for row in rows]
        yield from by_split(table, first, values)


def by_split(table: Table, first: int, values: list[Any]) -> Iterator[tuple[int, str | None, list[Any]]]:
    """Consecutive values, cut where the split changes; blocks of one split are the rule."""
    split = table.split(first)
    if split == table.split(first + len(values) - 1):
        yield first, split, values
        return
    start = 0
    for number in range(1, len(values) + 1):
        following = table.split(first + number) if number < len(values) else object()
        if following != split:
            yield first + start, split, values[start:number]
            start, split = number, following  # type: ignore[assignment]


def new_label_column(plan: RowPlan) -> LabelColumn:
    """A tally for the label column of a plan."""
    assert plan.label_column is not None
    return LabelColumn(plan.label_column, numbers=plan.numbers, tags="tags" in plan.layout.roles)


def _read_labels(table: Table, plan: RowPlan) -> LabelColumn:
    column = new_label_column(plan)
    for first, split, values in label_values(table, plan):
        column.add(first, split, values)
    return column


def _count_between(positions: np.ndarray | range, start: int, stop: int) -> int:
    if isinstance(positions, range):
        return len(range(max(positions.start, start), min(positions.stop, stop)))
    return int(np.searchsorted(positions, stop) - np.searchsorted(positions, start))


def raise_late(report: DataReport) -> None:
    """Raise for issues that were found after the dataset was opened; before that, the opener does."""
    if report.complete and (raising := report.raising()):
        from fewbit.data.opening import issues_error

        raise issues_error(report, raising)
