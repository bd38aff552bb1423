# SPDX-License-Identifier: Apache-2.0
"""`.npz` and `.npy` files: one sample per file in natural order; with `stacked` one per entry of the first axis.

Without `stacked` nothing is cut: whether a first axis is a batch is known to the user or the model, not to the file.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fewbit.data.arrays import checks
from fewbit.data.arrays.checks import CHECK_ISSUES, VALUE_ISSUES
from fewbit.data.arrays.files import FILE_ISSUES, MEMBER_NOT_ARRAY, ArrayError, ArrayFile, ArrayHeader, write_npz
from fewbit.data.files import natural_key
from fewbit.data.splits import SPLITS, Split, split_of_file, split_of_folder
from fewbit.data.streams import Handle
from fewbit.data.types import (
    Action,
    DataReport,
    Depth,
    Detection,
    Files,
    Format,
    FormatOption,
    Issue,
    IssueType,
    Location,
    Sample,
    SampleError,
    Severity,
)
from fewbit.errors import UsageError, plural

__all__ = ["FORMAT", "write_npz"]

STACK_UNEVEN = IssueType(
    "stack-uneven", Severity.ERROR, "arrays of a stack with different first axes",
    "give every array the same first axis, or read the file as one sample: {data_option=stacked=false}",
    "raise", ("drop",), "leaves the file out",
)  # fmt: skip
FILE_IGNORED = IssueType("file-ignored", Severity.NOTE, "file that is not an array file", "move it elsewhere")
NO_SAMPLES = IssueType(
    "no-samples", Severity.ERROR, "no array file", "save samples with numpy.savez or {fewbit.capture}", "raise"
)
ISSUES = (*FILE_ISSUES, *CHECK_ISSUES, STACK_UNEVEN, FILE_IGNORED, NO_SAMPLES)

_SUFFIXES = (".npz", ".npy")
_SAMPLED_FILES = 16
_IN_MEMORY_BYTES = 64 << 20
_METADATA_FILES = re.compile(r"manifest\.json|readme(\.\w+)?|licen[cs]e(\.\w+)?|.*\.md", re.IGNORECASE)


def detect(files: Files) -> Detection | None:
    """Folders of `.npz` or `.npy` files, or one such file."""
    arrays, others = _sort_out(files.names())
    if not arrays:
        return None
    return Detection(0.95 * len(arrays) / (len(arrays) + len(others)), plural(len(arrays), "array file"))


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> NpzSource:
    """Index the files: with `index` the headers of a few are read, with `full` every array."""
    stacked = options.get("stacked")
    if stacked is not None and not isinstance(stacked, bool):
        raise UsageError(
            f"stacked is {stacked!r}", code="data-option-invalid", param="data_option", expected="true or false",
            hint="{data_option=stacked=true}",
        )  # fmt: skip
    units = _units(files, report, options.get("split"), bool(stacked))
    source = NpzSource(files, units, [kind for kind in VALUE_ISSUES if report.action(kind) in ("drop", "raise")])
    if not units:
        report.add(NO_SAMPLES, "no .npz or .npy file is there")
    return _NpzScan(source, report, depth, stacked).run()


@dataclass(frozen=True, slots=True)
class _Unit:
    """Files that are read together.

    Args:
        names: one file, or the columns of a dataset.
        split: their split.
        rows: samples along the first axis; `None` if the file is one sample.
        rename: new names of arrays.
    """

    names: tuple[str, ...]
    split: Split | None
    rows: int | None = None
    rename: tuple[tuple[str, str], ...] = ()

    @property
    def samples(self) -> int:
        return 1 if self.rows is None else self.rows

    def key(self, name: str, array: str) -> str:
        """The key of an array in a sample; columns are named by their files."""
        return _stem(name) if len(self.names) > 1 else dict(self.rename).get(array, array)


class NpzSource:
    """Samples of array files.

    Args:
        files: where they are.
        units: files in the order of their samples.
        strict: issues of values that make a sample unreadable, as the user asked.
    """

    def __init__(self, files: Files, units: Sequence[_Unit], strict: Sequence[IssueType] = ()):
        self.files, self.strict = files, strict
        self.left_out: list[str] = []
        self.facts: dict[str, Any] = {}
        self._recent: tuple[str, ArrayFile] | None = None
        self.set_units(units)

    def set_units(self, units: Sequence[_Unit], dropped: Mapping[tuple[str, ...], Sequence[int]] | None = None) -> None:
        """Replace the files, as a scan learns about them, and leave out single rows of stacks, by their files."""
        self.units, self.dropped = list(units), dict(dropped or {})
        self._ends = np.cumsum([unit.samples for unit in self.units], dtype=np.int64)
        rows = [
            row for unit, end in zip(self.units, self._ends) for row in self._dropped_rows(unit) + end - unit.samples
        ]
        self._order = np.delete(np.arange(self._ends[-1] if self.units else 0), rows)
        splits = Counter(split for split in self._splits() if split)
        if splits:
            self.facts["splits"] = {split: splits[split] for split in SPLITS if splits[split]}

    def _dropped_rows(self, unit: _Unit) -> np.ndarray:
        return np.array(self.dropped.get(unit.names, ()), np.int64)

    def kept_rows(self, unit: _Unit) -> np.ndarray:
        """The rows of a stack that are samples."""
        return np.delete(np.arange(unit.samples), self._dropped_rows(unit))

    def _splits(self) -> list[Split | None]:
        unit_of = np.searchsorted(self._ends, self._order, side="right")
        return [self.units[number].split for number in unit_of]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_recent": None}

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> Sample:
        unit, row = self._find(index)
        sample: Sample = {}
        for name in unit.names:
            try:
                file = self.open(name)
                for problem in file.problems:
                    if problem.type is not MEMBER_NOT_ARRAY:
                        raise problem
                for key in file.headers:
                    sample[unit.key(name, key)] = file.array(key) if row is None else file.row(key, row)
            except ArrayError as error:
                location = Location(name, row=row, index=index, field=error.field)
                raise SampleError(Issue(error.type, error.message, location)) from error
        for kind, message, field in checks.odd_values(sample) if self.strict else ():
            if kind in self.strict:
                raise SampleError(Issue(kind, message, replace(self.location(index), field=field)))
        return sample

    def location(self, index: int) -> Location:
        """The file, and the row of a stack."""
        unit, row = self._find(index)
        return Location(unit.names[0], row=row, index=index)

    def strata(self) -> Sequence[Any] | None:
        """The split of each sample."""
        return self._splits() if "splits" in self.facts else None

    def open(self, name: str) -> ArrayFile:
        """The arrays of one file; the file used last stays open, so that the rows of a stack are cheap."""
        recent = self._recent
        if recent is None or recent[0] != name:
            bare, size = name.lower().endswith(".npy"), self.files.size(name)
            if size <= _IN_MEMORY_BYTES:
                file = ArrayFile.of_bytes(self.files.read(name, size), bare)
            else:
                file = ArrayFile(Handle(self.files, name).read_at, size, bare)
            self._recent = recent = name, file
        return recent[1]

    def _find(self, index: int) -> tuple[_Unit, int | None]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        position = int(self._order[index])
        number = int(np.searchsorted(self._ends, position, side="right"))
        unit = self.units[number]
        return unit, None if unit.rows is None else position - int(self._ends[number]) + unit.rows


class _NpzScan:
    """One pass over the files of a source."""

    def __init__(self, source: NpzSource, report: DataReport, depth: Depth, stacked: bool | None):
        self.source, self.report, self.depth, self.stacked = source, report, depth, stacked
        self.headers: dict[str, Mapping[str, ArrayHeader]] = {}
        self.digests: dict[bytes, Location] = {}
        self.samples = 0
        self.dropped_rows: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)

    def run(self) -> NpzSource:
        """Report every issue, and leave out what is to be dropped."""
        count, remaining = len(self.source.units), []
        step = 1 if self.depth == "full" or count <= _SAMPLED_FILES else (count - 1) / (_SAMPLED_FILES - 1)
        sampled = {round(number * step) for number in range(count)}
        for number, unit in enumerate(self.source.units):
            checked = self._check(unit) if number in sampled or self.stacked else unit
            if checked is None:
                self.source.left_out += unit.names
            else:
                self.samples += checked.samples
                remaining.append(checked)
        if all(len(unit.names) == 1 for unit in remaining):  # columns differ by nature
            remaining = self._compare(remaining)
        self.source.set_units(remaining, self.dropped_rows)
        if self.stacked is None:
            checks.suspect(self.report, self.headers, [name for unit in self.source.units for name in unit.names])
        units = [(unit, name) for unit in self.source.units for name in unit.names]
        columns = {unit.key(name, key): None for unit, name in units for key in self.headers.get(name, ())}
        self.source.facts["columns"] = list(columns)
        self.report.facts |= self.source.facts
        return self.source

    def _check(self, unit: _Unit) -> _Unit | None:
        """The unit as it can be read, or `None` if it is left out."""
        actions: set[Action] = set()
        for name in unit.names:
            try:
                file = self.source.open(name)
            except SampleError as error:
                actions.add(self.report.add(error.issue.type, error.issue.message, error.issue.location))
                continue
            for problem in file.problems:
                location = Location(name, index=self.samples, field=problem.field)
                action = self.report.add(problem.type, problem.message, location)
                actions.add("keep" if problem.type is MEMBER_NOT_ARRAY and action == "drop" else action)
            self.headers[name] = file.headers
            if self.stacked is None and (line := checks.splits_inside(list(file.headers))):
                actions.add(self.report.add(checks.SPLITS_INSIDE, line, Location(name)))
        if self.stacked and not actions & {"drop", "raise"}:
            unit, action = self._stack(unit)
            actions.add(action)
        if self.depth == "full" and not actions & {"drop", "raise"}:
            actions |= self._values(unit)
        return None if "drop" in actions else unit

    def _stack(self, unit: _Unit) -> tuple[_Unit, Action]:
        """The unit with its number of rows."""
        shapes = {key: header.shape for name in unit.names for key, header in self.headers.get(name, {}).items()}
        firsts = {header.shape[:1] for name in unit.names for header in self.headers.get(name, {}).values()}
        if len(firsts) == 1 and (first := firsts.pop()):
            return replace(unit, rows=first[0]), "keep"
        message = ", ".join(f"{key} {list(shape)}" for key, shape in list(shapes.items())[:6]) or "no array"
        return replace(unit, rows=0), self.report.add(STACK_UNEVEN, message, Location(unit.names[0]))

    def _values(self, unit: _Unit) -> set[Action]:
        """Decode everything: checksums, odd values, duplicates."""
        actions: set[Action] = set()
        arrays: Sample = {}
        for name in unit.names:
            file = self.source.open(name)
            for key in file.headers:
                try:
                    arrays[unit.key(name, key)] = file.array(key)
                except ArrayError as error:
                    location = Location(name, index=self.samples, field=key)
                    actions.add(self.report.add(error.type, error.message, location))
        if actions & {"drop", "raise"}:
            return actions
        for row in [None] if unit.rows is None else range(unit.rows):
            sample = arrays if row is None else {key: array[row] for key, array in arrays.items()}
            location = Location(unit.names[0], row=row, index=self.samples + (row or 0))
            odd = [
                self.report.add(kind, message, replace(location, field=field))
                for kind, message, field in checks.odd_values(sample)
            ]
            if "drop" in odd:
                if row is None:
                    return {"drop"}
                self.dropped_rows[unit.names].append(row)
                continue
            first = self.digests.setdefault(checks.digest(sample), location)
            if first is not location:
                self.report.add(checks.DUPLICATE_SAMPLE, f"the same values as {first}", location)
        return actions

    def _compare(self, units: Sequence[_Unit]) -> list[_Unit]:
        """Report files that differ from most others; rename arrays if `on_error=repair` and the match is unique."""
        names = Counter(tuple(headers) for headers in self.headers.values() if headers)
        common = max(names, key=lambda keys: (names[keys], keys), default=())
        remaining = []
        for unit in units:
            headers = self.headers.get(unit.names[0])
            if headers and set(headers) != set(common):
                unit, action = self._rename(unit, headers, common)
                if action == "drop":
                    self.source.left_out += unit.names
                    continue
            remaining.append(unit)
        for key in common:
            headers_of_key = {name: headers[key] for name, headers in self.headers.items() if key in headers}
            checks.compare_array(self.report, key, headers_of_key, bool(self.stacked))
        return remaining

    def _rename(self, unit: _Unit, names: Iterable[str], common: Sequence[str]) -> tuple[_Unit, Action]:
        extra = [key for key in names if key not in common]
        missing = [key for key in common if key not in set(names)]
        parts = (f"has {', '.join(extra)}" if extra else "", f"lacks {', '.join(missing)}" if missing else "")
        action = self.report.add(checks.KEYS_DIFFER, "; ".join(filter(None, parts)), Location(unit.names[0]))
        plain_names = {_normalized(key): key for key in missing}
        rename = {key: plain_names[_normalized(key)] for key in extra if _normalized(key) in plain_names}
        certain = len(set(rename.values())) == len(rename) == len(missing) == len(plain_names) > 0
        return replace(unit, rename=tuple(rename.items())) if action == "repair" and certain else unit, action


def _sort_out(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Array files, and files that are neither arrays nor descriptions."""
    arrays = [name for name in names if name.lower().endswith(_SUFFIXES)]
    others = [name for name in names if not name.lower().endswith(_SUFFIXES)]
    return arrays, [name for name in others if not _METADATA_FILES.fullmatch(name.rpartition("/")[2])]


