# SPDX-License-Identifier: Apache-2.0
"""fewbit: its pruning stage. `auto` is what it does with nothing said; any other way is an algorithm's name."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from torch import Tensor

from fewbit.sparsity.job import Job
from fewbit.sparsity.stages import prune

STRUCTURES = {"half": "unstructured", "half_w4": "unstructured", "2of4": "2:4", "2of4_w4": "2:4"}
ENDS = ("lm_head", "model.embed_tokens")
AT_ONCE = {"cpu": 2, "cuda": 4}  # samples in an item


def quantize(model: Any, tokens: Tensor, *, format: str, way: str, folder: str) -> Any:
    """The linear layers of the blocks; embedding and head stay dense, as on every side."""
    device = model.device.type
    data = [{"input_ids": batch.to(device)} for batch in tokens.split(AT_ONCE[device])]
    narrow: dict[str, Any] = {"quantize": "int4_sym", "group_size": 64} if format.endswith("_w4") else {}
    algorithm = None if way == "auto" else way
    settings = prune.Settings(
        sparsity=0.5, structure=STRUCTURES[format], algorithm=algorithm, ignore=ENDS[:1], **narrow
    )
    job = Job("one-shot", None, None, dense=model, data=data, calibration=data, samples=len(tokens))
    prune.refuse(settings, model, job)
    return prune.run(model, settings, job)


def _language() -> Any:
    path = Path(__file__).parent / "language_fewbit.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


_IN_FEW_BITS = _language()
weights, split = _IN_FEW_BITS.weights, _IN_FEW_BITS.split
