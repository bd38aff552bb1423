# SPDX-License-Identifier: Apache-2.0
"""Checking array files: every header, how each sample fits the model, how they differ, and their values."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from fewbit.data.arrays.consistency import Layout, Layouts
from fewbit.data.arrays.faults import ArrayFault
from fewbit.data.arrays.fitted import Fit
from fewbit.data.arrays.npz_archive import Array
from fewbit.data.arrays.sample_files import Listing, UnitScan
from fewbit.data.arrays.sampling import Sampling
from fewbit.data.arrays.values import value_faults
from fewbit.data.findings import DataReport
from fewbit.data.sample import Place
from fewbit.errors import DataError


class NpzCheck:
    """One check of a dataset of array files.

    Args:
        listing: the files.
        sampling: how arrays become samples.
        report: where findings go.
        quick: headers only.
        vocab_size: how many token ids the model knows.
    """

    def __init__(
        self, listing: Listing, sampling: Sampling, report: DataReport, *, quick: bool, vocab_size: int | None
    ):
        self._listing, self._sampling, self._report = listing, sampling, report
        self._quick, self._vocab_size = quick, vocab_size
        self._layouts = Layouts()
        self._known: dict[tuple[bool, Layout], tuple[int, Fit, int]] = {}
        self._seen: dict[bytes, str] = {}
        self._samples = 0
        self._damaged = 0

    def run(self) -> None:
        """Look at every unit, then at what only shows when they are seen together."""
        units = self._listing.units
        for unit in self._report.progress.track(units, total=len(units), label="files"):
            self._check_unit(unit.scan())
        self._layouts.report(self._report, with_model=self._sampling.signature is not None)
        if not self._samples and not self._damaged:
            self._report.add("no-samples", "the files are whole, and hold no sample", Place(units[0].name))
        self._understand()

    def _check_unit(self, found: UnitScan) -> None:
        name = found.unit.name
        for fault in found.faults:
            self._add(fault, name)
        if found.faults and found.fatal is not None:
            self._damaged += 1
            return
        layout = (found.nameless, tuple(found.infos.items()))
        known = self._known.get(layout)
        if known is None:
            try:
                known = self._known[layout] = self._judge(found)
            except ArrayFault as fault:
                self._add(fault, name)
                self._damaged += 1
                return
        rows, told, number = known
        self._layouts.count(name, number)
        for problem in told.problems:
            self._report.add(problem.code, problem.message, self._place(name, problem.input), problem.fix)
        if not self._quick:
            self._check_values(found, rows, told)
        self._samples += rows

    def _judge(self, found: UnitScan) -> tuple[int, Fit, int]:
        """What all files of one layout share: how many samples, how they fit, and the layout's number."""
        rows = self._sampling.rows(found)
        number = self._layouts.number(found.infos, stacked=self._sampling.stacked)
        return rows, self._sampling.fit(found), number

    def _check_values(self, found: UnitScan, rows: int, told: Fit) -> None:
        name = found.unit.name
        fits = not told.errors
        try:
            for row, arrays in enumerate(found.each(rows, stacked=self._sampling.stacked)):
                sample: Mapping[str, Array] = arrays
                if row and not fits and not self._sampling.stacked:
                    break  # what cannot be split is looked at as a whole, once
                try:
                    if fits:
                        sample = self._sampling.shape(arrays, told, row)
                except DataError as fault:
                    self._report.add(str(fault.code), fault.what, self._place(name, None, row), fault.try_)
                self._look_at(sample, self._place(name, None, row))
        except ArrayFault as fault:
            self._add(fault, name)

    def _look_at(self, sample: Mapping[str, Array], place: Place) -> None:
        for odd in value_faults(sample, vocab_size=self._vocab_size):
            self._report.add(odd.code, odd.message, Place(place.path, index=place.index, field=odd.name))
        digest = _digest(sample)
        first = self._seen.setdefault(digest, str(place))
        if first != str(place):
            self._report.add("duplicate-sample", f"has the same values as {first}", place)

    def _place(self, name: str, field: str | None = None, row: int = 0) -> Place:
        # A reader stops at a damaged file, and counts it as one sample.
        return Place(name, index=self._samples + self._damaged + row, field=field)

    def _add(self, fault: ArrayFault, name: str) -> None:
        self._report.add(str(fault.code), fault.what, fault.at(name).place)

    def _understand(self) -> None:
        understood: dict[str, Any] = {
            "samples": self._samples,
            "files": sum(len(unit.parts) for unit in self._listing.units),
            "arrays": self._layouts.summary(),
            "stacked": self._sampling.stacked,
        }
        if self._listing.splits:
            understood["splits"] = dict(Counter(unit.split or "(none)" for unit in self._listing.units))
        self._report.understood.update(understood)


def _digest(sample: Mapping[str, Array]) -> bytes:
    state = hashlib.blake2b(digest_size=16)
    for name, array in sorted(sample.items()):
        state.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode("utf-8", "surrogatepass"))
        state.update(memoryview(array.tobytes()) if array.dtype.kind in "US" else np.ascontiguousarray(array).data)
    return state.digest()
