# SPDX-License-Identifier: Apache-2.0
"""The samples of class folders, and a repaired copy: what cannot be used left out, the rest byte for byte.

A class folder that loses its last file goes too: it would stay behind as a class that shifts the number of every class
after it. A class folder that was empty before keeps its place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from fewbit.data.images.class_folders import ClassFolders, LabeledFile
from fewbit.data.images.file_source import FileSource, copy_file
from fewbit.data.types import Files, Issue, Location, Sample


class LabeledFiles(FileSource):
    """One sample per file: what `decode` makes of it, and a `label` if there are classes."""

    def __init__(
        self,
        files: Files,
        entries: Iterable[LabeledFile],
        classes: Sequence[str],
        task: str,
        decode: Callable[[BinaryIO, Location], Sample],
    ):
        super().__init__(files, entries, {"classes": list(classes), "task": task if classes else None})
        self._decode = decode
        self._numbers = {label: number for number, label in enumerate(classes)}

    def __getitem__(self, index: int) -> Sample:
        entry = self.entries[index]
        with self.files.open(entry.name) as stream:
            sample = self._decode(stream, self.location(index))
        return sample if entry.label is None else sample | {"label": self._numbers[entry.label]}

    def strata(self) -> Sequence[Any] | None:
        """The class of each file; without classes its split."""
        return [entry.label for entry in self.entries] if self._numbers else super().strata()


class ClassFolderSource(LabeledFiles):
    """The files of class folders."""

    def __init__(self, files: Files, layout: ClassFolders, task: str, decode: Callable[[BinaryIO, Location], Sample]):
        super().__init__(files, layout.selected, layout.classes, task, decode)
        self.layout: ClassFolders | None = layout
        self._reasons: dict[str, str] = {}  # for each file that a repaired copy leaves out
        self._suffixes: Mapping[str, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"layout": None}  # workers do not repair

    def repair(
        self, damaged: Mapping[str, Issue], leaks: Mapping[str, str], suffixes: Mapping[str, str] | None = None
    ) -> None:
        """Note what a full check found, for `write`: damaged files, copies in a later split, suffixes to correct."""
        self._reasons = {name: f"{issue.type.meaning}: {issue.message}" for name, issue in damaged.items()}
        self._reasons |= {name: f"same bytes as {original}, in another split" for name, original in leaks.items()}
        self._suffixes = suffixes or {}

    def write(self, folder: Path) -> list[str]:
        """Copy what can be used into an empty folder; needs a source that was scanned at full depth."""
        layout = self.layout
        assert layout is not None
        reasons = self._left_out(layout)
        filled = {(entry.split, entry.label) for entry in layout.entries}
        used = {(entry.split, entry.label) for entry in layout.entries if entry.name not in reasons}
        lost = {key for key in layout.folders if key in filled - used or key[1] not in layout.classes}
        for key, paths in layout.folders.items():
            for path in paths if key not in lost else ():
                (folder / path).mkdir(parents=True, exist_ok=True)
        changes = []
        # Files that keep their names come first, so that no renamed file takes the name of another.
        for entry in sorted(layout.entries, key=lambda entry: entry.name in self._suffixes):
            if entry.name in reasons:
                changes.append(f"left out {entry.name}: {reasons[entry.name]}")
                continue
            suffix = self._suffixes.get(entry.name)
            target = str(PurePosixPath(entry.name).with_suffix(suffix)) if suffix else None
            changes += copy_file(self.files, entry.name, folder, target)
        gone = {path for key in lost for path in layout.folders[key]}
        depth = 2 if layout.splits else 1
        for name in layout.others:
            if "/".join(name.split("/")[:depth]) not in gone:
                changes += copy_file(self.files, name, folder)
        changes += [f"left out the folder {path}: nothing in it is kept" for path in sorted(gone)]
        return changes + _lost_classes(layout, lost)

    def _left_out(self, layout: ClassFolders) -> dict[str, str]:
        """The reason for each file that is left out; what is unusable may leave train without a class."""
        reasons, entries = dict(self._reasons), [entry for entry in layout.entries if entry.label is not None]
        classes = set(layout.classes)
        reasons |= {entry.name: f"unknown class {entry.label!r}" for entry in entries if entry.label not in classes}
        trained = {entry.label for entry in entries if entry.split == "train" and entry.name not in reasons}
        for entry in entries if trained else ():
            if entry.label not in trained:
                reasons.setdefault(entry.name, f"train has no class {entry.label!r}")
        return reasons


def _lost_classes(layout: ClassFolders, lost: Collection[tuple[str | None, str]]) -> list[str]:
    labels = {label for _, label in lost} - {label for _, label in layout.folders.keys() - lost}
    return [f"left out the class {label!r}: the number of every class after it is one less" for label in sorted(labels)]
