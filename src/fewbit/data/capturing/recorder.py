# SPDX-License-Identifier: Apache-2.0
"""From calls of one module to sample files: `take` before the call, `keep` after it, `finish` at the end.

A call is copied to the host before the module sees it, because a module may change its inputs in place, and
written after it, so that a call the module refuses leaves no sample. Nothing else is held in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.arrays.tensor_to_array import source_dtype, to_array
from fewbit.data.capturing import manifest
from fewbit.data.capturing.batch_axis import BatchAxes, Column, Declared
from fewbit.data.capturing.binding import Binder, describe_call, innermost
from fewbit.data.capturing.choosing import Choice
from fewbit.data.capturing.leaves import Leaf, gather
from fewbit.data.capturing.naming import Naming
from fewbit.data.capturing.notes import Notes
from fewbit.data.capturing.outputs import output_columns
from fewbit.data.capturing.sample_folder import WIDTH, SampleFolder
from fewbit.errors import DataError, UsageError


@dataclass(frozen=True, slots=True)
class Settings:
    """How to record; see `capture` for what each one means."""

    names: Any = None
    max_samples: int | None = None
    batch_dim: Declared | Mapping[str, Declared] = 0
    outputs: bool = False
    seed: int | None = None
    unique: bool = False
    bfloat16: str = "float32"
    overwrite: bool = False
    append: bool = False

    def __post_init__(self) -> None:
        if self.bfloat16 not in ("float32", "uint16"):
            raise UsageError(f"bfloat16 is {self.bfloat16!r}", expected="'float32' or 'uint16'")
        Choice(self.max_samples, self.seed)


@dataclass(slots=True)
class Batch:
    """One call on the host: the number of samples, and the inputs under the names to write."""

    count: int
    columns: dict[str, Column]


class Recorder:
    """Records one module into one folder.

    Args:
        module: whose `forward` names the inputs.
        folder: where the samples go.
        settings: how.
        layer: the module's name inside the model, when it is not the model itself.
    """

    def __init__(self, module: Any, folder: str | Path, settings: Settings, layer: str | None = None):
        self._settings = settings
        inner = innermost(module)
        self._source = {"model": f"{type(inner).__module__}.{type(inner).__qualname__}", "layer": layer}
        self._notes = Notes()
        self._binder = Binder(inner.forward)
        self._axes = BatchAxes(settings.batch_dim, self._notes.add)
        self._naming = Naming(settings.names, self._binder.parameters, self._notes.add)
        self._choice = Choice(settings.max_samples, settings.seed)
        self._inputs: dict[str, dict[str, Any]] = {}
        self._seen: set[bytes] = set()
        self.calls = self.failed = self.skipped = 0
        digits = WIDTH if settings.max_samples is None else max(4, len(str(settings.max_samples - 1)))
        self.folder = SampleFolder(
            folder, width=digits, outputs=settings.outputs, overwrite=settings.overwrite, append=settings.append
        )
        manifest.write_manifest(self.folder.folder, self.describe(self.folder, complete=False))

    @property
    def count(self) -> int:
        """Samples kept in this run."""
        return len(self.folder.digests)

    @property
    def full(self) -> bool:
        """No further sample will be kept."""
        return self._choice.full

    def take(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Batch | None:
        """Copy a call to the host; `None` when nothing of it will be kept."""
        self.calls += 1
        if self.full:
            return None
        arguments = self._binder.bind(args, kwargs)
        found = gather(arguments, self._axes.is_list)
        if self.calls == 1:
            known = {*arguments, *self._binder.parameters, *(leaf.name for leaf in found.data)}
            self._axes.check_names(known)
        self._notes.constants(found.constants)
        if all(leaf.number for leaf in found.data):
            raise DataError(
                "the model was called without a tensor, so there is nothing to capture",
                where=f"call {self.calls}",
                expected="at least one tensor or array, at any depth",
                try_=f"look at the call: it got {describe_call(args, kwargs)}",
            )
        plain = [leaf for leaf in found.data if leaf.rows is None]
        lists = {leaf.name: len(leaf.rows) for leaf in found.data if leaf.rows is not None}
        count, axes = self._axes.assign({leaf.name: leaf.shape for leaf in plain}, lists)
        names = self._naming.assign([leaf.name for leaf in found.data])
        self._check_appended(names)
        by_name = {leaf.name: leaf for leaf in found.data}
        columns = {written: self._column(by_name[name], axes.get(name), written) for name, written in names.items()}
        if count == 0:
            self._notes.add("empty-call", "a call had no samples: its batch axis is 0", f"call {self.calls}")
        return Batch(count, columns)

    def keep(self, batch: Batch, result: Any) -> None:
        """Write the samples of a call that the module has answered."""
        answers = (
            output_columns(result, batch.count, self._settings.bfloat16, self._notes) if self.folder.outputs else {}
        )
        for row in range(batch.count):
            sample = {name: column.row(row) for name, column in batch.columns.items()}
            if self._settings.unique and self._is_repeated(sample):
                self.skipped += 1
                continue
            slot = self._choice.slot()
            if slot is None:
                continue
            self.folder.write(slot, sample)
            if self.folder.outputs:
                self.folder.write(slot, {name: column.row(row) for name, column in answers.items()}, output=True)

    def finish(self, error: BaseException | None = None) -> dict[str, Any]:
        """Read every header back, write the manifest and return it.

        Args:
            error: what ended the run early, if anything did; the manifest then says `complete: false`.
        """
        content = self.describe(self.folder, complete=error is None, error=error)
        manifest.write_manifest(self.folder.folder, content)
        return content

    def describe(self, folder: SampleFolder, *, complete: bool, error: BaseException | None = None) -> dict[str, Any]:
        """The manifest of a folder that holds what was recorded."""
        earlier: dict[str, Any] = folder.earlier or {}
        files = folder.files()
        inputs = manifest.survey(folder.folder / entry["file"] for entry in files)
        for name, entry in inputs.items():
            entry |= {**earlier.get("inputs", {}).get(name, {}), **entry, **self._inputs.get(name, {})}
            if entry["count"] < len(files):
                self._notes.add("input-not-in-all", f"only {entry['count']} of {len(files)} samples have it", name)
            if entry["shape"] is None:
                reason = "its samples differ in their number of axes: was a call made without the batch axis?"
                self._notes.add("rank-varies", reason, name)
        if self.failed:
            reason = f"{self.failed} calls ended in an error; their samples are left out"
            self._notes.add("call-failed", reason, "model")
        answers = (folder.folder / entry["output"] for entry in files if "output" in entry)
        return {
            "format": manifest.FORMAT,
            "version": 1,
            "complete": complete,
            "error": None if error is None else f"{type(error).__name__}: {error}",
            **self._source,
            "names_from": self._naming.source,
            "count": len(files),
            "seen": earlier.get("seen", 0) + self._choice.offered + self.skipped,
            "duplicates": manifest.duplicates(entry["sha256"] for entry in files),
            "skipped_duplicates": earlier.get("skipped_duplicates", 0) + self.skipped,
            "max_samples": self._settings.max_samples,
            "seed": self._settings.seed,
            "inputs": inputs,
            "outputs": manifest.survey(answers) if folder.outputs else None,
            "not_captured": {**earlier.get("not_captured", {}), **self._notes.not_captured},
            "notes": [*earlier.get("notes", []), *self._notes.lines],
            "width": folder.width,
            "files": files,
            "versions": manifest.made_with(),
        }

    def _column(self, leaf: Leaf, axis: int | None, written: str) -> Column:
        policy = self._settings.bfloat16
        first = leaf.value if leaf.rows is None else next(iter(leaf.rows), np.zeros(0))
        self._inputs.setdefault(
            written,
            {
                "argument": leaf.name,
                "batch_axis": "list" if leaf.rows is not None else axis,
                "source_dtype": source_dtype(np.asarray(first) if isinstance(first, int | float) else first),
            },
        )
        if leaf.rows is not None:
            return Column(None, rows=[to_array(row, bfloat16=policy, name=leaf.name) for row in leaf.rows])
        array = to_array(leaf.value, bfloat16=policy, name=leaf.name)
        return Column(axis, self._naming.cast(written, array))

    def _check_appended(self, names: Mapping[str, str]) -> None:
        earlier = self.folder.earlier
        if earlier and earlier["inputs"] and {*earlier["inputs"]} != {*names.values()}:
            raise DataError(
                f"these samples have the inputs {', '.join(names.values())}",
                where=self.folder.folder,
                expected=f"those of the samples already there: {', '.join(earlier['inputs'])}",
                try_="another folder",
            )

    def _is_repeated(self, sample: Mapping[str, NDArray[Any]]) -> bool:
        content = hashlib.blake2b(digest_size=16)
        for name, array in sample.items():
            content.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
            content.update(np.ascontiguousarray(array).tobytes())
        key = content.digest()
        repeated = key in self._seen
        self._seen.add(key)
        return repeated
