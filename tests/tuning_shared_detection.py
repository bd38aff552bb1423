# SPDX-License-Identifier: Apache-2.0
"""A detector that `torchrun` trains in several processes; its losses and numbers are in the output folder."""

from __future__ import annotations

import sys
from typing import Any

from fewbit.tuning.finetune import finetune
from tiny_pictures import begun_as_in_the_paper, conditional_detr

SETTINGS: dict[str, Any] = {
    "max_steps": 8,
    "batch_size": 3,
    "accumulation": 2,
    "lr": 5e-3,
    "eval_every": 4,
    "log_every": 1,
    "device": "cpu",
    "workers": 0,
    "tensorboard": False,
    "keep_best": False,
}


def detector() -> Any:
    """One that finds something from the beginning, and whose loss is a mean over objects."""
    return begun_as_in_the_paper(conditional_detr())


if __name__ == "__main__":
    output, data, sharding = sys.argv[1:]
    finetune(detector(), data, output=output, sharding=sharding, **SETTINGS)
