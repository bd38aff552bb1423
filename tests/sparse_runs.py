# SPDX-License-Identifier: Apache-2.0
"""Small runs for the tests of sparse training: a tiny convolutional network that tells drawn shapes apart."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

from drawn_shapes import draw
from fewbit.data.dataset import Dataset
from fewbit.engine.run import view_of
from fewbit.sparsity.gradual import Gradual
from fewbit.sparsity.job import Job
from fewbit.sparsity.layers import choose_layers
from fewbit.sparsity.schedules import Schedule

OPTIONS: dict[str, Any] = {"device": "cpu", "workers": 0}


@cache
def pictures(count: int, first: int = 0, coloured: bool = False) -> Dataset:
    """Pictures of 16 × 16 of white shapes, or of coloured ones, and their kinds."""
    drawn = [draw(first + number, size=16, coloured=coloured) for number in range(count)]
    pixels = np.stack([picture for picture, _ in drawn]).transpose(0, 3, 1, 2).astype(np.float32) / 255 - 0.2
    kinds = [shapes[0].kind for _, shapes in drawn]
    return Dataset([{"x": torch.tensor(p), "labels": k} for p, k in zip(pixels, kinds)], batched=False)


def network(classes: int = 3) -> nn.Sequential:
    """Four convolutions, a depthwise one among them, with norms, and a head."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 16, 3, padding=1, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(16, 32, 1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, classes),
        ).eval()  # fmt: skip


def pruned_layers(model: nn.Module) -> list[str]:
    """The names of the weights that are pruned if nobody says which."""
    return [point.name for point in choose_layers(view_of(model)).points]


def gradual(model: nn.Module, final: float = 0.8, **more: Any) -> Gradual:
    """Pruning of a model's usual layers."""
    how = {name: more.pop(name) for name in ("together", "regrow") if name in more}
    pattern = more.pop("pattern", None)
    return Gradual(choose_layers(view_of(model)).points, Schedule(final, **more), pattern, **how)


def job(model: nn.Module, **changes: Any) -> Job:
    """A call on pictures of shapes."""
    usual = {"mode": "training-aware", "use_case": None, "task": "image_classification", "dense": model}
    data = {"data": pictures(192), "validation": pictures(96, 1000), "calibration": None}
    return Job(**{**usual, **data, "options": OPTIONS, **changes})


SETTINGS: dict[str, Any] = {
    "task": "image_classification",
    "max_steps": 10,
    "batch_size": 12,
    "accumulation": 2,
    "lr": 1e-2,
    "save_every": 2,
    "eval_every": 5,
    "log_every": 1,
    "tensorboard": False,
    **OPTIONS,
}


if __name__ == "__main__":  # a run that kills itself, or one of several processes
    from fewbit.tuning.finetune import finetune
    from tuning_runs import KillAt

    output, step = sys.argv[1], int(sys.argv[2])
    model = network()
    progress = KillAt(step, really=True) if step else None
    plan = gradual(model, updates=4, end=0.8)
    finetune(
        model,
        pictures(48),
        validation=pictures(24, 1000),
        output=output,
        progress=progress,
        pruning=plan,
        **SETTINGS,
    )