def _units(files: Files, report: DataReport, split: str | None, stacked: bool) -> list[_Unit]:
    """Files in the order train, val, test, each in natural order."""
    names, others = _sort_out(files.names())
    for name in others:
        report.add(FILE_IGNORED, "not read", Location(name))
    folder_splits = {name: split_of_folder(name.partition("/")[0]) if "/" in name else None for name in names}
    splits = {name: folder_splits[name] or split_of_file(name) for name in names}
    if not all(splits.values()):  # a file called test.npz among input0.npz … is no split
        splits = folder_splits
    if split is not None:
        selected, available = split_of_folder(split), [name for name in SPLITS if name in splits.values()]
        if selected not in available:
            raise UsageError(
                f"there is no split {split!r}", code="split-unknown", param="split", where=files.root,
                expected=", ".join(available) or "no splits",
                hint=f"{{split={available[0]}}}" if available else "leave {split} out",
            )  # fmt: skip
        names = [name for name in names if splits[name] == selected]
    names.sort()
    if len({re.sub(r"\d", "0", name) for name in names}) > 1:  # otherwise every number has the same width
        names.sort(key=natural_key)
    names.sort(key=lambda name: (*SPLITS, None).index(splits[name]))
    if not stacked or len(names) < 2 or not all(name.lower().endswith(".npy") for name in names):
        return [_Unit((name,), splits[name]) for name in names]
    columns: dict[tuple[str, Split | None], list[str]] = defaultdict(list)
    for name in names:
        columns[name.rpartition("/")[0], splits[name]].append(name)
    return [_Unit(tuple(group), name) for (_, name), group in columns.items()]


