# SPDX-License-Identifier: Apache-2.0
"""A run that `torchrun` starts in several processes; its losses and weights are in the output folder."""

from __future__ import annotations

import sys

from fewbit.tuning.finetune import finetune
from tuning_runs import SETTINGS, KillAt, language_model, texts

if __name__ == "__main__":
    output, sharding, step = sys.argv[1], sys.argv[2], int(sys.argv[3])
    progress = KillAt(step) if step else None
    settings = {**SETTINGS, "eval_every": 3, "sharding": sharding}
    # 23 samples: the last step of an epoch has fewer than there are processes.
    finetune(language_model(), texts(19), validation=texts(7, 1), output=output, progress=progress, **settings)
