# SPDX-License-Identifier: Apache-2.0
"""`sparsify`: a model and data in, a model with zeros in it out, and the proof of what that cost."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fewbit.data.findings import Progress
from fewbit.engine.reporting import warn_of_calibration
from fewbit.errors import UsageError
from fewbit.record import Record
from fewbit.schemes.faults import refuse
from fewbit.sparsity import output_folder
from fewbit.sparsity.call_faults import (
    check_data_place,
    check_device,
    check_model,
    check_samples,
    check_task,
    check_teacher,
    check_trainable,
    trains,
)
from fewbit.sparsity.choosing import find_use_case
from fewbit.sparsity.job import Job
from fewbit.sparsity.levels import read_level, recipe_for
from fewbit.sparsity.material import gather
from fewbit.sparsity.modes import MODES, fault_of_mode
from fewbit.sparsity.opening import open_network
from fewbit.sparsity.recipe import Recipe
from fewbit.sparsity.run import carry_out
from fewbit.sparsity.said import Said
from fewbit.sparsity.train_options import with_training
from fewbit.tuning import randomness
from fewbit.tuning.faults import Faults

_SAMPLES = 128
_OF_TEXTS = ("seqlen", "pack")
_FOR_STAGES = ("batch_size", "seqlen", "pack", "seed", "compact", "device", "workers")
"""What stages may want to know of what the user said; the rest is in the data or the recipe by then."""


def sparsify(
    model: Any,
    data: Any,
    *,
    mode: str | None = None,
    use_case: str | None = None,
    optim_level: float = 0.5,
    recipe: Recipe | str | Path | None = None,
    output: str | Path | None = None,
    teacher: Any = None,
    validation: Any = None,
    eval_metric: str | None = None,
    samples: int | None = None,
    factory: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Any:
    """Make a model sparse, and smaller in bits: after training, in training, or on other data.

    The model, the data and the caller's random state stay as they are. Data, settings and model are checked before the
    work starts, all faults at once.

    Args:
        model: an `nn.Module`, an ONNX `ModelProto`, or a path: an `.onnx` file, a Hugging Face folder, a state dict
            with a factory, `"file.py:function"`.
        data: whatever `Dataset` or `finetune` takes: a folder of pictures, of `.npz` samples, in YOLO's layout, rows of
            JSON or CSV, a loader, a `DatasetConfig`. None where nothing has to be seen.
        mode: `one-shot`: a few samples, no training; `training-aware`: zeros come while the model learns;
            `sparse-transfer`: a sparse model learns other data, its zeros stay. If none, that of the recipe, or
            `one-shot`.
        use_case: what the model is for, of `fewbit list use_cases` or `"file.py:function"`; found by looking if none.
        optim_level: from 0, unchanged, to 1; see `fewbit.sparsity.levels`.
        recipe: instead of a level, a `Recipe` or the file of one.
        output: a new folder for `deployment/`, `record.json`, `recipe.yaml` and, of training, `checkpoints/`.
        teacher: for modes that train, a model, or its path, to learn from; the model as it was given if none. False or
            `"off"` for no teacher.
        validation: to judge by, like `data`; what the data keeps aside if none, False for nothing.
        eval_metric: the number to judge by; that of the use case if none.
        samples: how many samples are looked at in one-shot pruning and for the ranges of int8; if none, what the recipe
            says, or 128.
        factory: `"file.py:function"` that builds the model of a state dict.
        progress: shows how far it is.
        options: `train_samples`, `val_samples`, `batch_size`, `seqlen`, `image_size`, `columns`, `device` …; for modes
            that train every setting of `finetune`: `epochs`, `lr` ….

    Returns:
        The sparse model, of the kind that was given; a module has its `fewbit_record`. With an output, its folder.

    Raises:
        UsageError: settings that cannot be, a model that cannot be made so.
        DataError: data that is faulty or does not fit the model.

    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    >>> same = sparsify(model, None, optim_level=0)
    >>> same.fewbit_record.facts["recipe"]["stages"], torch.equal(same[0].weight, model[0].weight)
    ([], True)
    """
    faults = Faults()
    faults.tried(lambda: refuse(fault_of_mode(mode or MODES[0]), "the call"))
    faults.tell()
    with_teacher = teacher not in (None, False, "off")
    chosen: Any = faults.tried(lambda: _recipe(recipe, mode, optim_level, use_case, with_teacher))
    mode = (mode or MODES[0]) if chosen is None else chosen.mode
    if chosen is not None:  # what the call says of samples goes before what the recipe says
        options = {name: value for name in _OF_TEXTS if (value := getattr(chosen, name)) is not None} | options
        samples = chosen.samples if samples is None else samples
        faults.tried(lambda: check_teacher(with_teacher, chosen))
        faults.tried(lambda: check_trainable(model, chosen))
    samples = _SAMPLES if samples is None else samples
    said: Any = faults.tried(lambda: Said.read(options, mode))
    named = use_case or (None if chosen is None else chosen.use_case)
    case: Any = None if named is None else faults.tried(lambda: find_use_case(named))
    if case is not None:
        faults.tried(lambda: case.number(eval_metric))
    if case is not None and chosen is not None:
        faults.tried(lambda: check_task(case, chosen))
    faults.tried(lambda: check_samples(samples))
    for each in (model, teacher if with_teacher else None):
        faults.tried(partial(check_model, each))
    for name, each in (("data", data), ("validation", validation)):
        faults.tried(partial(check_data_place, each, name))
    folder = None if output is None else faults.tried(lambda: output_folder.check(output))
    faults.tell()
    chosen = with_training(chosen, said.training, teacher)
    with randomness.private(said.own["seed"]):
        network = open_network(model, factory)
        check_device(said.own["device"], network, chosen)
        record = Record("sparsify", {"mode": mode, "optim_level": None if recipe is not None else optim_level})
        progress = progress or Progress()
        more: dict[str, Any] = {"samples": samples, "record": record, "progress": progress}
        found = gather(network, data, validation, case, said, **more)
        check_task(found.use_case, chosen)
        metric = found.use_case.number(eval_metric)
        if eval_metric is not None and trains(chosen):
            chosen = with_training(chosen, {"judge_by": metric})
        job = Job(
            mode=mode,
            use_case=found.use_case,
            task=found.use_case.task,
            dense=network.model,
            data=found.data,
            calibration=found.calibration,
            validation=found.validation,
            samples=samples,
            record=record,
            progress=progress,
            work=output_folder.work_of(folder, chosen),
            options={name: options[name] for name in _FOR_STAGES if options.get(name) is not None},
            teacher=open_network(teacher).model if with_teacher else None,
            metric=metric,
            asked=eval_metric is not None,
            classes=found.classes,
            preprocessing=found.preprocessing,
            home=network.home,
            factory=network.factory,
        )
        complete = replace(chosen, use_case=chosen.use_case or found.use_case.name)
        if data is not None and chosen.stages:  # what was looked at, so that the recipe makes the same model again
            texts = found.use_case.kind == "texts"
            how = {name: said.own[name] for name in _OF_TEXTS if texts or name in options}
            complete = replace(complete, samples=samples, **how)
        made = carry_out(complete, job, folder)
    warn_of_calibration(record)
    return made


def _recipe(
    given: Recipe | str | Path | None, mode: str | None, level: float, use_case: str | None, teacher: bool
) -> Recipe:
    """The recipe that somebody wrote, or the one that a level means."""
    if given is None:
        return recipe_for(mode or MODES[0], level, use_case=use_case, teacher=teacher)
    read_level(level)
    found = given if isinstance(given, Recipe) else Recipe.load(given)
    if mode not in (found.mode, None):
        raise UsageError(
            f"mode={mode!r}, and the recipe is for {found.mode}",
            where="mode",
            expected=f"mode={found.mode!r} (fewbit sparsify {found.mode} …)",
        )
    if found.use_case is not None and use_case is not None:
        found = replace(found, use_case=use_case)
    return found
