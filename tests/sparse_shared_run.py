# SPDX-License-Identifier: Apache-2.0
"""A run of the stage `train` that `torchrun` starts in several processes; each leaves the model that it ended with."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from safetensors.torch import save_file

from fewbit.sparsity.job import Job
from fewbit.sparsity.stages import train
from sparse_runs import OPTIONS
from tuning_runs import KillAt, language_model, texts


def shared_run(work: Path | None, sharding: str, step: int = 0, quantize: str | None = None):
    """What each of the processes does."""
    model = language_model()
    more = {"progress": KillAt(step)} if step else {}
    job = Job("training-aware", None, "causal_lm", model, texts(19), None, texts(7, 1), work=work, **more)
    job.options = OPTIONS
    options = {"sharding": sharding, "save_every": 2, "log_every": 1, "accumulation": 2, "tensorboard": False}
    plan = {"final": 0.6, "updates": 4, "end": 0.8, "quantize": quantize, "distill": quantize is not None}
    settings = train.Settings(max_steps=9, batch_size=3, lr=1e-2, options=options, **plan)
    if sharding == "ddp":
        train.refuse(settings, model, job)
    return train.run(model, settings, job)


if __name__ == "__main__":
    folder, sharding, step, quantize = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] or None
    tuned = shared_run(folder / "work", sharding, step, quantize)
    tensors = {name: tensor.contiguous().clone() for name, tensor in tuned.state_dict().items()}
    save_file(tensors, folder / f"rank-{os.environ['RANK']}.safetensors")
