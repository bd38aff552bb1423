# SPDX-License-Identifier: Apache-2.0
"""Finished blocks on disk: an interrupted run continues after the last one, and checkpoint writers read from here.

Every file appears at once, under its final name. A journal belongs to one job: model, data, settings and versions that
decide the bytes of the result.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from fewbit.checkpoints._weights import read_header, read_tensor
from fewbit.errors import UsageError
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.ops import is_numpy
from fewbit.numerics.qtensor import QTensor

_JOB = "job.json"


class Journal:
    """Quantized tensors and facts by block.

    Args:
        folder: made if it does not exist.
        job: what decides the result, as plain values.

    Raises:
        UsageError: the folder belongs to another job.
    """

    def __init__(self, folder: Path, job: Mapping[str, Any]):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        job = orjson.loads(orjson.dumps(job, option=orjson.OPT_SORT_KEYS))
        file = folder / _JOB
        if not file.exists():
            _write(file, orjson.dumps(job, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2))
            return
        earlier = orjson.loads(file.read_bytes())
        if earlier != job:
            keys = sorted(key for key in {*earlier, *job} if earlier.get(key) != job.get(key))
            changes = "; ".join(f"{key}: {earlier.get(key)!r}, now {job.get(key)!r}" for key in keys[:4])
            raise UsageError(
                f"the interrupted run in {folder.parent} had other settings: {changes}", code="resume-mismatch",
                param="resume", expected="the command of the interrupted run",
                hint="the earlier settings, another {output}, or {resume=False} to start again",
            )  # fmt: skip

    def blocks(self) -> int:
        """How many blocks are finished, counted from the first."""
        count = 0
        while (self.folder / _name(count)).exists():
            count += 1
        return count

    def read(self, block: int) -> tuple[dict[str, QTensor], dict[str, Any]]:
        """The quantized weights of a block by layer, and its facts."""
        file = self.folder / _name(block)
        header = read_header(file)
        entry = orjson.loads(header["__metadata__"]["fewbit"])
        return {layer: _read(file, header, layer, layout) for layer, layout in entry["layers"].items()}, entry["facts"]

    def tensors(self) -> JournalTensors:
        """All finished layers, read one at a time."""
        return JournalTensors(self.folder, self.blocks())

    def remove(self) -> None:
        """Delete it: the result is complete."""
        shutil.rmtree(self.folder)

    def write(self, block: int, tensors: Mapping[str, QTensor], facts: Mapping[str, Any]) -> None:
        """Store a finished block."""
        from safetensors.torch import save

        arrays: dict[str, Any] = {}
        layers = {}
        for layer, tensor in tensors.items():
            stored = tensor.tensors()
            arrays |= {f"{layer}|{name}": _torch(array) for name, array in stored.items()}
            layers[layer] = {
                "grid": tensor.grid.to_dict(), "shape": tensor.shape, "block": tensor.block, "arrays": list(stored)
            }  # fmt: skip
        entry = orjson.dumps({"layers": layers, "facts": facts}).decode()
        _write(self.folder / _name(block), save(arrays, metadata={"fewbit": entry}))


class JournalTensors(Mapping[str, QTensor]):
    """Quantized weights by layer, read when asked for."""

    def __init__(self, folder: Path, blocks: int):
        self._layouts: dict[str, tuple[Path, dict[str, Any], dict[str, Any]]] = {}
        for block in range(blocks):
            file = folder / _name(block)
            header = read_header(file)
            for layer, layout in orjson.loads(header["__metadata__"]["fewbit"])["layers"].items():
                self._layouts[layer] = (file, header, layout)

    def __getitem__(self, layer: str) -> QTensor:
        file, header, layout = self._layouts[layer]
        return _read(file, header, layer, layout)

    def __iter__(self) -> Iterator[str]:
        return iter(self._layouts)

    def __len__(self) -> int:
        return len(self._layouts)


def _read(file: Path, header: Mapping[str, Any], layer: str, layout: Mapping[str, Any]) -> QTensor:
    arrays = {name: read_tensor(file, header[f"{layer}|{name}"]) for name in layout["arrays"]}
    grid = QuantizationGrid.from_dict(layout["grid"])
    return QTensor.from_tensors(grid, tuple(layout["shape"]), tuple(layout["block"]), arrays)


def _name(block: int) -> str:
    return f"block-{block:05}.safetensors"


def _torch(array: Any) -> Any:
    import torch

    tensor = torch.from_numpy(array) if is_numpy(array) else array.detach().cpu().contiguous()
    return tensor if tensor.ndim else tensor.clone()  # layers may share a global scale, a file may not


def _write(file: Path, content: bytes) -> None:
    """All or nothing, and on disk before the name appears."""
    partial = file.with_name(f"{file.name}.tmp")
    with partial.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(file)
