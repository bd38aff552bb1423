# SPDX-License-Identifier: Apache-2.0
"""The output of `sparsify`: `deployment/`, `record.json`, `recipe.yaml`, and `checkpoints/` of training."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from fewbit.engine.staging import check_target, place
from fewbit.record import write_atomically
from fewbit.sparsity.job import Job
from fewbit.sparsity.recipe import Recipe

CHECKPOINTS, DEPLOYMENT, RECORD, RECIPE = "checkpoints", "deployment", "record.json", "recipe.yaml"


def check(output: str | Path) -> Path:
    """The folder, if a run can have it: it is new, empty, or holds the checkpoints of a run that was stopped.

    Raises:
        UsageError: a file, a place that may not be written to, a folder with anything else in it.
    """
    folder = place(output)
    inside = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if inside != {CHECKPOINTS}:
        check_target(folder, overwrite=False)
    return folder


def work_of(folder: Path | None, recipe: Recipe) -> Path | None:
    """Where finished work is kept until all is: checkpoints of training stay, what pruning keeps lies beside."""
    if folder is None:
        return None
    if any(name == "train" for name, _ in recipe.stages):
        return folder / CHECKPOINTS
    whole = folder.absolute()
    return whole.with_name(f".{whole.name}.work")


def write(folder: Path, model: Any, recipe: Recipe, job: Job) -> Path:
    """Write a result into its folder; the record comes last and says that all is there.

    Args:
        folder: what `check` gave.
        model: the sparse model.
        recipe: that made it.
        job: of the call.
    """
    from fewbit.sparsity.deployment import deploy

    folder.mkdir(parents=True, exist_ok=True)
    deploy(folder, model, dense=job.dense, recipe=recipe, use_case=job.use_case, job=job)
    write_atomically(folder / RECIPE, recipe.to_yaml().encode())
    job.record.save(folder / RECORD)
    if job.work is not None and job.work.parent != folder:
        shutil.rmtree(job.work, ignore_errors=True)
    return folder
