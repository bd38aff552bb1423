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
from fewbit.errors import UsageError
from fewbit.modules.quantized import is_quantized
from fewbit.sparsity import output_folder
from fewbit.sparsity.job import Job
from fewbit.sparsity.measuring import measure
from fewbit.sparsity.new_head import with_new_head
from fewbit.sparsity.opening import apart, own_copy
from fewbit.sparsity.recipe import Recipe
from fewbit.sparsity.trial import refuse_metric, unjudged
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
    if recipe.mode == "sparse-transfer" and stages:
        faults.tried(lambda: _refuse_dense(job.dense, recipe))
    new_head = any(getattr(settings, "new_head", False) for _, _, settings in stages)
    faults.tried(lambda: _refuse_metric(job, new_head=new_head))
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
    why = record.facts["before"]["not_judged"]
    if job.asked and why is not None and not new_head:  # the first batch was fine, a later one is not
        raise unjudged(str(job.metric), why)
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


def _refuse_metric(job: Job, *, new_head: bool) -> None:
    """Ask the model about one batch, with the head that it is going to have."""
    if job.asked and new_head and isinstance(job.dense, nn.Module):
        if job.classes:  # without, the stage says what is missing
            refuse_metric(with_new_head(job.dense, job.classes), job)
    else:
        refuse_metric(job.dense, job)


def _refuse_dense(model: Any, recipe: Recipe) -> None:
    """A model without zeros for a transfer of zeros, and no stage that makes some; codes are refused elsewhere."""
    made = any(name == "prune" or getattr(settings, "pattern", None) is not None for name, settings in recipe.stages)
    if made or not isinstance(model, nn.Module) or any(map(is_quantized, model.modules())) or len(Masks.of(model)):
        return
    raise UsageError(
        "the model has no zeros that could stay",
        where="model",
        expected="sparse-transfer starts from a sparse model",
        try_="training-aware, which makes zeros while the model learns; or finetune, which trains a dense model",
    )


@contextmanager
def _named(stage: str) -> Iterator[None]:
    """An error in a stage, with the name of the stage for whoever reads how it came about."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the stage {stage!r} of the recipe")
        raise
