# SPDX-License-Identifier: Apache-2.0
"""`.npz` and `.npy` files: one sample each, or a stack along the first axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fewbit.data.types import (
    DataReport,
    Depth,
    Detection,
    Files,
    Format,
    Issue,
    IssueType,
    Location,
    Sample,
    SampleError,
    Severity,
)

ARRAY_UNREADABLE = IssueType(
    "array-unreadable", Severity.ERROR, "array file that cannot be read", "write it again with numpy.savez", "raise",
    ("drop",), "leaves the file out",
)  # fmt: skip
_SUFFIXES = (".npz", ".npy")


def detect(files: Files) -> Detection | None:
    """Folders of `.npz` or `.npy` files."""
    names = files.names()
    arrays = [name for name in names if name.lower().endswith(_SUFFIXES)]
    return Detection(0.9 * len(arrays) / len(names), f"{len(arrays)} array files") if arrays else None


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> NpzSource:
    """Index the files; with `full` depth also read each."""
    source = NpzSource(files, [name for name in files.names() if name.lower().endswith(_SUFFIXES)])
    if depth == "full":
        for index in range(len(source)):
            try:
                source[index]
            except SampleError as error:
                report.add(error.issue.type, error.issue.message, error.issue.location)
    return source


class NpzSource:
    """One sample per file."""

    def __init__(self, files: Files, names: Sequence[str]):
        self._files, self._names = files, names
        self.facts: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Sample:
        name = self._names[index]
        try:
            with self._files.open(name) as stream:
                loaded = np.load(stream, allow_pickle=False)
                if isinstance(loaded, np.ndarray):
                    return {"array": loaded}
                return {key: loaded[key] for key in loaded.files}
        except (ValueError, OSError, EOFError, KeyError) as error:
            raise SampleError(Issue(ARRAY_UNREADABLE, str(error), Location(name, index=index))) from error

    def location(self, index: int) -> Location:
        """The file."""
        return Location(self._names[index], index=index)

    def strata(self) -> None:
        """Nothing is known."""
        return


def example(folder: Path) -> Path:
    """Twelve samples of one input."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(12):
        np.savez(folder / f"input{index}.npz", x=np.full((3, 4), index, np.float32))
    return folder


FORMAT = Format(
    "npz", "npz and npy files", "one .npz per sample, arrays named as the model's inputs", (ARRAY_UNREADABLE,),
    detect, scan, example,
)  # fmt: skip
