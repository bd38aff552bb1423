# SPDX-License-Identifier: Apache-2.0
"""What rows mean: `row_source` turns any `Table` into samples of text, chats, labels, images or columns.

row_source       decides on the layout by the first rows
  RowSource      a sample per row, under the keys of its layout; classes are numbered on first access
  _check_rows    with `full` depth: one pass over all rows for types, lengths, labels, chats, files and duplicates
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fewbit.data.answers import NO_ANSWER, answer_in_context
from fewbit.data.audio import AUDIO_ISSUES
from fewbit.data.images.decode import IMAGE_ISSUES
from fewbit.data.rows import chat, check, labels, layout, media
from fewbit.data.rows.check import ColumnStatistics, Duplicates
from fewbit.data.rows.labels import UNLABELED, LabelColumn, LabelError, Labels, Strata, number_label
from fewbit.data.rows.layout import TEXT_KEYS, RowPlan, make_plan
from fewbit.data.rows.media import (
    BAD_OBJECTS,
    LABELS_CONFLICT,
    MEDIA_UNLISTED,
    OBJECTS,
    BoxTable,
    boxes_and_classes,
    is_objects,
)
from fewbit.data.rows.table import Row, Table, column_lists, field_location, nested, raise_late, split_ranges, union
from fewbit.data.splits import SPLITS, split_of_file
from fewbit.data.types import DataReport, Depth, Files, FormatOption, Issue, IssueType, Location, Sample, SampleError
from fewbit.errors import UsageError

if TYPE_CHECKING:
    from fewbit.data.rows.arrow import Features

ROW_ISSUES: tuple[IssueType, ...] = (
    *layout.ISSUES, *labels.ISSUES, *check.ISSUES, *chat.ISSUES, *media.ISSUES, *IMAGE_ISSUES, *AUDIO_ISSUES,
)  # fmt: skip
"""Every issue `row_source` can report; a format lists them after its own."""

ROW_OPTIONS: tuple[FormatOption, ...] = (
    FormatOption("text_column", "column that holds the text; dots select nested fields"),
    FormatOption("label_column", "column that holds the label"),
    FormatOption("label_type", "class (default) or number, for a number to predict"),
    FormatOption("classes", "names of the classes, in the model's order", (str, list)),
    FormatOption("columns", "columns to read, as text=body,label=meta.score", (str, list, dict)),
)
"""Options `row_source` takes; a format lists them after its own. `task` and `split` are always among the options."""
NO_BOX_LEFT = "none of its boxes can be used"
_UNSPLIT = "unsplit"
_SPLIT_NAMES = (*SPLITS, _UNSPLIT)


def row_source(
    table: Table, files: Files | None, report: DataReport, *, depth: Depth, options: Mapping[str, Any],
    features: Sequence[Features] = (), local_paths: bool = False,
) -> RowSource:  # fmt: skip
    """The samples of a table.

    Args:
        table: the rows, of any format. Its own structural issues are already in the report, or will be when it is read.
        files: the dataset, if rows may name images or audio files in it.
        report: takes issues of columns, labels, chats, files and duplicates.
        depth: `full` reads every row; `index` reads the first block, and labels only when they are asked for.
        options: `text_column`, `label_column`, `label_type`, `classes`, `columns`, `task`, `split`; others are ignored.
        features: what is known of the columns of each file or split.
        local_paths: images may be anywhere on this machine: the user's object gives their paths.
    """
    table, plan = make_plan(table, files, report, depth, options, features, local_paths)
    source = RowSource(table, plan, report)
    if depth == "full":
        _check_rows(source, report)
    return source


class RowSource:
    """One sample per row."""

    def __init__(self, table: Table, plan: RowPlan, report: DataReport):
        self.table, self.plan = table, plan
        self._report = report
        self._positions: np.ndarray | range | None = None
        self._dropped: list[int] = []
        self._tally: _Tally | None = None
        self._labels: Labels | None = None

    @property
    def facts(self) -> Mapping[str, Any]:
        """Layout, roles, columns, splits, classes; reads the table once if that has not happened yet."""
        facts: dict[str, Any] = {"columns": list(self.table.columns), "layout": str(self.plan.layout)}
        facts["roles"] = dict(self.plan.layout.roles)
        classes = self.plan.object_names or (self.labels.classes if self.labels is not None else None)
        facts |= {"task": self.plan.task} if self.plan.task else {}
        facts |= {"classes": list(classes)} if classes is not None else {}
        names, codes = self._splits(np.asarray(self._resolved()))
        if set(names) - {_UNSPLIT}:
            counts = dict(zip(names, np.bincount(codes, minlength=len(names)).tolist()))
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
        positions = [self._position(int(index)) for index in indices]
        return [self.sample(position, row) for position, row in zip(positions, self.table.fetch(positions))]

    def location(self, index: int) -> Location:
        return self.table.location(self._position(index))

    def strata(self) -> Sequence[Any] | None:
        """The class of each sample, else its split, else its file; `None` if there is only one."""
        positions = np.asarray(self._resolved())
        if self.labels is not None and self._tally is not None and self._tally.labels is not None:
            return self._tally.labels.strata(self.labels, positions)
        names, codes = self._splits(positions)
        if len(names) > 1:
            return Strata(names, codes)
        by_file = getattr(self.table, "files_of", None)
        return None if by_file is None else by_file(positions)

    @property
    def labels(self) -> Labels | None:
        """The classes of the label column; read once, when first asked for."""
        needed = self.plan.label_column is not None or self.plan.split_column is not None
        if needed and self._tally is None:
            tally = _Tally(self.table, self.plan)
            for first, rows in self.table.blocks():
                tally.add(first, [self.plan.project(row) for row in rows])
            self.learn(tally)
        return self._labels

    def learn(self, tally: _Tally) -> None:
        """Number the classes of a label column that was read, and report what is wrong with it."""
        self._tally = tally
        if tally.labels is not None:
            self._labels = tally.labels.number(self.plan.classes, self._report)
            bad = tally.labels.report(self._labels, self._report, self.table)
            for start, codes in tally.labels.codes.pieces() if bad else ():
                self.drop((np.flatnonzero(np.isin(codes[:, 0], list(bad))) + start).tolist())
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
        sample = self.decode_files(position, row)
        used = {*roles.values(), *(chat.COLUMNS if "messages" in roles else ())}
        if self.plan.media is not None:
            used |= {*self.plan.media.columns, *([OBJECTS] if "boxes" in sample else [])}
        for key, column in roles.items():
            value = nested(row, column)
            if key == "messages":
                sample[key] = self._messages(row, column, position)
            elif key in ("label", "tags"):
                sample[key] = self._label(value, position, column)
            elif key not in ("image", "audio"):
                is_messages = key in ("chosen", "rejected") and chat.is_chat(value)
                sample[key] = chat.normalized(value)[0] if is_messages else value
        if self.plan.layout.name == "instruction":
            sample["prompt"] = "\n\n".join(filter(None, (sample["instruction"], sample.get("input"))))
            sample["completion"] = sample["output"]
        for name in self.plan.projection or union((self.table.columns, row)):
            if name not in used and name not in sample:
                sample[name] = row.get(name)
        return sample

    def decode_files(self, position: int, row: Row, report: DataReport | None = None) -> Sample:
        """The images or the sound of a row, and boxes in pixels of the image."""
        sample: Sample = {}
        for number, name in enumerate(self.plan.media.columns if self.plan.media is not None else ()):
            value = nested(row, name)
            if value is not None or name not in self.table.embedded:
                assert self.plan.media is not None
                location = field_location(self.table, position, name)
                load = self.plan.media.load_other if number else self.plan.media.load
                sample |= load(name, value, location, report)
        if "image" in sample and is_objects(row.get(OBJECTS)):
            height, width = sample["image"].shape[:2]
            if isinstance(self.table, BoxTable):
                if report is not None and not self.table.check(position, width, height, report):
                    raise SampleError(Issue(BAD_OBJECTS, NO_BOX_LEFT, self.table.location(position)))
                row = self.table.row(position)
                location = self.table.box_location(position, width, height)
            else:
                location = field_location(self.table, position, OBJECTS)
            sample |= boxes_and_classes(row[OBJECTS], width, height, location)
        return sample

    def _messages(self, row: Row, column: str, position: int) -> list[dict[str, Any]]:
        messages, problems = chat.normalized(chat.messages_of(row, column))
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
        """Row of a sample; needs no length as long as nothing is left out or put in another order."""
        ordered = self.plan.split is None and self.plan.split_column is None and not self._dropped
        labels_known = self.plan.label_column is None or self._tally is not None
        if self._positions is None and ordered and labels_known and index >= 0:
            return index
        positions = self._resolved()
        if not -len(positions) <= index < len(positions):
            raise IndexError(f"sample {index} of {len(positions)}")
        return int(positions[index])

    def _resolved(self) -> np.ndarray | range:
        """Rows of all samples, in the order of splits."""
        if self._positions is None:
            _ = self.labels  # may drop rows
            positions: np.ndarray | range = range(len(self.table))
            if self.plan.split is not None or self.plan.split_column is not None:
                names, codes = self._splits(np.asarray(positions))
                positions = np.argsort(codes, kind="stable")
                if self.plan.split is not None:
                    positions = np.flatnonzero(codes == names.index(self._split_name(self.plan.split, names)))
            if self._dropped:
                positions = np.asarray(positions)[~np.isin(positions, self._dropped)]
            self._positions = positions
        return self._positions

    def _splits(self, positions: np.ndarray) -> tuple[list[str], np.ndarray]:
        """The splits there are, and which of them each position has."""
        if self._tally is not None and self._tally.splits:
            return list(_SPLIT_NAMES), np.concatenate(self._tally.splits)[positions]
        ranges = split_ranges(self.table)
        codes = np.searchsorted([stop for _, stop in ranges.values()], positions, side="right")
        return [name or _UNSPLIT for name in ranges], codes

    def split_codes(self, positions: np.ndarray) -> np.ndarray:
        """A number for the split of each position."""
        return self._splits(positions)[1]

    def _split_name(self, split: str, names: Sequence[str]) -> str:
        name = split if split in names else split_of_file(split) or split
        if name not in names:
            raise UsageError(
                f"there is no split {split!r}", code="split-missing", param="split",
                expected=", ".join(names) if set(names) & set(SPLITS) else "files that are named after splits",
                hint=f"{{split={next(iter(names), 'train')}}}",
            )  # fmt: skip
        return name

    def __getstate__(self) -> dict[str, Any]:
        self._resolved()
        return {**self.__dict__, "_report": DataReport(on_error=self._report.on_error)}


class _Tally:
    """Labels and splits of all rows, gathered block by block."""

    def __init__(self, table: Table, plan: RowPlan):
        self._table, self._split_column, self._label_column = table, plan.split_column, plan.label_column
        self.labels: LabelColumn | None = None
        if plan.label_column is not None:
            self.labels = LabelColumn(plan.label_column, numbers=plan.numbers, tags="tags" in plan.layout.roles)
        self.splits: list[np.ndarray] = []  # if a column says them

    def add(self, first: int, rows: Sequence[Row], lists: Mapping[str, list[Any]] | None = None) -> None:
        """Take in a block."""
        groups = list(self._groups(first, rows))
        if self._label_column is None or self.labels is None:
            return
        column = self._label_column
        values = lists[column] if lists and column in lists else [nested(row, column) for row in rows]
        codes = np.zeros(len(rows), np.int64)
        for split, offsets in groups:
            selected = values if len(offsets) == len(rows) else [values[offset] for offset in offsets.tolist()]
            codes[offsets] = self.labels.add(offsets + first, split, selected)
        self.labels.codes.append(codes)

    def _groups(self, first: int, rows: Sequence[Row]) -> Iterator[tuple[str | None, np.ndarray]]:
        """The splits of a block, each with the offsets of its rows."""
        if self._split_column is not None:
            splits = [split_of_file(str(row.get(self._split_column))) or _UNSPLIT for row in rows]
            codes = np.array([_SPLIT_NAMES.index(split) for split in splits], np.int8)
            self.splits.append(codes)
            for code in np.unique(codes).tolist():
                yield (_SPLIT_NAMES[code] if code < len(SPLITS) else None), np.flatnonzero(codes == code)
            return
        start, split = 0, self._table.split(first)
        for offset in range(1, len(rows)) if split != self._table.split(first + len(rows) - 1) else ():
            following = self._table.split(first + offset)
            if following != split:
                yield split, np.arange(start, offset)
                start, split = offset, following
        yield split, np.arange(start, len(rows))


def _check_rows(source: RowSource, report: DataReport) -> None:
    """Read every row and report what is wrong; rows to be dropped are left out of the source."""
    table, plan = source.table, source.plan
    roles = plan.layout.roles
    text_only = table.text_only and plan.projection is None
    texts = [column for key, column in roles.items() if key in TEXT_KEYS]
    statistics = ColumnStatistics(texts, plan.label_column, text_only=text_only)
    repeats = Duplicates(text_only=text_only)
    tally = _Tally(table, plan)
    files = _FileCheck(source, report) if plan.media is not None else None
    dropped: list[int] = []
    for first, rows in table.blocks():
        repeats.add(rows)
        if plan.projection is not None:
            rows = [plan.project(row) for row in rows]
        positions = range(first, first + len(rows))
        statistics.add(positions, rows)
        tally.add(first, rows, column_lists(rows) if text_only else None)
        if "messages" in roles:
            dropped += _check_chats(positions, rows, table, roles["messages"], report)
        if plan.layout.name == "question-answering":
            dropped += _check_answers(positions, rows, table, roles, report)
        if files is not None:
            dropped += files.add(positions, rows)
    statistics.report(report, table)
    source.learn(tally)
    dropped += repeats.report(report, table, source.split_codes)
    if report.action(check.EMPTY_TEXT) == "drop":
        dropped += statistics.empty
    if files is not None:
        files.report_unlisted()
    source.drop(dropped)


def _check_chats(
    positions: Sequence[int], rows: Sequence[Row], table: Table, column: str, report: DataReport
) -> list[int]:
    """Report what is wrong with the chats of a block; positions of rows that cannot be used."""
    dropped: list[int] = []
    for position, row in zip(positions, rows):
        messages, problems = chat.normalized(chat.messages_of(row, column))
        for kind, message in [*problems, *chat.remarks(messages)]:
            action = report.add(kind, message, field_location(table, position, column))
            if action in ("drop", "raise") and dropped[-1:] != [position]:
                dropped.append(position)
    return dropped


def _check_answers(
    positions: Sequence[int], rows: Sequence[Row], table: Table, roles: Mapping[str, str], report: DataReport
) -> list[int]:
    """Report answers that are not in their context; a question without an answer is none."""
    dropped: list[int] = []
    for position, row in zip(positions, rows):
        span = answer_in_context({key: nested(row, column) for key, column in roles.items()})
        if isinstance(span, str) and span != NO_ANSWER:
            location = field_location(table, position, roles["answers"])
            if report.add(check.BAD_ANSWER, span, location) in ("drop", "raise"):
                dropped.append(position)
    return dropped


class _FileCheck:
    """Decodes every file that rows name or hold, and compares what they name with what is there."""

    def __init__(self, source: RowSource, report: DataReport):
        assert source.plan.media is not None
        self._source, self._report, self._media = source, report, source.plan.media
        self._listed: dict[str, tuple[int, Any]] = {}  # row and label of each file

    def add(self, positions: Sequence[int], rows: Sequence[Row]) -> list[int]:
        """Positions of rows whose file is missing or damaged."""
        table, plan = self._source.table, self._source.plan
        column, label = self._media.columns[0], plan.layout.roles.get("label")
        dropped = []
        for position, row in zip(positions, rows):
            value = nested(row, column)
            if isinstance(value, str):
                self._compare(value, position, nested(row, label) if label else None, label)
            try:
                self._source.decode_files(position, table.row(position) if table.embedded else row, self._report)
            except SampleError as error:
                if error.issue.message == NO_BOX_LEFT or self._report.add_error(error) in ("drop", "raise"):
                    dropped.append(position)
        return dropped

    def _compare(self, value: str, position: int, label: Any, label_column: str | None) -> None:
        table = self._source.table
        name = self._media.find(value, table.location(position).file)
        if name is None:
            return
        earlier, earlier_label = self._listed.setdefault(name, (position, label))
        if earlier_label != label and label_column is not None:
            message = f"{name} is {str(earlier_label)[:60]!r} in {table.location(earlier)} and {str(label)[:60]!r} here"
            self._report.add(LABELS_CONFLICT, message, field_location(table, position, label_column))

    def report_unlisted(self) -> None:
        """Report files that no row names."""
        table, listed = self._source.table, set(self._listed)
        if isinstance(table, BoxTable):  # also images whose rows were all left out
            file = table.table.location(0).file if len(table.table) else ""
            listed |= {name for value in table.images if (name := self._media.find(value, file)) is not None}
        for name in self._media.unlisted(listed):
            self._report.add(MEDIA_UNLISTED, "no row names it", Location(name))
