# SPDX-License-Identifier: Apache-2.0
"""A recipe, carried out: measured before, stage after stage, measured after, written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from fewbit import registry
from fewbit.sparsity import output_folder
from fewbit.sparsity.job import Job
from fewbit.sparsity.measuring import measure
from fewbit.sparsity.opening import apart, own_copy
from fewbit.sparsity.recipe import Recipe
from fewbit.tuning.faults import Faults
from fewbit.tuning.masks import Masks


def carry_out(recipe: Recipe, job: Job, folder: Path | None) -> Any:
    """Do what a recipe says to the model of a call.

    Args:
        recipe: complete.
        job: of the call.
        folder: where the result goes; none to return the model.

    Returns:
        The model, never the one that was given; or the folder.

    Raises:
        UsageError: what stages have against the model, all of them, before the first runs.
    """
    start = time.perf_counter()
    stages = [(name, registry.get("stages", name), settings) for name, settings in recipe.stages]
    faults = Faults()
    for _, stage, settings in stages:
        faults.tried(lambda stage=stage, settings=settings: stage.refuse(settings, job.dense, job))  # type: ignore[misc]
    faults.tell()
    record, model = job.record, job.dense
    record.facts |= {
        "use_case": job.use_case.name,
        "task": job.task,
        "metric": job.metric,
        "recipe": recipe.to_dict(),
        "fingerprint": recipe.fingerprint,
        "classes": job.classes,
        "preprocessing": job.preprocessing,
        "before": measure(model, job),
    }
    if recipe.mode == "sparse-transfer" and stages and not _has_zeros(model, recipe):
        record.note("no-zeros", "the model that was given has no zeros that could stay: it is trained as a dense one")
    for name, stage, settings in stages:
        with _named(name):
            model = stage.run(model, settings, job)
    if not stages:
        record.note("unchanged", "the recipe has no stage: the model is a copy of the one that was given")
    model = own_copy(model) if model is job.dense else model
    record.facts["after"] = measure(model, job) if stages else record.facts["before"]
    record.facts["seconds"] = round(time.perf_counter() - start, 3)
    if isinstance(model, nn.Module):
        model.fewbit_record = record  # type: ignore[assignment]
    if folder is not None:
        return output_folder.write(folder, model, recipe, job)
    return apart(model, job.dense) if isinstance(model, nn.Module) else model


def _has_zeros(model: Any, recipe: Recipe) -> bool:
    """Whether there are zeros to hold in training, or a stage that makes some."""
    made = any(name == "prune" or getattr(settings, "pattern", None) is not None for name, settings in recipe.stages)
    return made or not isinstance(model, nn.Module) or len(Masks.of(model)) > 0


@contextmanager
def _named(stage: str) -> Iterator[None]:
    """An error in a stage, with the name of the stage for whoever reads how it came about."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the stage {stage!r} of the recipe")
        raise