def _stem(name: str) -> str:
    return name.rpartition("/")[2].rpartition(".")[0]


def _normalized(name: str) -> str:
    return re.sub(r"[-_. /]", "", name.casefold().removesuffix(":0"))


def write(source: NpzSource, folder: Path) -> list[str]:
    """Copy what can be read: byte for byte, or with renamed arrays, or without dropped rows of stacks."""
    changes = [f"{name}: left out" for name in source.left_out]
    for unit in source.units:
        alone = NpzSource(source.files, [replace(unit, rows=None)])
        try:
            sample = alone[0]
        except SampleError as error:
            changes.append(f"{', '.join(unit.names)}: left out ({error.issue.type.meaning})")
            continue
        rows = None if unit.rows in (None, len(source.kept_rows(unit))) else source.kept_rows(unit)
        if rows is not None and not len(rows):
            changes.append(f"{', '.join(unit.names)}: left out, with every row")
            continue
        for name in unit.names:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            changes += [f"{name}: renamed {old!r} to {new!r}" for old, new in unit.rename]
            if rows is not None:
                left_out = ", ".join(map(str, source.dropped[unit.names]))
                changes.append(f"{name}: left out {'row' if unit.samples - len(rows) == 1 else 'rows'} {left_out}")
            if unit.rename or rows is not None:
                keys = [unit.key(name, array) for array in source.open(name).headers]
                arrays = {key: sample[key] if rows is None else sample[key][rows] for key in keys}
                if name.lower().endswith(".npy"):
                    np.save(path, arrays[keys[0]], allow_pickle=False)
                else:
                    write_npz(path, arrays)
            else:
                with source.files.open(name) as stream, path.open("wb") as copy:
                    while chunk := stream.read(1 << 20):
                        copy.write(chunk)
    return changes


def example(folder: Path) -> Path:
    """Twelve samples of two arrays, one of them compressed."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(12):
        sample: dict[str, Any] = {
            "x": np.arange(12, dtype=np.float32).reshape(3, 4) + index,
            "label": np.array(index % 3),
        }
        if index == 7:
            np.savez_compressed(folder / f"input{index}.npz", **sample)
        else:
            write_npz(folder / f"input{index}.npz", sample)
    return folder


FORMAT = Format(
    name="npz",
    title="npz and npy files",
    layout="one .npz or .npy file per sample, arrays named as the model's inputs; train/, val/, test/ are splits",
    issues=ISSUES,
    detect=detect,
    scan=scan,
    example=example,
    options=(FormatOption("stacked", "whether each entry of the first axis is a sample", bool),),
    write=write,
    suffixes=_SUFFIXES,
)
