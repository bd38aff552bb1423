# SPDX-License-Identifier: Apache-2.0
"""Real ONNX models with data to calibrate on, other data to judge on, and a figure for how good the answers are.

    sys.path.append("bench")                      # append: bench/onnx.py must not hide the package onnx
    from onnx_tasks import NAMES, task
    one = task("recognizer")
    one.path, one.calibration[:100], one.judge(run)

A plain file of this folder is a task of that name: `model()` says where its model lies, `make(part, random)` yields
what a sample is made of (kept in `.bench/onnx/data`, so everybody sees the same) with its label, `feed(raw)` makes the
model's inputs as the package that ships it does, and `score(answers, labels, expected)` says how good outputs are.
There are three parts: one to calibrate on, `judging` for whoever improves fewbit, and `final`, which bench/onnx.py
judges on and nobody tunes on.
Only numpy is needed once the data lies there, so the peers' environments can read it too.
"""

from __future__ import annotations

import importlib
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

Feed = dict[str, np.ndarray]
Outputs = list[np.ndarray]
Run = Callable[[Feed], Outputs]

FOLDER = Path(__file__).parents[2] / ".bench" / "onnx"
PARTS = ("calibration", "judging", "final")
NAMES = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


@dataclass(frozen=True)
class Task:
    """A model and what it is for.

    Args:
        name: the task's file.
        title: what it is, in words, for a table.
        path: the float model.
        part: what `judge` looks at, `judging` or `final`.
        main: the figure that counts, of those `judge` gives; higher is better for every one but `error`.
    """

    name: str
    title: str
    path: Path
    main: str
    module: ModuleType
    part: str = "judging"

    @cached_property
    def calibration(self) -> list[Feed]:
        """What a tool may look at."""
        return [self.module.feed(raw) for raw, _ in _data(self.module, "calibration")]

    @cached_property
    def judging(self) -> list[Feed]:
        """What figures are measured on."""
        return [self.module.feed(raw) for raw, _ in _data(self.module, self.part)]

    @cached_property
    def expected(self) -> list[Outputs]:
        """The float model's outputs for `judging`."""
        run = session(self.path)
        return [run(feed) for feed in self.judging]

    def judge(self, run: Run) -> dict[str, float]:
        """How good a model's answers are: the task's own figures, and how near the outputs are to the float ones.

        Args:
            run: the model: inputs by name to the list of its outputs.
        """
        labels = [label for _, label in _data(self.module, self.part)]
        answers = [run(feed) for feed in self.judging]
        return self.module.score(answers, labels, self.expected) | nearness(answers, self.expected)


def task(name: str, part: str = "judging") -> Task:
    """The task of that name; its data is made if it is not there."""
    module = importlib.import_module(f"{__name__}.{name}")
    return Task(name, module.TITLE, module.model(), module.MAIN, module, part)


def session(path: Path | str, threads: int = 2) -> Run:
    """A model in ONNX Runtime, as a function."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    opened = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda feed: opened.run(None, feed)


def nearness(answers: list[Outputs], expected: list[Outputs]) -> dict[str, float]:
    """Mean cosine and relative error with the float outputs: over all samples for each output, then their mean."""
    cosines, errors = [], []
    for found, wanted in zip(zip(*answers), zip(*expected)):
        dot, ours, theirs, difference = np.sum([_sums(a, b) for a, b in zip(found, wanted)], axis=0)
        cosines.append(dot / max(np.sqrt(ours * theirs), 1e-30))
        errors.append(np.sqrt(difference / max(theirs, 1e-30)))
    return {"cosine": float(np.mean(cosines)), "error": float(np.mean(errors))}


def _sums(found: np.ndarray, wanted: np.ndarray) -> list[float]:
    a, b = found.astype(np.float64).ravel(), wanted.astype(np.float64).ravel()
    return [float(a @ b), float(a @ a), float(b @ b), float(np.square(a - b).sum())]


def _data(module: ModuleType, part: str) -> list[tuple[np.ndarray, Any]]:
    name = module.__name__.rpartition(".")[2]
    arrays, labels = FOLDER / "data" / f"{name}.{part}.npz", FOLDER / "data" / f"{name}.{part}.json"
    if not labels.exists():
        arrays.parent.mkdir(parents=True, exist_ok=True)
        made = list(module.make(part, np.random.default_rng([zlib.crc32(name.encode()), PARTS.index(part)])))
        np.savez_compressed(arrays, **{f"{i:05}": raw for i, (raw, _) in enumerate(made)})
        labels.write_text(json.dumps([label for _, label in made]))
    with np.load(arrays) as kept:
        return [(kept[key], label) for key, label in zip(sorted(kept.files), json.loads(labels.read_text()))]
