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
from fewbit.data.tables.schema import place_of, schema_of
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
        self._greeted: set[Table] = set()
        if collection.label is not None:
            self.targets = frozenset({collection.label})

    @cached_property
    def _rules(self) -> Rules:
        rules = self._collection.rules()
        if self._policy["mixed-types"] != "keep":
            schema = schema_of(self._tables)
            rules.casts = targets(schema)
            for name in schema.mixed():
                message = f"{name}: {schema.text(name)}"
                self._policy.meet("mixed-types", message, place_of(schema.rarest(name), name))
                done = f"cast to {rules.casts[name].__name__}" if name in rules.casts else "left as they are"
                self.record.note("mixed-types", f"{done}: {message}")
        return rules

    @cached_property
    def _numbering(self) -> tuple[list[int], np.ndarray]:
        """The number of each table's first row, and for each row left out its number less those left out before it."""
        if not self._drops:
            return [0, *accumulate(table.count() for table in self._tables)], np.zeros(0, dtype=np.int64)
        starts, dropped = [0], []
        for table in self._tables:
            number = starts[-1]
            for number, sample in enumerate(self._samples(table), starts[-1] + 1):
                if sample is None:
                    dropped.append(number - 1)
            starts.append(number)
        return starts, np.array(dropped, dtype=np.int64) - np.arange(len(dropped))

    def __len__(self) -> int:
        starts, dropped = self._numbering
        return starts[-1] - len(dropped)

    def __iter__(self) -> Iterator[Sample]:
        for table in self._tables:
            yield from (sample for sample in self._samples(table) if sample is not None)

    def _samples(self, table: Table) -> Iterator[Sample | None]:
        """A table's samples in order, `None` for each that is left out."""
        self._greet(table)
        for number, row in enumerate(table.rows()):
            yield self._sample(table, row, number)

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
        starts, dropped = self._numbering
        if len(dropped):
            index += int(np.searchsorted(dropped, index, side="right"))
        at = bisect_right(starts, index) - 1
        return self._tables[at], index - starts[at]

    def _sample(self, table: Table, row: Row, number: int) -> Sample | None:
        row = self._rules.apply(row)
        place = _place(table, row.line, number)
        for fault in row.faults:
            if self._meet(table, fault, number, whole=row.values is not None) == "drop":
                return None
        return Sample(row.values, place=place)

    def _greet(self, table: Table) -> None:
        """Meet what is wrong with a file as a whole, once."""
        if table not in self._greeted:
            for note in table.notes():
                self._meet(table, note, 0, whole=True)
            self._greeted.add(table)

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


def _place(table: Table, line: int | None, number: int) -> Place:
    return Place(table.name, line=line, index=number if line is None else None)
