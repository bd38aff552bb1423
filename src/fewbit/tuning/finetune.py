# SPDX-License-Identifier: Apache-2.0
"""`finetune`: a model and data in, a model that does better on that data out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from fewbit import registry
from fewbit.data.findings import Progress
from fewbit.errors import UsageError
from fewbit.modules.opening import open_model, refuse_missing
from fewbit.tuning import randomness, run_folder
from fewbit.tuning.choosing import check_task, find_method
from fewbit.tuning.configuring import as_config, for_model
from fewbit.tuning.faults import Faults
from fewbit.tuning.idle_options import idle, refuse_preset
from fewbit.tuning.job import Job
from fewbit.tuning.machine import started
from fewbit.tuning.opening import open_data
from fewbit.tuning.options import Options
from fewbit.tuning.picture_step import remark
from fewbit.tuning.pruning import Pruning


def finetune(
    model: Any,
    data: Any,
    *,
    method: str = "full",
    task: str | None = None,
    teacher: Any = None,
    output: str | Path | None = None,
    validation: Any = None,
    resume: bool = True,
    progress: Progress | None = None,
    factory: str | None = None,
    pruning: Pruning | None = None,
    **options: Any,
) -> nn.Module:
    """Train a model on data.

    A copy is trained: the model, the data and the caller's random state stay as they are. A run with an `output` that
    was killed goes on where its last checkpoint was when the same call is made again, and ends with the same weights,
    bit by bit on a CPU. With `torchrun` the same call shares the work among processes.

    Args:
        model: an `nn.Module`, or a path that `fewbit quantize` takes.
        data: a `DatasetConfig`, a path or name that `generate_dataset_config` takes, a `Dataset`, what
            `device_aware_data_loading` gave, or a `torch.utils.data.DataLoader`.
        method: which parameters learn: `full`, `lora`, `dora`, `qat`, `distill`.
        task: what is learned, of `fewbit list tasks`; if not said, what the data or the model's class is for.
        teacher: a model, or its path, that shows how it is done; with any method.
        output: a folder for the model, `metrics.jsonl`, plots and checkpoints.
        validation: to judge by, like `data`; if not said, what the configuration of the data keeps aside. False for
            nothing.
        resume: go on with the run that is in the output; if not, it is deleted.
        progress: shows how far it is.
        factory: `"file.py:function"` that builds a model that is not of Hugging Face's.
        pruning: takes weights out on the way, as `fewbit.sparsity.gradual.Gradual` does.
        options: see `fewbit.tuning.options.Options`: `epochs`, `lr`, `batch_size`, `precision` ….

    Returns:
        The trained model in eval mode, with its `fewbit_record`: losses, numbers before and after, time.

    Raises:
        UsageError: settings that cannot be, an output with another run in it; all faults before the work starts.
        DataError: data that does not fit the model; a loss that is no number, with its step and items.

    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> x, y = torch.randn(32, 4), torch.zeros(32, dtype=torch.long)
    >>> loader = DataLoader(TensorDataset(x, y), batch_size=8)
    >>> tuned = finetune(nn.Linear(4, 3), loader, task="sequence_classification", lr=0.1, epochs=2, device="cpu")
    >>> tuned.fewbit_record.facts["steps"]
    8
    """
    faults = Faults()
    how: Any = faults.tried(lambda: find_method(method, teacher))
    settings: Any = faults.tried(lambda: Options.read({**getattr(how, "DEFAULTS", {}), **options}))
    folder = None if output is None else faults.tried(lambda: run_folder.check_place(output))
    if task is not None:
        faults.tried(lambda: check_task(task))
    opened, given_data, given_validation = isinstance(model, str | Path), data, validation
    home = model
    if data is None:
        faults.tried(_no_data)
    data = faults.tried(lambda: as_config(given_data, home))
    validation = faults.tried(lambda: as_config(given_validation, home))
    for each in (model, teacher):
        if isinstance(each, str | Path) and not registry.is_reference(each):
            faults.tried(partial(refuse_missing, each))
    faults.tell()
    if opened:
        model = open_model(model, factory)
    if not isinstance(model, nn.Module):
        raise UsageError(f"a {type(model).__name__} cannot be trained", expected="a torch.nn.Module, or its path")
    refuse_preset(model, settings.preset, method)
    if isinstance(teacher, str | Path):
        teacher = open_model(teacher)
    data, validation = (for_model(each, task, model) for each in (data, validation))
    with started(settings) as machine, randomness.private(settings.seed):
        found = open_data(
            data,
            validation,
            settings,
            given=set(options),
            device=machine.device,
            rank=machine.rank,
            world=machine.world,
        )
        settings = replace(settings, precision=machine.precision, batch_size=found.batch_size)
        said = {"picture-step": remark(data, model), "no-effect": idle(options, method, teacher)}
        job = Job(
            machine=machine,
            options=settings,
            data=found,
            method=method,
            how=how,
            teacher=teacher,
            folder=folder,
            resume=resume,
            progress=progress or Progress(),
            factory=factory,
            pruning=pruning,
            remarks={what: why for what, why in said.items() if why is not None},
            source=str(home) if opened else None,
        )
        return job.run(model, task, copied=opened)


def _no_data() -> None:
    raise UsageError("data is None", where="data", expected="a path, a configuration, a Dataset or a loader")
