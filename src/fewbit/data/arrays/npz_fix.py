# SPDX-License-Identifier: Apache-2.0
"""A repaired copy of a dataset of array files: input names, batch axis, layout and dtype as the model takes them.

What only a person can decide stays as it is: unscaled pixels are not divided, integers are not made floats.
Files that are fine are copied byte for byte; files nothing can mend are left out, each with its reason. The copy is a
folder, in which a file is one sample: a lone stack is split.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fewbit.data.arrays.consistency import Layouts
from fewbit.data.arrays.fitted import Fit, Step
from fewbit.data.arrays.npz_archive import Array
from fewbit.data.arrays.npz_writer import write_npy, write_npz
from fewbit.data.arrays.sample_files import NPY_KEY, Listing, Unit
from fewbit.data.arrays.sampling import Sampling
from fewbit.data.arrays.values import VALUE_CODES, value_faults
from fewbit.data.findings import Severity
from fewbit.errors import DataError, UsageError

_MENDED = ("input-name", "input-layout")
_SHOWN = 3
_LEFT_ALONE = ("dtype-unscaled", "dtype-integers")
_FATAL_VALUES = frozenset(code for code, known in VALUE_CODES.items() if known.severity is Severity.ERROR)


class NpzFix:
    """One repair.

    Args:
        listing: the files.
        sampling: how arrays become samples.
        out: the empty folder to fill.
        vocab_size: how many token ids the model knows.
        damaged: folders and `.tar` files that cannot be read to their end, and why.
    """

    def __init__(
        self,
        listing: Listing,
        sampling: Sampling,
        out: Path,
        vocab_size: int | None = None,
        damaged: Mapping[str, str] | None = None,
    ):
        self._listing, self._sampling, self._out, self._vocab_size = listing, sampling, out, vocab_size
        self.changes = [f"{name}: what cannot be read is left out: {why}" for name, why in (damaged or {}).items()]
        self._odd: dict[str, tuple[str, str]] = {}
        self._names = {unit.name for unit in listing.units}
        self._written = 0

    def run(self) -> list[str]:
        """Write the copy and return what was changed, a line each.

        Raises:
            DataError: no sample would be left.
        """
        if self._sampling.signature is None:
            self._odd = self._find_odd()
        whole = not self.changes and not (self._listing.lone and self._sampling.stacked)
        plans = [self._look(unit) for unit in self._listing.units]
        whole = whole and not any(lines is None or lines for lines in plans)
        for unit, lines in zip(self._listing.units, plans):
            if lines is None:
                continue
            packed = self._sampling.stacked or any(part.size is not None for part in unit.parts)
            if whole or not (lines or packed):
                self._copy_unit(unit)
            else:
                self._write(unit, lines)
        if not self._written:
            reasons = "; ".join(self.changes[:_SHOWN]) or "there are none"
            raise DataError(
                f"no sample is left to copy: {reasons}{'; …' if len(self.changes) > _SHOWN else ''}",
                code="no-samples",
                expected="at least one sample that is whole or can be mended",
                try_="check without `--fix`: it names every fault and what to do about it",
            )
        self._carry_along(whole)
        return self.changes

    def _carry_along(self, whole: bool) -> None:
        """What is no sample goes with a copy that is the same; beside other samples it would say what is not so."""
        for entry in (*self._listing.others, *self._listing.outputs):
            if not whole:
                self.changes.append(f"{entry.name}: left out: it is no sample")
            elif ".tar/" not in entry.name:
                self._copy(entry.path, entry.name)

    def _find_odd(self) -> dict[str, tuple[str, str]]:
        layouts = Layouts()
        for unit in self._listing.units:
            found = unit.scan()
            if found.fatal is None:
                layouts.count(unit.name, layouts.number(found.infos, stacked=self._sampling.stacked))
        return layouts.odd_ones()

    def _look(self, unit: Unit) -> list[str] | None:
        """What will change about a unit; nothing when it is fine, `None` when it has to be left out."""
        found = unit.scan()
        lines = [fault.what for fault in found.faults if fault.code == "member-not-array"]
        try:
            if found.fatal is not None:
                raise found.fatal
            if unit.name in self._odd:
                raise DataError(self._odd[unit.name][1], code=self._odd[unit.name][0])
            told = self._told(unit)
            rows = self._sampling.rows(found)
            for row, arrays in enumerate(found.each(rows, stacked=self._sampling.stacked)):
                odd = self._spoilt(self._sampling.shape(arrays, told, row))
                if odd:
                    if rows == 1:
                        raise DataError(odd)
                    lines.append(f"row {row} left out: {odd}")
        except DataError as fault:
            self.changes.append(f"{unit.name}: left out: {fault.what}")
            return None
        return lines + _steps_in_words(told, found.nameless)

    def _told(self, unit: Unit) -> Fit:
        told = self._sampling.fit(unit.scan())
        for problem in told.errors:
            if problem.code == "rename-unknown":
                raise UsageError(problem.message, where=unit.name, try_=problem.fix)
            if problem.code not in _MENDED:
                raise DataError(problem.message, code=problem.code)
        return replace(told, steps=tuple(_without_guesses(step) for step in told.steps))

    def _spoilt(self, sample: dict[str, Array]) -> str | None:
        faults = value_faults(sample, vocab_size=self._vocab_size)
        return next((fault.message for fault in faults if fault.code in _FATAL_VALUES), None)

    def _copy_unit(self, unit: Unit) -> None:
        for part in unit.parts:
            name = unit.name if len(unit.parts) == 1 else Path(part.path).name
            if part.size is not None:  # the `.tar` as a whole, once
                name = name[: name.index(".tar/") + 4]
            self._copy(part.path, name)
            self._written += 1

    def _copy(self, path: str, name: str) -> None:
        target = self._out / name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)

    def _write(self, unit: Unit, lines: list[str]) -> None:
        found, told = unit.scan(), self._told(unit)
        rows = self._sampling.rows(found)
        bare = found.nameless and {step.name for step in told.steps} == {NPY_KEY}
        names = self._free_names("samples.npz" if len(unit.parts) > 1 else unit.name, rows, ".npy" if bare else ".npz")
        self.changes.extend(f"{unit.name}: {line}" for line in lines)
        if rows > 1 or self._sampling.stacked:
            self.changes.append(f"{unit.name}: split into {rows} samples")
        for row, arrays in enumerate(found.each(rows, stacked=self._sampling.stacked)):
            sample = self._sampling.shape(arrays, told, row)
            if rows > 1 and self._spoilt(sample):
                continue
            target = self._out / names[row]
            target.parent.mkdir(parents=True, exist_ok=True)
            if bare:
                write_npy(target, sample[NPY_KEY])
            else:
                write_npz(target, sample)
            self._written += 1

    def _free_names(self, name: str, rows: int, suffix: str) -> list[str]:
        """Names for a unit's samples, changed where they are those of others: `a.npy` beside an `a.npz`."""
        stem = name.rpartition(".")[0]
        while True:
            width = len(str(rows))
            names = [f"{stem}_{row:0{width}}{suffix}" for row in range(rows)] if rows > 1 else [f"{stem}{suffix}"]
            if not self._names & set(names) - {name}:
                self._names.update(names)
                return names
            stem += "_"


def _without_guesses(step: Step) -> Step:
    return replace(step, cast=None) if step.cast is not None and step.cast.code in _LEFT_ALONE else step


def _steps_in_words(told: Fit, nameless: bool) -> list[str]:
    lines = []
    for step in told.steps:
        if step.key != step.name and not (nameless and step.key == NPY_KEY):
            lines.append(f"array {step.key!r} renamed to {step.name!r}")
        if step.rows == 1:
            lines.append(f"{step.name!r}: leading axis of size 1 removed")
        if step.rows > 1:
            lines.append(f"{step.name!r}: batch of {step.rows} split")
        if step.transpose:
            lines.append(f"{step.name!r}: axes moved to the order {step.transpose}")
        if step.cast is not None:
            lines.append(f"{step.name!r}: stored as {step.cast.wanted}")
    extra = (problem for problem in told.problems if problem.code == "input-extra")
    return lines + [f"array {problem.input!r} left out: {problem.message}" for problem in extra]
