# SPDX-License-Identifier: Apache-2.0
"""Which array files a folder, a file or a `.tar` holds, in natural order, and which of them belong together.

A *unit* is what is read at once: one `.npz`, one `.npy`, or several `.npy` that are the columns of one dataset.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from fewbit.data.arrays.description import ArrayInfo
from fewbit.data.arrays.faults import ArrayFault
from fewbit.data.arrays.npz_archive import Array, Member, Scan, opened, read_arrays, read_row, scan
from fewbit.data.arrays.tar_index import tar_entries
from fewbit.data.walk import Problem, ignored, natural, nfc, quietly, walk

ARRAYS = (".npz", ".npy")
NPY_KEY = "input"
"""The name of an array that has none: the only one in a `.npy`."""

_SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test",),
}


@dataclass(frozen=True, slots=True)
class Part:
    """One array file: the file or the stretch of a `.tar` it lies in, and its array's name when it is a `.npy`."""

    path: str
    start: int = 0
    size: int | None = None
    npy_key: str | None = None


@dataclass(frozen=True, slots=True)
class Unit:
    """What is read at once.

    Args:
        name: relative to the dataset, for places and for the copy that `fix` writes.
        parts: one file, or one a column.
        split: the split its folder names.
    """

    name: str
    parts: tuple[Part, ...]
    split: str | None = None

    def scan(self) -> UnitScan:
        """The headers of all parts."""
        if len(self.parts) == 1:
            part = self.parts[0]
            try:
                with opened(part.path, part.start, part.size) as window:
                    found = scan(window, npy_name=part.npy_key)
            except ArrayFault as fault:
                found = Scan(faults=[fault])
            return UnitScan(self, [found])
        return UnitScan(self, [Unit(self.name, (part,)).scan().scans[0] for part in self.parts])


@dataclass(slots=True)
class UnitScan:
    """The headers of a unit, and the way to its values."""

    unit: Unit
    scans: list[Scan] = field(default_factory=list)

    @property
    def infos(self) -> dict[str, ArrayInfo]:
        """The arrays' descriptions by name."""
        if len(self.scans) == 1:
            return self.scans[0].infos
        return {name: info for found in self.scans for name, info in found.infos.items()}

    @property
    def faults(self) -> list[ArrayFault]:
        """Everything wrong with the headers."""
        if len(self.scans) == 1:
            return self.scans[0].faults
        return [fault for found in self.scans for fault in found.faults]

    @property
    def fatal(self) -> ArrayFault | None:
        """The first fault that keeps the unit from being read."""
        return next((found.fatal for found in self.scans if found.fatal is not None), None)

    def read(self, row: int | None = None) -> dict[str, Array]:
        """All arrays whole, or one entry of the first axis of each.

        Raises:
            ArrayFault: the values cannot be had; the headers must have been fine.
        """
        arrays: dict[str, Array] = {}
        for part, found in zip(self.unit.parts, self.scans):
            with opened(part.path, part.start, part.size) as window:
                if row is None:
                    arrays |= read_arrays(window, found.members)
                else:
                    arrays |= {name: read_row(window, member, row) for name, member in found.members.items()}
        return arrays

    @property
    def seekable(self) -> bool:
        """Whether one row can be read without unpacking the rest."""
        return all(member.seekable for member in self.members)

    @property
    def members(self) -> list[Member]:
        """The members of all parts."""
        return [member for found in self.scans for member in found.members.values()]


@dataclass(slots=True)
class Listing:
    """The units of a dataset.

    Args:
        units: in natural order, split by split.
        single: the dataset is one file or one set of columns, which then holds many samples as a rule.
        others: files that are no arrays.
    """

    units: list[Unit]
    single: bool = False
    others: list[str] = field(default_factory=list)

    @property
    def splits(self) -> list[str]:
        """The splits there are, in order."""
        return list(dict.fromkeys(unit.split for unit in self.units if unit.split))


def list_units(source: Path, problem: Problem = quietly, *, columns: Collection[str] = ()) -> Listing:
    """The units of a dataset.

    Args:
        source: a folder, a `.npz`, a `.npy` or a `.tar`.
        problem: told about what had to be passed over.
        columns: the model's input names: `.npy` files called so are columns of one dataset.
    """
    if source.is_file():
        name, path = nfc(source.name), str(source)
        if source.suffix.lower() == ".tar":
            return _order(_tar_files(path, name, problem))
        return Listing([Unit(name, (_part(path, name),))], single=True)
    found: list[tuple[str, Part]] = []
    others = []
    for entry in walk(source, problem):
        suffix = entry.name[-4:].lower()
        if suffix in ARRAYS:
            found.append((entry.name, _part(entry.path, entry.name)))
        elif suffix == ".tar":
            found.extend(_tar_files(entry.path, entry.name, problem))
        else:
            others.append(entry.name)
    listing = _as_columns(found, columns) or _order(found)
    listing.others = others
    return listing


def _part(path: str, name: str, start: int = 0, size: int | None = None) -> Part:
    return Part(path, start, size, NPY_KEY if name.lower().endswith(".npy") else None)


def _tar_files(path: str, name: str, problem: Problem) -> list[tuple[str, Part]]:
    found: dict[str, Part] = {}
    try:
        for entry in tar_entries(path):
            if not entry.name.lower().endswith(ARRAYS) or any(ignored(piece) for piece in entry.name.split("/")):
                continue
            inside = f"{name}/{nfc(entry.name)}"
            if inside in found:
                problem("archive-unsafe", name, f"two members are called {entry.name!r}; the first is taken")
            found.setdefault(inside, _part(path, entry.name, entry.start, entry.size))
    except ArrayFault as fault:
        problem(str(fault.code), name, fault.what)
    return list(found.items())


def looks_like_arrays(path: str | Path) -> bool:
    """Whether a `.tar` begins with array files."""
    try:
        return any(entry.name.lower().endswith(ARRAYS) for entry in islice(tar_entries(path), 8))
    except ArrayFault:
        return False


def _order(found: list[tuple[str, Part]]) -> Listing:
    order = {split: place for place, split in enumerate((None, *_SPLITS))}
    units = [Unit(name, (part,), _split(name)) for name, part in found]
    units.sort(key=lambda unit: (order[unit.split], [natural(piece) for piece in unit.name.split("/")]))
    return Listing(units)


def _split(name: str) -> str | None:
    folder, slash, _ = name.partition("/")
    return split_called(folder) if slash else None


def split_called(name: str) -> str | None:
    """The split that goes by a name: `validation` is `val`."""
    return next((split for split, names in _SPLITS.items() if name.lower() in names), None)


def _as_columns(found: list[tuple[str, Part]], columns: Collection[str]) -> Listing | None:
    """One unit of all `.npy` files, when they are called like inputs and not like numbered samples."""
    stems = {name[:-4]: part for name, part in found if part.npy_key is not None and "/" not in name}
    if len(stems) != len(found) or len(stems) < 2:
        return None
    by_name = bool(columns) and set(stems) & set(columns)
    if not by_name and any(stem[-1:].isdigit() for stem in stems):
        return None
    parts = tuple(Part(part.path, npy_key=stem) for stem, part in stems.items())
    unit = Unit(", ".join(name for name, _ in found), parts)
    firsts = {info.shape[:1] for info in unit.scan().infos.values()}
    rows = len(firsts) == 1 and not firsts & {(), (1,), (3,), (4,)}  # those are channels, or nothing to count
    return Listing([unit], single=True) if by_name or rows else None
