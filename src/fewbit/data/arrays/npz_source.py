# SPDX-License-Identifier: Apache-2.0
"""Array files as a source of samples: random access, one file open at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbit.data.arrays.faults import ARRAY_CODES, ArrayFault
from fewbit.data.arrays.fitted import Fit
from fewbit.data.arrays.npz_archive import Array
from fewbit.data.arrays.sample_files import Unit, UnitScan
from fewbit.data.arrays.sampling import Sampling
from fewbit.data.arrays.values import VALUE_CODES, value_faults
from fewbit.data.findings import Policy
from fewbit.data.sample import Place, Sample
from fewbit.data.source import Source
from fewbit.errors import DataError

_SEEN_IN_VALUES = {*VALUE_CODES, "array-corrupt", "array-size", "array-bomb", "dtype-refused"}


class _Dropped(DataError):
    """A sample the policy leaves out."""


class NpzSource(Source):
    """Samples from array files.

    Args:
        units: what is read at once, in order.
        sampling: how arrays become samples.
        policy: what to do about each fault.
        vocab_size: how many token ids the model knows.

    Headers are looked at when the first sample is asked for, and only then if the number of samples depends on them;
    so are values, if the policy drops samples for theirs.
    """

    def __init__(self, units: list[Unit], sampling: Sampling, policy: Policy, vocab_size: int | None = None):
        super().__init__()
        self._units, self._sampling, self._policy, self._vocab_size = units, sampling, policy, vocab_size
        self._where: NDArray[np.int64] | None = None
        self._kept: tuple[int, dict[str, Array]] | None = None
        self._noted: set[tuple[str, str | None]] = set()
        self._looks_at_values = any(policy[code] != "keep" for code in VALUE_CODES)
        self.targets = sampling.targets

    def __len__(self) -> int:
        return len(self._index())

    def place(self, index: int) -> Place:
        """The file of a sample."""
        return Place(self._units[self._index()[index][0]].name, index=index)

    def get(self, index: int) -> Sample:
        """The sample at an index.

        Raises:
            DataError: the file is damaged or does not fit the model, and the policy for that is not to repair it.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        number, row = self._index()[index].tolist()
        return self._read(number, row, index)

    def _read(self, number: int, row: int, index: int | None) -> Sample:
        unit = self._units[number]
        found = unit.scan()
        place = Place(unit.name, index=index)
        told = self._told(found, place)
        self._rows(found, place)
        try:
            sample = self._sampling.shape(self._arrays(number, found, row, told), told, row)
        except DataError as fault:
            raise self._met(fault, place) from fault
        if self._looks_at_values:
            for odd in value_faults(sample, vocab_size=self._vocab_size):
                where = Place(unit.name, index=index, field=odd.name)
                if self._policy.meet(odd.code, odd.message, where) == "drop":
                    raise self._drop(odd.code, odd.message, where)
        return Sample(sample, place=place)

    def _index(self) -> NDArray[np.int64]:
        """The unit and the row of every sample, shape `(samples, 2)`."""
        if self._where is None:
            drops = {code for code in {*ARRAY_CODES, *_SEEN_IN_VALUES} if self._policy[code] == "drop"}
            drops -= {"member-not-array"}  # of which only the member is dropped
            counts = [1] * len(self._units)
            if self._sampling.signature is not None or self._sampling.stacked or drops:
                counts = [self._count(unit) for unit in self._units]
            rows = [np.arange(count) for count in counts]
            self._where = np.stack([np.repeat(np.arange(len(counts)), counts), np.concatenate(rows)], axis=1)
            if drops & _SEEN_IN_VALUES:
                self._where = self._where[[self._stays(*at) for at in self._where.tolist()]]
        return self._where

    def _count(self, unit: Unit) -> int:
        """The samples of a unit, none when it is dropped; those that do not fit count, and raise when they are read."""
        found, place = unit.scan(), Place(unit.name)
        try:
            self._told(found, place)
        except _Dropped:
            return 0
        except DataError:
            if found.fatal is not None:
                return 1
        try:
            return self._rows(found, place)
        except DataError as fault:
            return 0 if isinstance(fault, _Dropped) else 1

    def _stays(self, number: int, row: int) -> bool:
        """Whether the policy keeps a sample, which takes reading it; one that raises does so where it is read."""
        try:
            self._read(number, row, None)
        except DataError as fault:
            return not isinstance(fault, _Dropped)
        return True

    def _arrays(self, number: int, found: UnitScan, row: int, told: Fit) -> dict[str, Array]:
        stacked = self._sampling.stacked
        if stacked and found.seekable:
            return found.read(row)
        if not stacked and told.rows == 1:
            return found.read()
        if self._kept is None or self._kept[0] != number:  # neighbours come from the same file: read it once
            self._kept = (number, found.read())
        return {name: (array[row] if stacked else array).copy() for name, array in self._kept[1].items()}

    def _told(self, found: UnitScan, place: Place) -> Fit:
        for fault in found.faults:
            if fault.code != "member-not-array" or self._policy["member-not-array"] != "drop":
                raise self._met(fault, place)
            self._note("member-not-array", fault.what, place)
        told = self._sampling.fit(found)
        for problem in told.problems:
            where = Place(place.path, index=place.index, field=problem.input)
            done = self._policy.meet(problem.code, problem.message, where, problem.fix)
            if done == "drop" and problem.code != "input-extra":
                raise self._drop(problem.code, problem.message, where)
            self._note(problem.code, problem.message, where)
        return told

    def _rows(self, found: UnitScan, place: Place) -> int:
        try:
            return self._sampling.rows(found)
        except ArrayFault as fault:
            raise self._met(fault, place) from fault

    def _met(self, fault: DataError, place: Place) -> DataError:
        """The exception for a fault that no repair can mend: an error, or a drop where the policy says so."""
        inner = getattr(fault, "place", Place())
        where = Place(place.path, offset=inner.offset, index=place.index, field=inner.field)
        code = str(fault.code)
        if self._policy[code] == "drop":
            return self._drop(code, fault.what, where)
        return self._policy.finding(code, fault.what, where, fault.try_).to_error()

    def _drop(self, code: str, message: str, place: Place) -> _Dropped:
        self.record.note(code, f"dropped: {message}", where=place)
        return _Dropped(message, code=code, where=place)

    def _note(self, code: str, message: str, place: Place) -> None:
        """Write down what was done, once for all files alike."""
        if (code, place.field) not in self._noted:
            self._noted.add((code, place.field))
            self.record.note(code, f"{message} (first met here)", where=place)
