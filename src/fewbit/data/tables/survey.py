# SPDX-License-Identifier: Apache-2.0
"""A full pass over a dataset for its report: faults as they come, and at the end what the rows have in common."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import islice
from typing import Any

from fewbit.data.findings import DataReport
from fewbit.data.sample import Place
from fewbit.data.tables.collection import Collection
from fewbit.data.tables.field import field
from fewbit.data.tables.label_tally import LabelTally
from fewbit.data.tables.lengths import Lengths
from fewbit.data.tables.repeats import Repeats, row_hash
from fewbit.data.tables.schema import COLUMNS, Schema
from fewbit.data.tables.schema_survey import take_columns
from fewbit.data.tables.table import Fault, Row, Table
from fewbit.data.tables.text_column import TextColumn

_QUICK = 1000
_SHOWN = 50


class ReportSurvey:
    """Listens to the tables of a dataset, one after the other.

    Args:
        report: takes the findings.
        collection: the dataset.
    """

    def __init__(self, report: DataReport, collection: Collection):
        self.report = report
        self.rules = collection.rules(encode=False)
        self.label_path = collection.label_path if collection.task == "text-classification" else None
        self.tally = LabelTally(collection.label or "label")
        self.schema, self.lengths, self.repeats = Schema(), Lengths(), Repeats()
        self.counts: Counter[str] = Counter()
        self.file, self.split, self.seen = "", "", 0

    def take(self, table: Table, split: str, *, quick: bool) -> None:
        """One pass over a table, or a look at its first rows."""
        self.file, self.split, self.seen = table.name, split, 0
        self.repeats.begin(table.name, split)
        if quick:
            for note in table.notes():
                self.fault(note)
            self.rows(list(islice(table.rows(), _QUICK)))
        else:
            table.scan(self)
        if self.seen == 0:
            self.report.add("empty-file", "the file holds no row", Place(table.name))

    def fault(self, fault: Fault) -> None:
        place = Place(self.file, fault.line, fault.offset, field=fault.field)
        self.report.add(fault.code, fault.message, place, fault.fix)

    def rows(self, rows: Sequence[Row]) -> None:
        lengths: defaultdict[str, list[int]] = defaultdict(list)
        hashes, lines, labels = [], [], []
        for row in rows:
            for fault in row.faults:
                self.fault(fault)
            values = row.values
            if values is None:
                continue
            spot = (self.file, row.line)
            if not row.faults:  # what was made of a faulty row says nothing about the types
                self.schema.add(values, spot)
            for name, value in values.items():
                if type(value) is str:
                    lengths[name].append(len(value))
            hashes.append(row_hash(values))
            lines.append(row.line or 0)
            if self.label_path is not None:
                labels.append((field(values, self.label_path), spot))
            if self.rules.chat is not None:
                for fault in self.rules.apply(row).faults[len(row.faults) :]:
                    self.fault(fault)
        for name, found in lengths.items():
            self.lengths.add(name, found)
        self.repeats.add(hashes, lines)
        self.tally.add(self.split, labels, self.fault)
        self._count(len(rows), len(hashes))

    def columns(
        self,
        names: Sequence[str],
        columns: Sequence[Sequence[Any]],
        lines: Sequence[int],
        digests: Sequence[int] | None = None,
    ) -> None:
        take_columns(self.schema, self.file, names, columns, lines)
        for name, column in zip(names, columns):
            if isinstance(column, TextColumn):
                self.lengths.add(name, column.lengths)
        hashes = digests if digests is not None else [hash(values) for values in zip(*columns)]
        self.repeats.add(hashes, lines)
        if self.label_path is not None and self.label_path in names:
            column = columns[list(names).index(self.label_path)]
            found = ((value, (self.file, int(line))) for value, line in zip(column, lines))
            self.tally.add(self.split, found, self.fault)
        self._count(len(lines), len(lines))

    def _count(self, seen: int, good: int) -> None:
        self.seen += seen
        self.counts[self.split] += good
        self.report.progress.advance(f"rows of {self.file}", self.seen, None)

    def finish(self) -> None:
        """Say what the rows have in common."""
        understood = self.report.understood
        understood["rows"] = dict(self.counts)
        columns = self.schema.columns()
        understood["columns"] = {name: self.schema.text(name) for name in islice(columns, _SHOWN)}
        understood["lengths"] = {name: self.lengths.text(name) for name in islice(self.lengths.columns(), _SHOWN)}
        if self.schema.overflow:
            self.report.add("many-columns", f"more than {COLUMNS:,} columns; the rest are not told apart")
        for name in self.schema.mixed():
            self.report.add("mixed-types", f"{name}: {self.schema.text(name)}", Place(self.file, field=name))
        if self.label_path is not None:
            self._finish_labels()
        self._finish_repeats()

    def _finish_labels(self) -> None:
        labels = self.tally.labels()
        self.report.understood["classes"] = list(labels.classes)
        self.report.understood["labels"] = self.tally.counts(labels)
        if self.tally.too_many:
            self.report.add("bad-label", f"column {self.tally.column!r} has too many different values to be classes")
        for fault, (file, line) in self.tally.faults(labels):
            self.report.add(fault.code, fault.message, Place(file or None, line, field=fault.field))

    def _finish_repeats(self) -> None:
        for first, again in self.repeats.pairs():
            file, line, split = self.repeats.spot(again)
            other, other_line, other_split = self.repeats.spot(first)
            place = Place(file, line, index=None if line else again)
            if split == other_split:
                self.report.add("duplicate-row", f"the same row as {Place(other, other_line)}", place)
            else:
                message = f"a row of {split} that stands in {other_split} too, at {Place(other, other_line)}"
                self.report.add("split-leak", message, place)
