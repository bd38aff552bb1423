# SPDX-License-Identifier: Apache-2.0
"""The full pass of a check: every row once, for types, lengths, labels, chats, files and duplicates."""

from __future__ import annotations

from collections.abc import Sequence

from fewbit.data.rows import chat
from fewbit.data.rows.columns import ColumnStatistics
from fewbit.data.rows.duplicates import Duplicates
from fewbit.data.rows.layout import TEXT_KEYS
from fewbit.data.rows.meaning import RowSource, by_split, chat_of, new_label_column
from fewbit.data.rows.plan import RowPlan
from fewbit.data.rows.table import Row, Table, column_lists, field_location, nested
from fewbit.data.types import DataReport, SampleError


def survey(source: RowSource, table: Table, plan: RowPlan, report: DataReport) -> None:
    """Read every row and report what is wrong; rows to be dropped are left out of the source.

    Args:
        source: the samples.
        table: their rows.
        plan: what the columns mean.
        report: takes the issues.
    """
    roles = plan.layout.roles
    text_only = bool(getattr(table, "text_only", False)) and plan.projection is None
    texts = [column for key, column in roles.items() if key in TEXT_KEYS]
    statistics = ColumnStatistics(texts, plan.label_column, text_only=text_only)
    repeats = Duplicates(text_only=text_only)
    label_column = new_label_column(plan) if plan.label_column is not None else None
    dropped: list[int] = []
    for first, rows in table.blocks():
        lists = column_lists(rows)
        repeats.add(rows, lists)
        if plan.projection is not None:
            rows = [plan.project(row) for row in rows]
            lists = column_lists(rows)
        statistics.add(first, rows, lists)
        if label_column is not None:
            column = label_column.column
            values = lists[column] if lists and column in lists else [nested(row, column) for row in rows]
            for start, split, split_values in by_split(table, first, values):
                label_column.add(start, split, split_values)
        if "messages" in roles:
            dropped += _check_chats(first, rows, table, roles["messages"], report)
        if plan.media is not None:
            dropped += _check_media(first, rows, table, plan, report)
    statistics.report(report, table)
    repeats.report(report, table)
    if label_column is not None:
        source.learn_labels(label_column)
    source.drop(dropped)


def _check_chats(first: int, rows: Sequence[Row], table: Table, column: str, report: DataReport) -> list[int]:
    """Report what is wrong with the chats of a block; positions of rows that cannot be used."""
    dropped: list[int] = []
    for position, row in enumerate(rows, first):
        messages, problems = chat.normalized(chat_of(row, column))
        problems += chat.remarks(messages)
        for kind, message in problems:
            action = report.add(kind, message, field_location(table, position, column))
            if action in ("drop", "raise") and dropped[-1:] != [position]:
                dropped.append(position)
    return dropped


def _check_media(first: int, rows: Sequence[Row], table: Table, plan: RowPlan, report: DataReport) -> list[int]:
    """Decode every file a block names; positions of rows whose file is missing or damaged."""
    assert plan.media is not None
    column = plan.layout.roles[plan.media.kind]
    dropped = []
    for position, row in enumerate(rows, first):
        try:
            plan.media.load(nested(row, column), field_location(table, position, column), report)
        except SampleError as error:
            report.add(error.issue.type, error.issue.message, error.issue.location)
            dropped.append(position)
    return dropped
