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
        start: the number of the first file of this run.
        digests: the SHA-256 of each of its files, by slot.
    """

    def __init__(self, folder: str | Path, *, width: int = WIDTH, outputs: bool = False, overwrite: bool, append: bool):
        if overwrite and append:
            raise UsageError("overwrite and append contradict one another", try_="choose one")
        self.folder = Path(folder)
        self.outputs = outputs
        if self.folder.exists() and not self.folder.is_dir():
            raise UsageError(f"{self.folder} is a file", expected="a folder, or a path where none is yet")
        earlier = manifest.read_manifest(self.folder)
        if overwrite:
            self._clear(earlier)
        elif not append or earlier is None:
            self._refuse_if_filled(earlier, append)
        self.earlier = earlier if append else None
        if self.earlier is not None:
            self._check_appendable(self.earlier)
        self.start = len(self.earlier["files"]) if self.earlier else 0
        self.width = int(self.earlier["width"]) if self.earlier else width
        self.digests: list[str] = []
        self.output_digests: dict[int, str] = {}
        for path in {self.path(0).parent, self.path(0, output=True).parent} if outputs else {self.folder}:
            path.mkdir(parents=True, exist_ok=True)

    def path(self, slot: int, *, output: bool = False) -> Path:
        """The file of a slot of this run."""
        number = f"{self.start + slot:0{self.width}d}.npz"
        if not self.outputs:
            return self.folder / f"input{number}"
        return (
            self.folder
            / ("sample-outputs" if output else "sample-inputs")
            / f"{'output' if output else 'input'}{number}"
        )

    def paths(self) -> list[Path]:
        """The input files of this run, in order."""
        return [self.path(slot) for slot in range(len(self.digests))]

    def write(self, slot: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write one sample; a slot taken before is replaced."""
        path = self.path(slot)
        write_npz(path, {name: _row_by_row(array) for name, array in arrays.items()})
        self._keep(slot, manifest.digest(path))

    def write_output(self, slot: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write what the model returned for the sample in a slot."""
        path = self.path(slot, output=True)
        write_npz(path, {name: _row_by_row(array) for name, array in arrays.items()})
        self.output_digests[slot] = manifest.digest(path)

    def adopt(self, path: Path) -> None:
        """Take a finished sample file as the next one: linked where the disk allows it, else copied."""
        target = self.path(len(self.digests))
        temporary = target.with_name(f".tmp-{os.getpid()}-{target.name}")
        try:
            os.link(path, temporary)
        except OSError:
            shutil.copyfile(path, temporary)
        os.replace(temporary, target)
        self._keep(len(self.digests), manifest.digest(target))

    def _keep(self, slot: int, sha256: str) -> None:
        if slot == len(self.digests):
            self.digests.append(sha256)
        else:
            self.digests[slot] = sha256

    def files(self) -> list[dict[str, Any]]:
        """One entry a sample for the manifest, those of an earlier run first."""
        entries = [dict(entry) for entry in self.earlier["files"]] if self.earlier else []
        for slot, sha256 in enumerate(self.digests):
            entry = {"file": self._relative(self.path(slot)), "sha256": sha256}
            if slot in self.output_digests:
                entry["output"] = self._relative(self.path(slot, output=True))
                entry["output_sha256"] = self.output_digests[slot]
            entries.append(entry)
        return entries

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _refuse_if_filled(self, earlier: dict[str, Any] | None, append: bool) -> None:
        names = sorted(os.listdir(self.folder)) if self.folder.is_dir() else []
        files = (path for path in self.folder.rglob("*") if path.is_file() and path.name != manifest.NAME)
        got_nothing = earlier is not None and next(files, None) is None
        if names and not got_nothing:
            raise UsageError(
                f"the folder is not empty: {', '.join(names[:4])}{' …' if len(names) > 4 else ''}",
                where=self.folder,
                expected="a captured dataset with its manifest to append to" if append else "an empty or new folder",
                try_="another folder" if append else "another folder, overwrite=True or append=True",
            )

    def _check_appendable(self, earlier: dict[str, Any]) -> None:
        stray = [path.name for path in _numbered(self.folder) if self._relative(path) not in _listed(earlier)]
        if stray or bool(earlier.get("outputs")) != self.outputs:
            raise UsageError(
                f"the earlier capture was cut off: {stray[0]} is not in its manifest"
                if stray
                else "the earlier capture was made with another setting of outputs",
                where=self.folder,
                try_="overwrite=True, or another folder",
            )

    def _clear(self, earlier: dict[str, Any] | None) -> None:
        """Remove an earlier run: what its manifest lists, and the numbered files of one that was cut off."""
        if not self.folder.is_dir() or not os.listdir(self.folder):
            return
        if earlier is None:
            raise UsageError(
                "the folder has no manifest of an earlier capture, so nothing in it is removed",
                where=self.folder,
                try_="another folder, or empty this one yourself",
            )
        root = self.folder.resolve()
        ours = [self.folder / name for name in _listed(earlier)]
        if not earlier.get("complete"):
            ours += _numbered(self.folder)
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


def _row_by_row(array: NDArray[Any]) -> NDArray[Any]:
    """The array in C order, so that channels-last memory and views give the same file as plain tensors."""
    return np.ascontiguousarray(array).reshape(array.shape)


def _listed(content: Mapping[str, Any]) -> set[str]:
    return {entry[kind] for entry in content["files"] for kind in ("file", "output") if kind in entry}


def _numbered(folder: Path) -> list[Path]:
    """Files that bear the names this module gives."""
    found = [*folder.glob("*.npz"), *folder.glob("sample-*puts/*.npz")]
    return [path for path in found if manifest.is_sample_name(path.relative_to(folder).as_posix())]
