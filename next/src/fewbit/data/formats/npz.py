# SPDX-License-Identifier: Apache-2.0
"""`.npz` and `.npy` files: one sample per file in natural order; with `stacked` one per entry of the first axis.

Without `stacked` nothing is cut: whether a first axis is a batch is known to the user or the model, not to the file.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fewbit.data.archives import natural_key
from fewbit.data.formats._npy import FILE_ISSUES, MEMBER_NOT_ARRAY, ArrayError, ArrayFile, ArrayHeader, write_npz
from fewbit.data.formats._npz_check import (
    CHECK_ISSUES,
    DUPLICATE_SAMPLE,
    KEYS_DIFFER,
    SPLITS_INSIDE,
    VALUE_ISSUES,
    compare_array,
    describe,
    digest,
    odd_values,
    splits_inside,
    suspect,
)
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
OUTPUTS_IGNORED = IssueType(
    "outputs-ignored", Severity.NOTE, "folder sample-outputs next to sample-inputs, which is not read",
    "open the folder itself to read the outputs",
)  # fmt: skip
NO_SAMPLES = IssueType(
    "no-samples", Severity.ERROR, "no array file", "save samples with numpy.savez or {fewbit.capture}", "raise"
)
ISSUES = (*FILE_ISSUES, *CHECK_ISSUES, STACK_UNEVEN, FILE_IGNORED, OUTPUTS_IGNORED, NO_SAMPLES)

_SUFFIXES = (".npz", ".npy")
_BARE = "array"
"""The name of the only array of a `.npy` file."""
_SAMPLED_FILES = 16
_IN_MEMORY_BYTES = 64 << 20
_METADATA_FILES = re.compile(r"manifest\.json|readme(\.\w+)?|licen[cs]e(\.\w+)?|.*\.md", re.IGNORECASE)


def detect(files: Files) -> Detection | None:
    """Folders of `.npz` or `.npy` files, or one such file."""
    names = files.names()
    arrays = sum(name.lower().endswith(_SUFFIXES) for name in names)
    others = sum(not _METADATA_FILES.fullmatch(name.rpartition("/")[2]) for name in names) - arrays
    return Detection(0.95 * arrays / (arrays + others), plural(arrays, "array file")) if arrays else None


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> NpzSource:
    """Index the files: with `index` the headers of a few are read, with `full` every array.

    Args:
        files: what there is.
        report: takes issues.
        depth: how much is read.
        options: `stacked`, `split`.
    """
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

    def set_units(self, units: Sequence[_Unit]) -> None:
        """Replace the files, as a scan learns about them."""
        self.units = list(units)
        counts = [1 if unit.rows is None else unit.rows for unit in self.units]
        self._ends = np.cumsum(np.array(counts, np.int64))
        splits = Counter[str]()
        for unit, count in zip(self.units, counts):
            if unit.split:
                splits[unit.split] += count
        if splits:
            self.facts["splits"] = {split: splits[split] for split in SPLITS if splits[split]}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_recent": None}

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> Sample:
        unit, row = self._find(index)
        sample: Sample = {}
        for name in unit.names:
            try:
                file = self.open(name)
                for error in file.problems:
                    if error.type is not MEMBER_NOT_ARRAY:
                        raise error
                for key in file.infos:
                    array = file.array(key) if row is None else file.row(key, row)
                    sample[_stem(name) if len(unit.names) > 1 else dict(unit.rename).get(key, key)] = array
            except ArrayError as error:
                location = Location(name, row=row, index=index, field=error.field)
                raise SampleError(Issue(error.type, error.message, location)) from error
        for kind, message, field in odd_values(sample) if self.strict else ():
            if kind in self.strict:
                raise SampleError(Issue(kind, message, Location(unit.names[0], row=row, index=index, field=field)))
        return sample

    def location(self, index: int) -> Location:
        """The file, and the row of a stack."""
        unit, row = self._find(index)
        return Location(unit.names[0], row=row, index=index)

    def strata(self) -> Sequence[Any] | None:
        """The split of each sample."""
        if "splits" not in self.facts:
            return None
        return [unit.split for unit in self.units for _ in range(1 if unit.rows is None else unit.rows)]

    def open(self, name: str) -> ArrayFile:
        """The arrays of one file; the file used last stays open, so that the rows of a stack are cheap."""
        recent = self._recent
        if recent is None or recent[0] != name:
            bare = _BARE if name.lower().endswith(".npy") else None
            size = self.files.size(name)
            if size <= _IN_MEMORY_BYTES:
                content = self.files.read(name, size)
                file = ArrayFile(lambda offset, count: content[offset : offset + count], len(content), bare)
            else:
                file = ArrayFile(Handle(self.files, name).read_at, size, bare)
            self._recent = recent = name, file
        return recent[1]

    def _find(self, index: int) -> tuple[_Unit, int | None]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = int(np.searchsorted(self._ends, index, side="right"))
        unit = self.units[number]
        start = int(self._ends[number - 1]) if number else 0
        return unit, None if unit.rows is None else index - start


class _NpzScan:
    """One pass over the files of a source."""

    def __init__(self, source: NpzSource, report: DataReport, depth: Depth, stacked: bool | None):
        self.source, self.report, self.depth, self.stacked = source, report, depth, stacked
        self.headers: dict[str, Mapping[str, ArrayHeader]] = {}
        self.digests: dict[bytes, Location] = {}
        self.samples = 0

    def run(self) -> NpzSource:
        """Report every issue, and leave out what is to be dropped."""
        units, sampled = self.source.units, self._sampled_units()
        remaining = []
        for number, unit in enumerate(units):
            if number in sampled or self.stacked:
                checked = self._check(unit, values=self.depth == "full" and number in sampled)
                if checked is None:
                    self.source.left_out += unit.names
                    continue
                unit = checked
            self.samples += 1 if unit.rows is None else unit.rows
            remaining.append(unit)
        self.source.set_units(self._compare(remaining))
        if self.stacked is None:
            suspect(self.report, self.headers, [name for unit in self.source.units for name in unit.names])
        self._describe()
        return self.source

    def _sampled_units(self) -> set[int]:
        count = len(self.source.units)
        if self.depth == "full" or count <= _SAMPLED_FILES:
            return set(range(count))
        return {number * (count - 1) // (_SAMPLED_FILES - 1) for number in range(_SAMPLED_FILES)}

    def _check(self, unit: _Unit, *, values: bool) -> _Unit | None:
        """The unit as it can be read, or `None` if it is left out."""
        actions: set[Action] = set()
        for name in unit.names:
            location = Location(name, index=self.samples)
            try:
                file = self.source.open(name)
            except SampleError as error:
                actions.add(self.report.add(error.issue.type, error.issue.message, error.issue.location))
                continue
            for problem in file.problems:
                location = Location(name, index=self.samples, field=problem.field)
                action = self.report.add(problem.type, problem.message, location)
                actions.add("keep" if problem.type is MEMBER_NOT_ARRAY and action == "drop" else action)
            self.headers[name] = file.infos
            if self.stacked is None and (line := splits_inside(file.infos)):
                actions.add(self.report.add(SPLITS_INSIDE, line, Location(name)))
        if self.stacked and not actions & {"drop", "raise"}:
            unit, action = self._stack(unit)
            actions.add(action)
        if values and not actions & {"drop", "raise"}:
            actions |= self._values(unit)
        return None if "drop" in actions else unit

    def _stack(self, unit: _Unit) -> tuple[_Unit, Action]:
        """The unit with its number of rows."""
        infos = {f"{name}: {key}": info for name in unit.names for key, info in self.headers.get(name, {}).items()}
        firsts = {info.shape[:1] for info in infos.values()}
        if len(firsts) == 1 and (rows := firsts.pop()):
            return _Unit(unit.names, unit.split, rows[0]), "keep"
        shapes = ", ".join(f"{key.partition(': ')[2]} {list(info.shape)}" for key, info in list(infos.items())[:6])
        action = self.report.add(STACK_UNEVEN, shapes or "no array", Location(unit.names[0]))
        return _Unit(unit.names, unit.split, 0), action

    def _values(self, unit: _Unit) -> set[Action]:
        """Decode everything: checksums, odd values, duplicates."""
        actions: set[Action] = set()
        arrays: Sample = {}
        for name in unit.names:
            file = self.source.open(name)
            for key in file.infos:
                try:
                    arrays[key if len(unit.names) == 1 else _stem(name)] = file.array(key)
                except ArrayError as error:
                    location = Location(name, index=self.samples, field=key)
                    actions.add(self.report.add(error.type, error.message, location))
        if actions & {"drop", "raise"}:
            return actions
        for row in [None] if unit.rows is None else range(unit.rows):
            sample = arrays if row is None else {key: array[row] for key, array in arrays.items()}
            index = self.samples + (row or 0)
            for kind, message, field in odd_values(sample):
                location = Location(unit.names[0], row=row, index=index, field=field)
                if self.report.add(kind, message, location) == "drop" and row is None:
                    actions.add("drop")
            location = Location(unit.names[0], row=row, index=index)
            first = self.digests.setdefault(digest(sample), location)
            if first is not location:
                self.report.add(DUPLICATE_SAMPLE, f"the same values as {first}", location)
        return actions

    def _compare(self, units: Sequence[_Unit]) -> list[_Unit]:
        """Report files that differ from most others; rename arrays if `on_error=repair` and the match is unique."""
        if any(len(unit.names) > 1 for unit in units):  # columns differ by nature
            return list(units)
        keys = Counter(tuple(infos) for infos in self.headers.values() if infos)
        if not keys:
            return list(units)
        common_keys = max(keys, key=lambda names: (keys[names], names))
        remaining = []
        for unit in units:
            infos = self.headers.get(unit.names[0])
            if infos is not None and infos and set(infos) != set(common_keys):
                unit, action = self._rename(unit, infos, common_keys)
                if action == "drop":
                    self.source.left_out += unit.names
                    continue
            remaining.append(unit)
        for key in common_keys:
            infos_by_file = {name: infos[key] for name, infos in self.headers.items() if key in infos}
            compare_array(self.report, key, infos_by_file, bool(self.stacked))
        return remaining

    def _rename(
        self, unit: _Unit, infos: Mapping[str, ArrayHeader], common_keys: Sequence[str]
    ) -> tuple[_Unit, Action]:
        extra = [key for key in infos if key not in common_keys]
        missing = [key for key in common_keys if key not in infos]
        message = "; ".join(
            filter(None, [f"has {', '.join(extra)}" if extra else "", f"lacks {', '.join(missing)}" if missing else ""])
        )
        action = self.report.add(KEYS_DIFFER, message, Location(unit.names[0]))
        by_normalized = {_normalized_name(key): key for key in missing}
        rename = tuple(
            (key, by_normalized[_normalized_name(key)]) for key in extra if _normalized_name(key) in by_normalized
        )
        certain = len({new for _, new in rename}) == len(rename) == len(missing) == len(by_normalized)
        if action == "repair" and rename and certain:
            return _Unit(unit.names, unit.split, unit.rows, rename), action
        return unit, action

    def _describe(self) -> None:
        """Names, dtypes and shapes of the arrays, as far as they were looked at."""
        columns = {name: _stem(name) for unit in self.source.units if len(unit.names) > 1 for name in unit.names}
        table: dict[str, list[ArrayHeader]] = defaultdict(list)
        for name, infos in self.headers.items():
            for key, info in infos.items():
                table[columns.get(name, key)].append(info)
        arrays = {key: describe(infos, bool(self.stacked)) for key, infos in table.items()}
        self.source.facts |= {"columns": list(arrays), "arrays": arrays}
        self.report.facts |= self.source.facts


def _units(files: Files, report: DataReport, split: str | None, stacked: bool) -> list[_Unit]:
    """Files in the order train, val, test, each in natural order."""
    names = [name for name in files.names() if name.lower().endswith(_SUFFIXES)]
    for name in files.names():
        if not name.lower().endswith(_SUFFIXES) and not _METADATA_FILES.fullmatch(name.rpartition("/")[2]):
            report.add(FILE_IGNORED, "not read", Location(name))
    names = _without_outputs(names, report)
    splits = {name: _split_of(name) for name in names}
    if not all(splits.values()):  # a file called test.npz among input0.npz … is no split
        splits = {name: split_of_folder(name.partition("/")[0]) if "/" in name else None for name in names}
    if split is not None:
        selected = split_of_folder(split)
        names = [name for name in names if splits[name] == selected]
        if selected is None or not names:
            available = [name for name in SPLITS if name in splits.values()]
            raise UsageError(
                f"there is no split {split!r}", code="split-unknown", param="split", where=files.root,
                expected=", ".join(available) or "no splits",
                hint=f"{{split={available[0]}}}" if available else "leave {split} out",
            )  # fmt: skip
    order = {name: number for number, name in enumerate((*SPLITS, None))}
    names.sort()
    if len({re.sub(r"\d", "0", name) for name in names}) > 1:  # otherwise every number has the same width
        names.sort(key=natural_key)
    names.sort(key=lambda name: order[splits[name]])
    if stacked and len(names) > 1 and all(name.lower().endswith(".npy") for name in names):
        groups: dict[tuple[str, Split | None], list[str]] = defaultdict(list)
        for name in names:
            groups[name.rpartition("/")[0], splits[name]].append(name)
        return [_Unit(tuple(group), split_name) for (_, split_name), group in groups.items()]
    return [_Unit((name,), splits[name]) for name in names]


def _split_of(name: str) -> Split | None:
    return (split_of_folder(name.partition("/")[0]) if "/" in name else None) or split_of_file(name)


def _without_outputs(names: list[str], report: DataReport) -> list[str]:
    """Without `sample-outputs/` where `sample-inputs/` is next to it, as `capture` writes them."""
    folders = {name.rpartition("/")[0] for name in names}
    ignored = {
        folder for folder in folders
        if folder.rpartition("/")[2] == "sample-outputs" and folder.removesuffix("outputs") + "inputs" in folders
    }  # fmt: skip
    for folder in sorted(ignored):
        count = sum(name.rpartition("/")[0] == folder for name in names)
        report.add(OUTPUTS_IGNORED, f"{plural(count, 'file')} not read", Location(folder))
    return [name for name in names if name.rpartition("/")[0] not in ignored]


def _stem(name: str) -> str:
    return name.rpartition("/")[2].rpartition(".")[0]


def _normalized_name(name: str) -> str:
    return re.sub(r"[-_. /]", "", name.casefold().removesuffix(":0"))


def write(source: NpzSource, folder: Path) -> list[str]:
    """Copy what can be read: byte for byte, or with renamed arrays."""
    changes = [f"{name}: left out" for name in source.left_out]
    for number, unit in enumerate(source.units):
        start = int(source._ends[number - 1]) if number else 0
        try:
            sample = source[start] if unit.rows != 0 else {}
        except SampleError as error:
            changes.append(f"{', '.join(unit.names)}: left out ({error.issue.type.meaning})")
            continue
        for name in unit.names:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if unit.rename:
                write_npz(path, sample)
                changes += [f"{name}: renamed {old!r} to {new!r}" for old, new in unit.rename]
            else:
                with source.files.open(name) as stream, path.open("wb") as copy:
                    while chunk := stream.read(1 << 20):
                        copy.write(chunk)
    return changes


def example(folder: Path) -> Path:
    """Twelve samples of two arrays, one of them compressed."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(12):
        x, label = np.arange(12, dtype=np.float32).reshape(3, 4) + index, np.array(index % 3)
        if index == 7:
            np.savez_compressed(folder / f"input{index}.npz", x=x, label=label)
        else:
            write_npz(folder / f"input{index}.npz", {"x": x, "label": label})
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
)
