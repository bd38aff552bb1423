# SPDX-License-Identifier: Apache-2.0
"""Finished weights on disk, so that a run that was stopped goes on where it was.

A weight is two files: its codes, then a line of JSON with their hash, whose move into place is what commits it. So a
run that is killed at any moment leaves whole weights and perhaps a file that nobody counts. A journal lies under the
digest of everything the work depends on: the model, the data, the configuration, the versions. Another job has another.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson
import torch
from torch import Tensor

from fewbit.algorithms._base import Solution
from fewbit.data.tree import flatten
from fewbit.modules import tensor_file
from fewbit.modules.tensor_file import Entry
from fewbit.numerics.grid import Grid
from fewbit.numerics.qtensor import QTensor
from fewbit.record import versions, write_atomically


class Journal:
    """The finished weights of one job.

    Args:
        folder: where journals lie.
        digest: of the job.
    """

    def __init__(self, folder: Path, digest: str):
        self._folder = folder / digest[:32]
        self._folder.mkdir(parents=True, exist_ok=True)

    def read(self, name: str, grid: Grid, shape: tuple[int, ...], block: tuple[int, ...]) -> Solution | None:
        """A weight that was finished before; none if it was not, or not whole."""
        line = self._path(name, "json")
        if not line.is_file():
            return None
        content = orjson.loads(line.read_bytes())
        codes = self._path(name, "safetensors")
        if not codes.is_file() or hashlib.sha256(codes.read_bytes()).hexdigest() != content["sha256"]:
            return None
        stored = {
            part: tensor_file.Stored(codes.name, getattr(torch, kept["dtype"]), tuple(kept["shape"]), kept["sha256"])
            for part, kept in content["parts"].items()
        }
        parts = tensor_file.read(self._folder, stored)
        return Solution(QTensor.from_tensors(grid, shape, block, _own(parts)), content["facts"])

    def write(self, name: str, solution: Solution) -> None:
        """Commit a finished weight."""
        codes, line = self._path(name, "safetensors"), self._path(name, "json")
        line.unlink(missing_ok=True)
        codes.unlink(missing_ok=True)
        beside = codes.with_suffix(".part")
        beside.unlink(missing_ok=True)
        parts = solution.qtensor.tensors()
        entries = [Entry(part, x.dtype, tuple(x.shape), lambda x=x: x) for part, x in parts.items()]  # type: ignore[misc]
        kept = tensor_file.write(beside, entries)
        content = {
            "name": name,
            "sha256": hashlib.sha256(beside.read_bytes()).hexdigest(),
            "parts": {part: {**each.to_dict(), "file": codes.name} for part, each in kept.items()},
            "facts": solution.facts,
        }
        beside.replace(codes)
        write_atomically(line, orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY))

    def _path(self, name: str, kind: str) -> Path:
        return self._folder / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.{kind}"


def job_digest(model: str, items: Iterable[Any], facts: Mapping[str, Any]) -> str:
    """The digest of a job.

    Args:
        model: the model's.
        items: the data.
        facts: what else it depends on, as JSON values.
    """
    found = hashlib.sha256(model.encode())
    found.update(orjson.dumps({**facts, **versions(), "torch": torch.__version__}, option=orjson.OPT_SORT_KEYS))
    for item in items:
        for path, leaf in flatten(item):
            found.update(path.encode())
            found.update(tensor_file.digest(leaf).encode() if isinstance(leaf, Tensor) else repr(leaf).encode())
    return found.hexdigest()


def forget(folder: Path) -> None:
    """Remove the journals of a job that is done."""
    shutil.rmtree(folder, ignore_errors=True)


def _own(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors in memory of their own: the files they are mapped from will be gone."""
    return {name: part.clone() for name, part in parts.items()}
