# SPDX-License-Identifier: Apache-2.0
"""The rows of a dataset as samples: in order or at random, every fault met by the policy, here and nowhere else."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np

from fewbit.data.findings import Policy
from fewbit.data.sample import Place, Sample
from fewbit.data.source import Source
from fewbit.data.tables.coercion import targets
from fewbit.data.tables.collection import Collection
from fewbit.data.tables.rules import Rules
from fewbit.data.tables.schema_survey import schema_of
from fewbit.data.tables.shards import Shard
from fewbit.data.tables.table import Fault, Row, Table

_NOTES = 10_000
"""How many dropped or mended rows are written down one by one."""


class RowSource(Source):
    """Samples from tables, one after the other.

    Args:
        collection: the dataset.
        shards: the files of the split that was asked for.
        policy: what to do about faults.
    """

    def __init__(self, collection: Collection, shards: Sequence[Shard], policy: Policy, codes: Sequence[str]):
        super().__init__()
        self._tables = [collection.table(shard) for shard in shards]
        self._collection = collection
        self._policy = policy
        self._drops = any(policy[code] == "drop" for code in codes)
        self._noted: set[tuple[str, Place]] = set()
        self._greeted: set[str] = set()
        if collection.label is not None:
            self.targets = frozenset({collection.label})

    @cached_property
    def _rules(self) -> Rules:
        rules = self._collection.rules()
        if self._policy["mixed-types"] != "keep":
            schema = schema_of(self._tables)
            for name in schema.mixed():
                message = f"{name}: {schema.text(name)}"
                self._policy.meet("mixed-types", message, Place(self._tables[0].name, field=name))
                self.record.note("mixed-types", f"cast to one type: {message}")
            rules.casts = targets(schema)
        return rules

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(table.count() for table in self._tables)]

    @cached_property
    def _dropped(self) -> np.ndarray:
        """For each row left out, its number less the rows left out before it; empty when none can be."""
        if not self._drops:
            return np.zeros(0, dtype=np.int64)
        rows = (
            self._sample(table, row, number) for table in self._tables for number, row in enumerate(_met(self, table))
        )
        dropped = np.array([number for number, sample in enumerate(rows) if sample is None], dtype=np.int64)
        return dropped - np.arange(len(dropped))

    def __len__(self) -> int:
        return self._starts[-1] - len(self._dropped)

    def __iter__(self) -> Iterator[Sample]:
        for table in self._tables:
            for number, row in enumerate(_met(self, table)):
                sample = self._sample(table, row, number)
                if sample is not None:
                    yield sample

    def get(self, index: int) -> Sample:
        """One sample: one read at a known offset."""
        table, number = self._find(index)
        self._greet(table)
        sample = self._sample(table, table.row(number), number)
        assert sample is not None  # rows to be dropped were found when the length was asked for
        return sample

    def place(self, index: int) -> Place:
        """File and line of a sample."""
        table, number = self._find(index)
        return _place(table, table.line(number), number)

    def _find(self, index: int) -> tuple[Table, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        if len(self._dropped):
            index += int(np.searchsorted(self._dropped, index, side="right"))
        at = bisect_right(self._starts, index) - 1
        return self._tables[at], index - self._starts[at]

    def _sample(self, table: Table, row: Row, number: int) -> Sample | None:
        row = self._rules.apply(row)
        place = _place(table, row.line, number)
        for fault in row.faults:
            if self._meet(table, fault, number, whole=row.values is not None) == "drop":
                return None
        return Sample(row.values, place=place)

    def _greet(self, table: Table) -> None:
        """Meet what is wrong with a file as a whole, once."""
        if table.name not in self._greeted:
            for note in table.notes():
                self._meet(table, note, 0, whole=True)
            self._greeted.add(table.name)

    def _meet(self, table: Table, fault: Fault, number: int, *, whole: bool) -> str:
        place = _place(table, fault.line, number)
        place = Place(place.path, place.line, fault.offset, place.index, fault.field)
        action = self._policy.meet(fault.code, fault.message, place, fault.fix)
        if not whole and action != "drop":
            raise self._policy.finding(fault.code, fault.message, place, fault.fix).to_error()
        key = (fault.code, place)
        if key not in self._noted and len(self._noted) < _NOTES:
            self._noted.add(key)
            self.record.note(fault.code, fault.message, where=place, action=action)
        return action


def _met(source: RowSource, table: Table) -> Iterator[Row]:
    source._greet(table)
    return table.rows()


def _place(table: Table, line: int | None, number: int) -> Place:
    return Place(table.name, line=line, index=number if line is None else None)
