# SPDX-License-Identifier: Apache-2.0
"""A folder of numbered sample files: nothing foreign is touched, nothing half-written stays, nothing old mixes in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.arrays.npz_writer import write_npz
from fewbit.data.capturing import manifest
from fewbit.data.walk import ignored
from fewbit.errors import UsageError

WIDTH = 8
"""Digits in a file name when the number of samples is not known beforehand."""


class SampleFolder:
    """Where the samples of one run go.

    Args:
        folder: made when it is not there.
        width: digits in the file names, enough that sorting by text is sorting by number.
        outputs: keep a second file a sample, for what the model returned: inputs then go to `sample-inputs/`, outputs
            to `sample-outputs/`, both under the same number.
        overwrite: remove the files of an earlier run first, those and no others.
        append: go on after the files of an earlier run.

    Attributes:
        earlier: the manifest of the run that this one goes on after.
        start: the number of the first file of this run.
        digests: the SHA-256 of each of its files, by slot.

    Raises:
        UsageError: the folder holds something else, or an earlier run and neither option is set, or cannot be made.
    """

    def __init__(self, folder: str | Path, *, width: int = WIDTH, outputs: bool = False, overwrite: bool, append: bool):
        if overwrite and append:
            raise UsageError("overwrite and append contradict one another", try_="choose one")
        self.folder = Path(folder)
        self.outputs = outputs
        self.earlier = self._prepare(overwrite, append)
        self.start = len(self.earlier["files"]) if self.earlier else 0
        self.width = int(self.earlier["width"]) if self.earlier else width
        self.digests: dict[int, str] = {}
        self.output_digests: dict[int, str] = {}
        try:
            for output in (False, True) if outputs else (False,):
                self.path(0, output=output).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"the folder cannot be made: {error.strerror}", where=self.folder, try_="a folder you may write to"
            ) from None

    def path(self, slot: int, *, output: bool = False) -> Path:
        """The file of a slot of this run."""
        kind = "output" if output else "input"
        name = f"{kind}{self.start + slot:0{self.width}d}.npz"
        return self.folder / f"sample-{kind}s" / name if self.outputs else self.folder / name

    def paths(self) -> list[Path]:
        """The input files of this run, in order."""
        return [self.path(slot) for slot in self.digests]

    def write(self, slot: int, arrays: Mapping[str, NDArray[Any]], *, output: bool = False) -> None:
        """Write one sample, or what the model returned for it; a slot taken before is replaced."""
        path = self.path(slot, output=output)
        write_npz(path, {name: _row_by_row(array) for name, array in arrays.items()})
        (self.output_digests if output else self.digests)[slot] = manifest.digest(path)

    def adopt(self, path: Path) -> None:
        """Take a finished sample file as the next one: linked where the disk allows it, else copied."""
        target = self.path(len(self.digests))
        temporary = target.with_name(f".tmp-{os.getpid()}-{target.name}")
        try:
            os.link(path, temporary)
        except OSError:
            shutil.copyfile(path, temporary)
        os.replace(temporary, target)
        self.digests[len(self.digests)] = manifest.digest(target)

    def files(self) -> list[dict[str, Any]]:
        """One entry a sample for the manifest, those of an earlier run first."""
        entries = [dict(entry) for entry in self.earlier["files"]] if self.earlier else []
        for slot, sha256 in self.digests.items():
            entry = {"file": self._relative(self.path(slot)), "sha256": sha256}
            if slot in self.output_digests:
                entry["output"] = self._relative(self.path(slot, output=True))
                entry["output_sha256"] = self.output_digests[slot]
            entries.append(entry)
        return entries

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _prepare(self, overwrite: bool, append: bool) -> dict[str, Any] | None:
        """Make room for this run, or refuse; returns the manifest to go on after."""
        if self.folder.exists() and not self.folder.is_dir():
            raise UsageError(f"{self.folder} is a file", expected="a folder, or a path where none is yet")
        earlier = manifest.read_manifest(self.folder)
        if earlier is None:
            self._refuse_foreign()
        elif append:
            self._check_appendable(earlier)
            return earlier
        elif overwrite or not (earlier["files"] or self._numbered()):  # a run that got nothing is no obstacle
            self._clear(earlier)
        else:
            raise UsageError(
                "the folder is not empty: it holds an earlier capture",
                where=self.folder,
                expected="an empty or new folder",
                try_="another folder, overwrite=True or append=True",
            )
        return None

    def _refuse_foreign(self) -> None:
        names = sorted(name for name in os.listdir(self.folder) if not ignored(name)) if self.folder.is_dir() else []
        if names:
            raise UsageError(
                f"the folder is not empty: {', '.join(names[:4])}{' …' if len(names) > 4 else ''}",
                where=self.folder,
                expected="an empty or new folder; it has no manifest of an earlier capture",
                try_="another folder, or empty this one yourself",
            )

    def _check_appendable(self, earlier: dict[str, Any]) -> None:
        listed = manifest.listed(earlier)
        stray = [path.name for path in self._numbered() if self._relative(path) not in listed]
        if stray or bool(earlier.get("outputs")) != self.outputs:
            raise UsageError(
                f"the earlier capture was cut off: {stray[0]} is not in its manifest"
                if stray
                else "the earlier capture was made with another setting of outputs",
                where=self.folder,
                try_="overwrite=True, or another folder",
            )

    def _clear(self, earlier: dict[str, Any]) -> None:
        """Remove an earlier run: what its manifest lists, and the numbered files of one that was cut off."""
        root = self.folder.resolve()
        ours = [self.folder / name for name in manifest.listed(earlier)]
        if not earlier["complete"]:
            ours += self._numbered()
        foreign = sorted({*self.folder.glob("*.np[yz]")} - {*ours})
        if foreign:
            raise UsageError(
                f"{len(foreign)} sample files here were not written by capture and would mix in: {foreign[0].name} …",
                where=self.folder,
                try_="another folder, or move them away",
            )
        for path in ours:
            if path.resolve().is_relative_to(root):  # not through a link to somewhere else
                path.unlink(missing_ok=True)
        (self.folder / manifest.NAME).unlink(missing_ok=True)

    def _numbered(self) -> list[Path]:
        """Files that bear the names this class gives."""
        found = [*self.folder.glob("*.npz"), *self.folder.glob("sample-*puts/*.npz")]
        return [path for path in found if manifest.is_sample_name(self._relative(path))]


def _row_by_row(array: NDArray[Any]) -> NDArray[Any]:
    """The array in C order, so that channels-last memory and views give the same file as plain tensors."""
    return np.ascontiguousarray(array).reshape(array.shape)
