# SPDX-License-Identifier: Apache-2.0
"""Array files as a source of samples: random access, one file open at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

from fewbit.data.arrays.faults import ARRAY_CODES
from fewbit.data.arrays.fit import Fit
from fewbit.data.arrays.npz_archive import Array
from fewbit.data.arrays.sample_files import Unit, UnitScan
from fewbit.data.arrays.sampling import Sampling
from fewbit.data.arrays.values import VALUE_CODES, value_faults
from fewbit.data.findings import Policy
from fewbit.data.sample import Place, Sample
from fewbit.data.source import Source
from fewbit.errors import DataError


class _Dropped(DataError):
    """A sample the policy leaves out."""


class NpzSource(Source):
    """Samples from array files.

    Args:
        units: what is read at once, in order.
        sampling: how arrays become samples.
        policy: what to do about each fault.
        vocab_size: how many token ids the model knows.

    Headers are looked at when the first sample is asked for, and only then if the number of samples depends on them.
    """

    def __init__(self, units: list[Unit], sampling: Sampling, policy: Policy, vocab_size: int | None = None):
        super().__init__()
        self._units, self._sampling, self._policy, self._vocab_size = units, sampling, policy, vocab_size
        self._starts: list[int] | None = None
        self._kept: tuple[int, dict[str, Array]] | None = None
        self._noted: set[tuple[str, str]] = set()
        self._looks_at_values = any(policy[code] != "keep" for code in VALUE_CODES)
        self.targets = sampling.targets

    def __len__(self) -> int:
        return self._index()[-1]

    def __iter__(self) -> Iterator[Sample]:
        for index in range(len(self)):
            try:
                sample = self.get(index)
            except _Dropped:
                continue
            yield sample

    def place(self, index: int) -> Place:
        """The file of a sample."""
        return Place(self._units[self._unit_of(index)[0]].name, index=index)

    def get(self, index: int) -> Sample:
        """The sample at an index.

        Raises:
            DataError: the file is damaged or does not fit the model, and the policy for that is not to repair it.
        """
        number, row = self._unit_of(index)
        unit = self._units[number]
        found = unit.scan()
        place = Place(unit.name, index=index)
        self._meet_faults(found, place)
        told = self._told(found, place)
        try:
            arrays = self._arrays(number, found, row, told)
            sample = self._sampling.shape(arrays, told, row)
        except DataError as fault:
            raise self._met(str(fault.code), fault.what, _at(place, fault), fault.try_) from fault
        if self._looks_at_values:
            for odd in value_faults(sample, vocab_size=self._vocab_size):
                where = Place(unit.name, index=index, field=odd.name)
                if self._policy.meet(odd.code, odd.message, where) == "drop":
                    raise self._drop(odd.code, odd.message, where)
        return Sample(sample, place=place)

    def _index(self) -> list[int]:
        """Where each unit's samples begin, and how many there are in all."""
        if self._starts is None:
            if self._counts_are_known():
                counts = [1] * len(self._units)
            else:
                counts = [self._count(unit) for unit in self._units]
                self._units = [unit for unit, count in zip(self._units, counts) if count]
                counts = [count for count in counts if count]
            self._starts = [0, *accumulate(counts)]
        return self._starts

    def _counts_are_known(self) -> bool:
        drops = any(self._policy[code] == "drop" for code in ARRAY_CODES if code != "member-not-array")
        return self._sampling.signature is None and not self._sampling.stacked and not drops

    def _count(self, unit: Unit) -> int:
        """The samples of a unit; 0 when it is dropped, 1 when it will raise where it is read."""
        found = unit.scan()
        place = Place(unit.name)
        try:
            self._meet_faults(found, place)
            told = self._told(found, place)
            return self._sampling.rows(found.infos) if told is None or self._sampling.stacked else told.rows
        except _Dropped:
            return 0
        except DataError:
            return 1

    def _unit_of(self, index: int) -> tuple[int, int]:
        starts = self._index()
        if not 0 <= index < starts[-1]:
            raise IndexError(f"sample {index} of {starts[-1]}")
        number = bisect_right(starts, index) - 1
        return number, index - starts[number]

    def _arrays(self, number: int, found: UnitScan, row: int, told: Fit | None) -> dict[str, Array]:
        rows = self._sampling.rows(found.infos) if told is None or self._sampling.stacked else told.rows
        if self._sampling.stacked and found.seekable:
            return found.read(row)
        if rows == 1 and not self._sampling.stacked:
            return found.read()
        if self._kept is None or self._kept[0] != number:  # neighbours come from the same file: read it once
            self._kept = (number, found.read())
        whole = self._kept[1]
        if self._sampling.stacked:
            return {name: array[row].copy() for name, array in whole.items()}
        return {name: array.copy() for name, array in whole.items()}

    def _meet_faults(self, found: UnitScan, place: Place) -> None:
        for fault in found.faults:
            if fault.code == "member-not-array" and self._policy["member-not-array"] == "drop":
                self._note(fault.code, fault.what, place)
            else:
                raise self._met(str(fault.code), fault.what, _at(place, fault), None)

    def _told(self, found: UnitScan, place: Place) -> Fit | None:
        told = self._sampling.fit(found.infos)
        if told is None:
            return None
        for problem in told.problems:
            where = Place(place.path, index=place.index, field=problem.input)
            done = self._policy.meet(problem.code, problem.message, where, problem.fix)
            if done == "drop" and problem.code != "input-extra":
                raise self._drop(problem.code, problem.message, where)
            self._note(problem.code, problem.message, where)
        return told

    def _met(self, code: str, message: str, place: Place, fix: str | None) -> DataError:
        """The exception for a fault that no repair can mend: an error, or a drop where the policy says so."""
        if self._policy.meet(code, message, place, fix) == "drop":
            return self._drop(code, message, place)
        return self._policy.finding(code, message, place, fix).to_error()

    def _drop(self, code: str, message: str, place: Place) -> _Dropped:
        self.record.note(code, f"dropped: {message}", where=place)
        return _Dropped(message, code=code, where=place)

    def _note(self, code: str, message: str, place: Place) -> None:
        """Write down what was done, once for all files alike."""
        if (code, message) not in self._noted:
            self._noted.add((code, message))
            self.record.note(code, f"{message} (first met here)", where=place)


def _at(place: Place, fault: DataError) -> Place:
    inner = getattr(fault, "place", Place())
    return Place(place.path, offset=inner.offset, index=place.index, field=inner.field)
