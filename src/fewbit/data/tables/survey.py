# SPDX-License-Identifier: Apache-2.0
"""A full pass over a dataset for its report: faults as they come, and at the end what the rows have in common."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import islice

from fewbit.data.findings import DataReport
from fewbit.data.sample import Place
from fewbit.data.tables import chat
from fewbit.data.tables.collection import Collection
from fewbit.data.tables.label_tally import LabelTally
from fewbit.data.tables.lengths import Lengths
from fewbit.data.tables.odd_values import LOST, OddValues
from fewbit.data.tables.projection import field
from fewbit.data.tables.repeats import Repeats, row_bytes
from fewbit.data.tables.schema import COLUMNS, Schema, is_guess, place_of
from fewbit.data.tables.table import Columns, Fault, Row, Survey, Table
from fewbit.data.tables.text_column import TextColumn

_QUICK = 1000
_SHOWN = 50
_LOST = LOST.encode()


class ReportSurvey(Survey):
    """Listens to the tables of a dataset, one after the other.

    Args:
        report: takes the findings.
        collection: the dataset.
        quick: look at the first rows of each table only.
    """

    def __init__(self, report: DataReport, collection: Collection, *, quick: bool = False):
        self.report = report
        self.quick = quick
        self.rules = collection.rules(encode=False)
        self.label_path = collection.label_path
        self.odd = OddValues(collection.text_paths, self.label_path)
        self.tally = LabelTally(report, collection.label or "", numbers=collection.task == "text-regression")
        self.schema, self.lengths, self.repeats = Schema(), Lengths(), Repeats()
        self.items = Lengths("items")
        self.counts: Counter[str] = Counter()
        self.all: Counter[str] = Counter()
        self.file, self.split, self.seen = "", "", 0
        self.table: Table

    def take(self, table: Table, split: str) -> None:
        """One pass over a table, or a look at its first rows."""
        self.table, self.file, self.split, self.seen = table, table.name, split, 0
        self.repeats.begin(table.name, split)
        if self.quick:
            for note in table.notes():
                self.fault(note)
            self.rows(list(islice(table.rows(), _QUICK)))
        else:
            table.scan(self)
        if self.seen == 0:
            self.report.add("empty-file", "the file holds no row", Place(table.name))

    def fault(self, fault: Fault, index: int | None = None) -> None:
        place = Place(self.file, fault.line, fault.offset, index, fault.field)
        self.report.add(fault.code, fault.message, place, fault.fix)

    def rows(self, rows: Sequence[Row], digests: Sequence[int] | None = None) -> None:
        lengths: defaultdict[str, list[int]] = defaultdict(list)
        items: defaultdict[str, list[int]] = defaultdict(list)
        hashes, lines, labels = [], [], []
        for number, row in enumerate(rows):
            index = self.seen + number if row.line is None else None
            for fault in row.faults:
                self.fault(fault, index)
            values = row.values
            if values is None:
                continue
            spot = (self.file, row.line, index)
            for name, value in values.items():
                if type(value) is str:
                    lengths[name].append(len(value))
                elif type(value) is list:
                    items[name].append(len(value))
                    self.odd.take_list(name, value, spot)
            whole = b"" if digests is not None else row_bytes(values)
            hashes.append(hash(whole) if digests is None else digests[number])
            if not row.faults or not is_guess(row):
                self.schema.add(values, spot, text=self.table.kind == "csv")
                if digests is not None or (not whole.isascii() and _LOST in whole):
                    self.odd.look_for_lost(values, spot)
            lines.append(~(self.seen + number) if row.line is None else row.line)
            if self.label_path is not None:
                labels.append((field(values, self.label_path), spot))
            if self.rules.chat is not None:
                self._chat(row, index)
        for name, found in lengths.items():
            self.lengths.add(name, found)
        for name, found in items.items():
            self.items.add(name, found)
        self.repeats.add(hashes, lines)
        self.tally.add(self.split, labels)
        self._count(len(rows), len(hashes))

    def _chat(self, row: Row, index: int | None) -> None:
        sample = self.rules.apply(row)
        for fault in sample.faults[len(row.faults) :]:
            self.fault(fault, index)
        assert sample.values is not None
        for code, message in chat.remarks(sample.values["messages"]):
            self.fault(Fault(code, message, row.line, field=self.rules.chat), index)

    def columns(self, batch: Columns) -> None:
        self.schema.add_columns(self.file, batch)
        self.repeats.add(batch.digests, batch.lines)
        texts = (column for column in batch.values if isinstance(column, TextColumn))
        lost = any(column.near(_LOST) for column in islice(texts, 1))  # all columns lie in the same bytes
        for name, column in zip(batch.names, batch.values):
            if isinstance(column, TextColumn):
                self.lengths.add(name, column.lengths)
            for number, value in enumerate(column) if lost else ():
                if LOST in str(value):
                    self.odd.lost(name, 1, (self.file, batch.lines[number], None))
            if name == self.label_path:
                labels = ((value, (self.file, line, None)) for value, line in zip(column, batch.lines))
                self.tally.add(self.split, labels)
        self._count(len(batch.lines), len(batch.lines))

    def _count(self, seen: int, good: int) -> None:
        self.seen += seen
        self.all[self.split] += seen
        self.counts[self.split] += good
        unit, done, total = self.table.progress(self.seen)
        self.report.progress.advance(f"{unit} of {self.file}", done, total)

    def finish(self) -> None:
        """Say what the rows have in common."""
        understood = self.report.understood
        understood["rows"] = dict(self.all)
        if self.all != self.counts:
            understood["readable"] = dict(self.counts)
        if not self.quick:
            understood["splits"] = dict(self.all)
        else:
            understood["looked_at"] = f"the first {_QUICK:,} rows of each file"
        columns = self.schema.columns()
        understood["columns"] = {name: self.schema.text(name) for name in islice(columns, _SHOWN)}
        measured = [(name, found.text(name)) for found in (self.lengths, self.items) for name in found.columns()]
        understood["lengths"] = dict(measured[:_SHOWN])
        self.odd.tell(self.report, self.schema)
        if self.schema.overflow:
            self.report.add("many-columns", f"more than {COLUMNS:,} columns; the rest are not told apart")
        for name in self.schema.mixed():
            self.report.add(
                "mixed-types", f"{name}: {self.schema.text(name)}", place_of(self.schema.rarest(name), name)
            )
        if self.label_path is not None:
            self.tally.finish(whole=not self.quick)
        for first, again in self.repeats.pairs():
            split, other = self.repeats.split(again), self.repeats.split(first)
            if split == other:
                code, message = "duplicate-row", f"the same row as {self.repeats.place(first)}"
            else:
                code = "split-leak"
                message = f"a row of {split} that stands in {other} too, at {self.repeats.place(first)}"
            self.report.add(code, message, self.repeats.place(again))
