# SPDX-License-Identifier: Apache-2.0
"""Which array files a folder, a file or a `.tar` holds, in natural order, and which of them belong together.

A *unit* is what is read at once: one `.npz`, one `.npy`, or several `.npy` that are the columns of one dataset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from fewbit.data.arrays.description import ArrayInfo
from fewbit.data.arrays.faults import ArrayFault
from fewbit.data.arrays.npz_archive import Array, Scan, check_crc, naming, opened, read_arrays, read_row, scan
from fewbit.data.arrays.tar_index import tar_entries
from fewbit.data.split_names import SPLITS, split_word
from fewbit.data.walk import Entry, Problem, ignored, natural, nfc, quietly, walk

ARRAYS = (".npz", ".npy")
NPY_KEY = "input"
"""The name of an array that has none: the only one in a `.npy`."""

MANIFEST = "manifest.json"
"""What `capture` writes beside its samples: no sample, and no stranger either."""

_DIGITS = str.maketrans("123456789", "0" * 9)

_COLUMNS = 64
"""No model has more inputs than this; more `.npy` files are samples."""

_INPUTS, _OUTPUTS = "sample-inputs", "sample-outputs"


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
        return UnitScan(self, [_scan(part) for part in self.parts])


def _scan(part: Part) -> Scan:
    try:
        with opened(part.path, part.start, part.size) as window:
            return scan(window, npy_name=part.npy_key)
    except ArrayFault as fault:
        return Scan(faults=[fault])


class UnitScan:
    """The headers of a unit, and the way to its values.

    Attributes:
        infos: the arrays' descriptions by name.
        faults: everything wrong with the headers.
    """

    __slots__ = ("faults", "infos", "scans", "unit")

    def __init__(self, unit: Unit, scans: list[Scan]):
        self.unit, self.scans = unit, scans
        self.infos: dict[str, ArrayInfo] = {}
        self.faults: list[ArrayFault] = []
        for found in scans:
            self.infos |= found.infos
            self.faults += found.faults

    @property
    def fatal(self) -> ArrayFault | None:
        """The first fault that keeps the unit from being read."""
        return next((found.fatal for found in self.scans if found.fatal is not None), None)

    @property
    def nameless(self) -> bool:
        """Whether the only array has no name of its own, as in a `.npy`; `NPY_KEY` then stands for one."""
        return len(self.unit.parts) == 1 and self.unit.parts[0].npy_key is not None

    @property
    def seekable(self) -> bool:
        """Whether one row can be read without unpacking the rest."""
        return all(member.seekable for found in self.scans for member in found.members.values())

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

    def each(self, rows: int, *, stacked: bool) -> Iterator[dict[str, Array]]:
        """The arrays of each of a unit's samples, as `Sampling.shape` takes them; every checksum is verified.

        Raises:
            ArrayFault: the values are damaged or too large.
        """
        if stacked and self.seekable:
            self._check_crcs()
            yield from (self.read(row) for row in range(rows))
            return
        whole = self.read()
        for row in range(rows):
            yield {name: array[row] for name, array in whole.items()} if stacked else whole

    def _check_crcs(self) -> None:
        for part, found in zip(self.unit.parts, self.scans):
            with opened(part.path, part.start, part.size) as window:
                for name, member in found.members.items():
                    with naming(name):
                        check_crc(window, member)


@dataclass(slots=True)
class Listing:
    """The units of a dataset.

    Args:
        units: in natural order, split by split.
        others: files that are no arrays.
        outputs: what a model returned for the samples, kept beside them in a folder of its own.
        lone: the dataset is one array file, and no folder or `.tar` in which a file is a sample.
        like_columns: `.npy` files are read as a sample each, though their names and shapes would suit columns too.
    """

    units: list[Unit]
    others: list[Entry] = field(default_factory=list)
    outputs: list[Entry] = field(default_factory=list)
    lone: bool = False
    like_columns: bool = False

    @property
    def may_be_a_stack(self) -> bool:
        """Whether shapes may decide that the first axis counts samples: in a lone file, and in a set of columns."""
        return self.lone or any(len(unit.parts) > 1 for unit in self.units)

    @property
    def splits(self) -> list[str]:
        """The splits there are, in order."""
        return list(dict.fromkeys(unit.split for unit in self.units if unit.split))

    def passed_over(self) -> Iterator[tuple[str, str, str]]:
        """What is not read, as code, path and message."""
        for entry in self.others:
            if entry.name.rpartition("/")[2] != MANIFEST:
                yield "file-ignored", entry.name, "is not an array file"
        for folder, count in Counter(entry.name.rpartition("/")[0] for entry in self.outputs).items():
            yield "outputs-ignored", folder, f"{count:,} files hold what a model returned; only the inputs are read"
        if self.like_columns:
            text = f"{len(self.units)} .npy files have the same first axis; each is read as a sample"
            yield "columns-suspected", self.units[0].name, text


def list_units(
    source: Path, problem: Problem = quietly, *, columns: Collection[str] = (), stacked: bool | None = None
) -> Listing:
    """The units of a dataset.

    Args:
        source: a folder, a `.npz`, a `.npy` or a `.tar`.
        problem: told about what had to be passed over.
        columns: the model's input names: `.npy` files called so are columns of one dataset.
        stacked: what the user says of the first axis; where it counts samples, `.npy` files may be columns too.
    """
    found: list[tuple[str, Part]] = []
    others = []
    lone = source.is_file()
    for entry in [Entry(nfc(source.name), str(source))] if lone else walk(source, problem):
        suffix = entry.name[-4:].lower()
        if suffix == ".tar":
            found.extend(_tar_files(entry.path, entry.name, problem))
        elif lone or suffix in ARRAYS:
            found.append((entry.name, _part(entry.path, entry.name)))
        else:
            others.append(entry)
    outputs = []
    if beside := _output_folders(found):
        outputs = [Entry(name, part.path) for name, part in found if name.rpartition("/")[0] in beside]
        found = [(name, part) for name, part in found if name.rpartition("/")[0] not in beside]
    listing = Listing([], others, outputs, lone and source.suffix.lower() != ".tar")
    together = _as_columns(found)
    named = together is not None and any(part.npy_key in columns for part in together.parts)
    alike = together is not None and not named and _first_axis_shared(together)
    if together is not None and (named or (alike and stacked)):
        listing.units = [together]
        return listing
    listing.units, listing.like_columns = _order(found), alike and stacked is None
    return listing


def _output_folders(found: list[tuple[str, Part]]) -> set[str]:
    """The folders `sample-outputs` that have a `sample-inputs` beside them, as `capture(outputs=True)` writes both."""
    folders = {name.rpartition("/")[0] for name, _ in found}
    outputs = {folder for folder in folders if folder.rpartition("/")[2] == _OUTPUTS}
    return {folder for folder in outputs if folder.removesuffix(_OUTPUTS) + _INPUTS in folders}


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
    except ArrayFault as fault:
        return fault.code == "unreadable"  # no other format reads a `.tar`; the reader says what the system says


def _order(found: list[tuple[str, Part]]) -> list[Unit]:
    order = {split: place for place, split in enumerate((None, *SPLITS))}
    units = [Unit(name, (part,), _split(name)) for name, part in found]
    if len({name.translate(_DIGITS) for name, _ in found}) < 2:  # numbers of one width: the plain order is natural
        units.sort(key=lambda unit: unit.name)
    else:
        units.sort(key=lambda unit: (order[unit.split], [natural(piece) for piece in unit.name.split("/")]))
    return units


def _split(name: str) -> str | None:
    if "/" not in name:
        return None
    first, *more = [*name.split("/")[:-1], ""]
    if first.lower().endswith(".tar"):
        return split_word(first[:-4]) or split_word(more[0])
    return split_word(first)


def _as_columns(found: list[tuple[str, Part]]) -> Unit | None:
    """All files as one unit, if they are `.npy` and few enough to be the columns of one dataset."""
    stems = {name[:-4]: part for name, part in found if part.npy_key is not None and "/" not in name}
    if len(stems) != len(found) or not 2 <= len(stems) <= _COLUMNS:
        return None
    parts = tuple(Part(part.path, npy_key=stem) for stem, part in stems.items())
    return Unit(", ".join(name for name, _ in found), parts)


def _first_axis_shared(columns: Unit) -> bool:
    """Whether columns look it: called like inputs and not like numbered samples, with one first axis."""
    if any(str(part.npy_key)[-1:].isdigit() for part in columns.parts):
        return False
    firsts = {info.shape[:1] for info in columns.scan().infos.values()}
    return len(firsts) == 1 and not firsts & {(), (1,), (3,), (4,)}  # those are channels, or nothing to count
