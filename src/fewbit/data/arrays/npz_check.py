# SPDX-License-Identifier: Apache-2.0
"""Checking array files: every header, how each sample fits the model, how they differ, and their values."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from fewbit.data.arrays.consistency import Layout, Layouts
from fewbit.data.arrays.description import ArrayInfo
from fewbit.data.arrays.faults import ArrayFault
from fewbit.data.arrays.fit import Fit
from fewbit.data.arrays.npz_archive import Array, check_crc, opened
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
        self._known: dict[Layout, tuple[int, Fit | None, int]] = {}
        self._seen: dict[bytes, str] = {}
        self._samples = 0

    def run(self) -> None:
        """Look at every unit, then at what only shows when they are seen together."""
        units = self._listing.units
        for unit in self._report.progress.track(units, total=len(units), label="files"):
            self._check_unit(unit.scan())
        self._layouts.report(self._report, with_model=self._sampling.signature is not None)
        self._understand()

    def _check_unit(self, found: UnitScan) -> None:
        name = found.unit.name
        if found.faults:
            for fault in found.faults:
                self._add(fault, name)
            if found.fatal is not None:
                return
        layout = tuple(found.infos.items())
        known = self._known.get(layout)
        if known is None:
            try:
                known = self._known[layout] = self._judge(dict(layout))
            except ArrayFault as fault:
                self._add(fault, name)
                return
        rows, told, number = known
        self._layouts.count(name, number)
        if told is not None:
            for problem in told.problems:
                self._report.add(problem.code, problem.message, self._place(name, problem.input), problem.fix)
        if not self._quick:
            self._check_values(found, rows, told)
        self._samples += rows

    def _judge(self, infos: Mapping[str, ArrayInfo]) -> tuple[int, Fit | None, int]:
        """What all files of one layout share: how many samples, how they fit, and the layout's number."""
        rows = self._sampling.rows(infos)
        return rows, self._sampling.fit(infos), self._layouts.number(infos, stacked=self._sampling.stacked)

    def _check_values(self, found: UnitScan, rows: int, told: Fit | None) -> None:
        name = found.unit.name
        try:
            for row, arrays in enumerate(unit_rows(found, self._sampling, rows)):
                sample: Mapping[str, Array] = arrays
                try:
                    if told is None or told.ok:
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
        return Place(name, index=self._samples + row, field=field)

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


def unit_rows(found: UnitScan, sampling: Sampling, rows: int) -> Iterator[Mapping[str, Array]]:
    """The arrays of each sample of a unit, as `Sampling.shape` takes them; every checksum is verified.

    Raises:
        ArrayFault: the values are damaged or too large.
    """
    if sampling.stacked and found.seekable:
        _check_crcs(found)
        yield from (found.read(row) for row in range(rows))
        return
    whole = found.read()
    if sampling.stacked:
        yield from ({name: array[row] for name, array in whole.items()} for row in range(rows))
    else:
        yield from (whole for _ in range(rows))


def _check_crcs(found: UnitScan) -> None:
    for part, scanned in zip(found.unit.parts, found.scans):
        with opened(part.path, part.start, part.size) as window:
            for name, member in scanned.members.items():
                try:
                    check_crc(window, member)
                except ArrayFault as fault:
                    raise ArrayFault(str(fault.code), fault.what, field=name) from fault


def _digest(sample: Mapping[str, Array]) -> bytes:
    state = hashlib.blake2b(digest_size=16)
    for name, array in sorted(sample.items()):
        state.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode("utf-8", "surrogatepass"))
        state.update(memoryview(array.tobytes()) if array.dtype.kind in "US" else np.ascontiguousarray(array).data)
    return state.digest()


def report_others(names: Iterable[str], report: DataReport) -> None:
    """Say which files were passed over; the manifest that `capture` writes is none of them."""
    for name in names:
        if name.rpartition("/")[2] != "manifest.json":
            report.add("file-ignored", "is not an array file", Place(name))
