# SPDX-License-Identifier: Apache-2.0
"""The samples of class folders, and a repaired copy: what cannot be used left out, the rest byte for byte.

A class folder that loses its last file goes too: it would stay behind as a class that shifts the number of every class
after it. A class folder that was empty before keeps its place.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np

from fewbit.data.formats._class_folders import NO_CLASS, NO_SPLIT, ClassFolders, LabeledFile
from fewbit.data.types import Files, Issue, Location, Sample, SampleError

_Decode = Callable[[BinaryIO, Location], Sample]


@dataclass
class Repair:
    """What `write` needs to know, and worker processes do not."""

    layout: ClassFolders
    damaged: Mapping[str, Issue] = field(default_factory=dict)  # files that cannot be used
    leaks: Mapping[str, str] = field(default_factory=dict)  # copies of files in an earlier split, with the original
    suffixes: Mapping[str, str] = field(default_factory=dict)  # the right ones of files that have a wrong one


class ClassFolderSource:
    """One sample per file: what `decode` makes of it, and a `label` if there are classes."""

    def __init__(self, files: Files, entries: Sequence[LabeledFile], decode: _Decode, task: str, repair: Repair):
        self._files, self._decode, self.repair = files, decode, repair
        self._names = [entry.name for entry in entries]
        self._labels: np.ndarray | None = None
        self._splits: list[str] | None = None
        self.facts: dict[str, Any] = {}
        if classes := repair.layout.classes:
            numbers = {label: number for number, label in enumerate(classes)}
            self._labels = np.array([numbers[entry.label] for entry in entries], np.int32)
            self.facts |= {"classes": list(classes), "task": task}
        if NO_SPLIT not in repair.layout.splits:
            self._splits = [entry.split for entry in entries]
            self.facts["splits"] = dict(Counter(self._splits))

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Sample:
        location = self.location(index)
        with self._files.open(location.file) as stream:
            sample = self._decode(stream, location)
        return sample if self._labels is None else sample | {"label": int(self._labels[index])}

    def location(self, index: int) -> Location:
        """The file."""
        return Location(self._names[index], index=index)

    def strata(self) -> list[str] | None:
        """The class of each file; without classes its split."""
        if self._labels is None:
            return self._splits
        return [self.facts["classes"][number] for number in self._labels]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"repair": None}

    def write(self, folder: Path) -> list[str]:
        """Copy what can be used into an empty folder; needs a source that was scanned at full depth."""
        repair, layout = self.repair, self.repair.layout
        reasons = _left_out(repair)
        filled = {(split, label) for split, label, _ in layout.entries}
        used = {(split, label) for split, label, name in layout.entries if name not in reasons}
        lost = {key for key in layout.folders if key in filled - used or key[1] not in layout.classes}
        for key, paths in layout.folders.items():
            for path in paths if key not in lost else ():
                (folder / path).mkdir(parents=True, exist_ok=True)
        changes = []
        # Files that keep their names come first, so that no renamed file takes the name of another.
        for entry in sorted(layout.entries, key=lambda entry: entry.name in repair.suffixes):
            if entry.name in reasons:
                changes.append(f"left out {entry.name}: {reasons[entry.name]}")
            else:
                changes += copy_file(self._files, entry.name, folder, repair.suffixes.get(entry.name))
        gone = {path for key in lost for path in layout.folders[key]}
        depth = 1 if NO_SPLIT in layout.splits else 2
        for name in layout.others:
            if "/".join(name.split("/")[:depth]) not in gone:
                changes += copy_file(self._files, name, folder)
        changes += [f"left out the folder {path}: nothing in it is kept" for path in sorted(gone)]
        for label in sorted({label for _, label in lost} - {label for _, label in layout.folders.keys() - lost}):
            changes.append(f"left out the class {label!r}: the number of every class after it is one less")
        return changes


def _left_out(repair: Repair) -> dict[str, str]:
    """The reason for each file that is left out; what is unusable may leave train without a class."""
    entries, classes = repair.layout.entries, {*repair.layout.classes, NO_CLASS}
    reasons = {name: f"{issue.type.meaning}: {issue.message}" for name, issue in repair.damaged.items()}
    reasons |= {name: f"same bytes as {original}, in another split" for name, original in repair.leaks.items()}
    reasons |= {name: f"unknown class {label!r}" for _, label, name in entries if label not in classes}
    trained = {label for split, label, name in entries if split == "train" and name not in reasons}
    for _, label, name in entries if trained else ():
        if label not in trained:
            reasons.setdefault(name, f"train has no class {label!r}")
    return reasons


def copy_file(files: Files, name: str, folder: Path, suffix: str | None = None) -> list[str]:
    """Copy one file, with another suffix if one is given; returns what changed."""
    target = folder / (PurePosixPath(name).with_suffix(suffix) if suffix else name)
    stem, number = target.stem, 2
    while target.exists():
        target = target.with_stem(f"{stem}-{number}")
        number += 1
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with files.open(name) as stream, target.open("wb") as copy:
            shutil.copyfileobj(stream, copy, 1 << 20)
    except SampleError as error:
        return [f"left out {name}: {error.issue.message}"]
    return [] if target.name == PurePosixPath(name).name else [f"renamed {name} to {target.name}"]
