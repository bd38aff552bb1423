# SPDX-License-Identifier: Apache-2.0
"""One measurement of bench/sparsity.py, in a process of its own: a question as JSON in, the answer as JSON out.

    python -P bench/sparsity_worker.py '{"do": "sparsify", "side": "fewbit", "way": "auto", "format": "2of4", …}'

`-P` keeps this folder out of the path, and what is needed of it is loaded by its place: bench/kernels.py, data.py and
models.py must not hide packages of these names.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).parent
SHORT = 1e-3
"""How many fewer zeros than were asked for are still as many: counts of rows and blocks are whole numbers."""


def sparsify(**question: Any) -> dict[str, Any]:
    """Seconds of a side's whole job on a loaded language model; its weights are left in a file."""
    answer: dict[str, Any] = by_place("language_worker").quantize(**question, bench="sparsity")
    return answer


def judge(share: float, structure: str, weights: str | None, **question: Any) -> dict[str, Any]:
    """Perplexities of the plain language model with some weights in place of its own, refused if zeros are missing."""
    worker = by_place("language_worker")
    counted: dict[str, Any] = {}
    if weights is not None:
        found = worker.load_file(weights)
        model = worker.load(question["folder"], "cpu")
        layers = {f"{name}.weight" for name, _ in worker.blocks_linears(model)}
        counted = zeros_of({name: value for name, value in found.items() if name in layers}, share, structure)
    return counted | worker.judge(weights=weights, **question)


def zeros_of(weights: dict[str, Tensor], share: float, structure: str) -> dict[str, float]:
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


def by_place(name: str) -> Any:
    """A file of this folder, as a module."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
        module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
        sys.modules[name] = module
        spec.loader.exec_module(module)  # type: ignore[union-attr]
    return sys.modules[name]


def answer(questions: dict[str, Callable[..., dict[str, Any]]]) -> None:
    """Read the question from the command line and write what its function finds; nothing else is printed."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    question = json.loads(sys.argv[1])
    with answers:
        answers.write(json.dumps(questions[question.pop("do")](**question)))


if __name__ == "__main__":
    torch.manual_seed(0)
    answer({"sparsify": sparsify, "judge": judge})
