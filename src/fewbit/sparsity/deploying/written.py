# SPDX-License-Identifier: Apache-2.0
"""What was written of a model, under which names."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fewbit.sparsity import compact

ONNX, ARCHIVE, PROGRAM = "model.onnx", "model.compact.safetensors", "model.pt2"


@dataclass
class Written:
    """What was written of a model.

    Args:
        kind: `onnx`, `fewbit` or `huggingface`: what is run.
        checks: by file, how far its answers are from the model's in memory.
        notes: what was not written, and why.
        code: whether somebody has to give the code that builds it.
        quantized: whether weights are codes.
        onnx: what runs in an ONNX file that was made of a module with codes, and how fast.
        speed: what may be said of that, a sentence each.
        bfloat16: whether it takes such inputs, which the files of samples hold as float32.
    """

    kind: str
    checks: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)
    code: bool = False
    quantized: bool = False
    onnx: dict[str, Any] = field(default_factory=dict)
    speed: list[str] = field(default_factory=list)
    bfloat16: bool = False


def pack(folder: Path, written: Written) -> None:
    """Write the archive beside an ONNX file, where it is smaller."""
    sizes = compact.pack(folder / ONNX, folder / ARCHIVE)
    if sizes["stored_bytes"] < sizes["dense_bytes"]:
        return
    (folder / ARCHIVE).unlink()
    written.notes.append(("archive-not-written", "without zeros the model would not be smaller"))
