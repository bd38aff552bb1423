# SPDX-License-Identifier: Apache-2.0
"""What a process of part `onnx` of bench/sparsity.py does: one call of `fewbit.sparsify`, from files to a folder."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from sparsity_worker import HERE, by_place

_data = by_place("sparsity_data")


def sparsify(task: str, samples: int, asked: Any, folder: str) -> dict[str, Any]:
    """Seconds of the whole call, with checks, measuring and writing; where the file lies and what it weighs."""
    sys.path.append(str(HERE))  # at the end: files of that folder must not hide packages
    import onnx_tasks
    from fewbit.sparsity.recipe import Recipe
    from fewbit.sparsity.verb import sparsify as call

    one = onnx_tasks.task(task)
    place = Path(folder)
    given = _data.npz_folder(one.calibration[:samples], place / "samples")
    how: dict[str, Any] = {"recipe": Recipe.from_dict(asked)} if isinstance(asked, dict) else {"optim_level": asked}
    began = time.perf_counter()
    call(str(one.path), str(given), output=place / "made", samples=samples, **how)
    seconds = time.perf_counter() - began
    facts = json.loads((place / "made" / "record.json").read_text())["facts"]
    deployed = place / "made" / "deployment"
    archive = deployed / "model.compact.safetensors"
    return {
        "seconds": seconds,
        "path": str(deployed / "model.onnx"),
        "bytes": (deployed / "model.onnx").stat().st_size,
        "compact": archive.stat().st_size if archive.exists() else None,
        "zeros": facts["prune"]["share"] if "prune" in facts else facts["after"]["sparsity"]["share"],
        "speed": facts.get("speed"),
    }
