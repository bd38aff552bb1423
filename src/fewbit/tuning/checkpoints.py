# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on disk: each there whole or not at all, the one before kept until the next one is complete.

```
checkpoints/step-00000120/state.safetensors   weights that learn, buffers, the optimizer's moments
                          state.json          step, place in the data, best so far, scaler, random states
            best/…                            the weights of the best evaluation
```

Nothing is pickled. A folder is filled under a hidden name, its files are on disk, then it is renamed; what a process
that was killed left half done is swept away by the next one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from safetensors.torch import load_file, save_file
from torch import Tensor

from fewbit.errors import DataError

_STATE, _TENSORS, _STEP = "state.json", "state.safetensors", "step-"


class Checkpoints:
    """The checkpoints of a run.

    Args:
        folder: where they lie; made when there is one.
        keep: how many stay.
    """

    def __init__(self, folder: Path, keep: int = 1):
        self._folder, self._keep = folder, keep

    def save(self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
        """Write a checkpoint, then delete those that are one too many."""
        made = self._write(f"{_STEP}{step:08}", tensors, state)
        for old in self.steps()[: -self._keep]:
            shutil.rmtree(old)
        return made

    def save_best(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
        """Write the best weights so far, in the place of those before."""
        return self._write("best", tensors, state)

    def steps(self) -> list[Path]:
        """The complete checkpoints, the oldest first."""
        return sorted(path for path in self._folder.glob(f"{_STEP}*") if (path / _STATE).is_file())

    def last(self) -> Path | None:
        """The last complete checkpoint."""
        found = self.steps()
        return found[-1] if found else None

    @property
    def best(self) -> Path:
        """Where the best weights are."""
        return self._folder / "best"

    def sweep(self) -> None:
        """Take away what a process that was killed left half done."""
        for path in self._folder.glob(".*"):
            if path.name.startswith(".old-") and not (self._folder / path.name.removeprefix(".old-")).exists():
                path.rename(self._folder / path.name.removeprefix(".old-"))  # killed between two renames
            else:
                shutil.rmtree(path)

    def _write(self, name: str, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        made, place, old = (self._folder / each for each in (f".new-{name}", name, f".old-{name}"))
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        save_file(_apart(tensors), made / _TENSORS)
        (made / _STATE).write_bytes(orjson.dumps(state, option=orjson.OPT_SERIALIZE_NUMPY))
        for file in (made / _TENSORS, made / _STATE, made):
            _to_disk(file)
        if place.exists():
            shutil.rmtree(old, ignore_errors=True)
            place.rename(old)
        made.rename(place)
        _to_disk(self._folder)
        shutil.rmtree(old, ignore_errors=True)
        return place


def step_of(place: Path) -> int:
    """Which step a checkpoint is of.

    >>> step_of(Path("checkpoints/step-00000120"))
    120
    """
    return int(place.name.removeprefix(_STEP))


def read(place: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the state of a checkpoint.

    Raises:
        DataError: files that are damaged.
    """
    try:
        return load_file(place / _TENSORS), orjson.loads((place / _STATE).read_bytes())
    except Exception as error:  # whatever a damaged file makes the library raise
        raise DataError(
            f"the checkpoint cannot be read: {type(error).__name__}: {str(error)[:200]}",
            code="checkpoint",
            where=place,
            expected="a checkpoint as it was written",
            try_="delete it; the run goes on from the one before, or from the beginning",
        ) from error


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors on the CPU, each with memory of its own, which the format asks for; copied only where it is not so."""
    found: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        memory = tensor.untyped_storage()
        if memory.data_ptr() in taken or memory.nbytes() != tensor.nbytes:
            tensor = tensor.clone()
        taken.add(tensor.untyped_storage().data_ptr())
        found[name] = tensor
    return found


def _to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, would survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
