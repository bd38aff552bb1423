# SPDX-License-Identifier: Apache-2.0
"""One measurement of bench/sparsity.py, in a process of its own: a question as JSON in, the answer as JSON out.

    python -P bench/sparsity_worker.py '{"do": "language.sparsify", "side": "fewbit", "way": "auto", …}'

The question names a function of bench/sparsity_do_PART.py. `-P` keeps this folder out of the path, and what is needed
of it is loaded by its place: bench/kernels.py, data.py and models.py must not hide packages of these names.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).parent
SHORT = 1e-3
"""How many fewer zeros than were asked for are still as many: counts of rows and blocks are whole numbers."""


def by_place(name: str) -> Any:
    """A file of this folder, `NAME.py` or `sides/NAME.py`, as a module."""
    if name not in sys.modules:
        path = next(path for path in (HERE / f"{name}.py", HERE / "sides" / f"{name}.py") if path.exists())
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
        sys.modules[name] = module
        spec.loader.exec_module(module)  # type: ignore[union-attr]
    return sys.modules[name]


def zeros_of(weights: dict[str, Tensor], share: float, structure: str = "unstructured") -> dict[str, float]:
    """The share of zeros, in all weights and in those that have the fewest and the most of them.

    Raises:
        SystemExit: fewer than were asked for; in N:M, a run of M with more than N that are not zero.
    """
    counts = {name: int((value == 0).sum()) for name, value in weights.items()}
    shares = [counts[name] / value.numel() for name, value in weights.items()]
    whole = sum(counts.values()) / sum(value.numel() for value in weights.values())
    if whole < share - SHORT:
        raise SystemExit(f"{whole:.4f} of the weights are zero, asked for were {share:g}")
    keep, _, of = structure.partition(":")
    for name, value in weights.items() if of else ():
        most = int((value.reshape(-1, int(of)) != 0).sum(1).max())
        if most > int(keep):
            raise SystemExit(f"{name} has {most} of {of} in a row that are not zero, asked for was {structure}")
    return {"zeros": whole, "fewest": min(shares), "most": max(shares)}


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    sys.modules["sparsity_worker"] = sys.modules["__main__"]
    question = json.loads(sys.argv[1])
    part, _, function = question.pop("do").partition(".")
    torch.manual_seed(0)
    with answers:
        answers.write(json.dumps(getattr(by_place(f"sparsity_do_{part}"), function)(**question)))
