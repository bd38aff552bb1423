# SPDX-License-Identifier: Apache-2.0
"""Zeros that grow, or hold, while the model learns; and codes that are learned on top of them.

The model is trained by `fewbit.finetune`, on the user's data and, if nobody says otherwise, to answer as the dense
model did. What is zero is zero in the weights, in the gradients before their norm is taken and in what the optimizer
remembers. With `quantize` the last part of the run is trained with rounding in place.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from fewbit.engine.run import view_of
from fewbit.errors import UsageError
from fewbit.sparsity.job import Job
from fewbit.sparsity.rehearsal import headed, open_for, rehearse, teacher_of
from fewbit.sparsity.training import Phase, choose, phases
from fewbit.sparsity.training_settings import TrainSettings as Settings
from fewbit.tuning.faults import Faults
from fewbit.tuning.finetune import finetune
from fewbit.tuning.masks import Masks

__all__ = ["Settings", "refuse", "run"]


def refuse(settings: Settings, model: Any, job: Job) -> None:
    """Everything that stands in the way of the run: the kind of model, layers, options, data, classes, the teacher.

    Raises:
        UsageError: what cannot be done with this model.
        DataError: what is wrong with the data.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"a {type(model).__name__} cannot be trained: it has no gradients",
            where="model",
            expected="a torch.nn.Module, a Hugging Face folder or 'file.py:function'",
            try_="the PyTorch model that it was exported from, or mode one-shot, which takes ONNX",
        )
    faults = Faults()
    faults.tried(lambda: _refuse_codes(model))
    found = faults.tried(lambda: phases(model, settings, job))
    faults.tell()
    assert found is not None
    rehearse(model, job, found[0].options, distill=_distills(settings, job), new_head=settings.new_head)


def run(model: nn.Module, settings: Settings, job: Job) -> nn.Module:
    """Train; the model that comes out has its zeros in place, and codes if `quantize` asks for them."""
    _refuse_codes(model)  # of a stage before this one
    plan = phases(model, settings, job)
    if settings.new_head:
        classes = open_for(model, job, plan[0].options).classes or job.classes
        model = headed(model, classes, new_head=True)
        job.record.note("new-head", f"the head of the model starts anew, for {len(classes or ())} classes")
        if settings.distill and not _distills(settings, job):
            reason = "no teacher: the model that was given answers for other classes than the new head"
            job.record.note("not-distilled", reason)
    if settings.pattern is not None:
        for layer, reason in choose(model, settings).dense:
            job.record.note("dense", reason, where=layer)
    facts: list[dict[str, Any]] = []
    for phase in plan:
        model = _learned(model, settings, job, phase)
        if phase.method == "full":
            _tell_layers(model, job)
        record: Any = model.fewbit_record
        facts.append({"name": phase.name, **record.facts})
        job.record.lines += record.lines
    job.record.facts["train"] = _facts(facts)
    return model


def _learned(model: nn.Module, settings: Settings, job: Job, phase: Phase) -> nn.Module:
    return finetune(
        model,
        job.data,
        method=phase.method,
        task=job.task,
        teacher=teacher_of(job) if _distills(settings, job) else None,
        output=None if job.work is None else job.work / "train" / phase.name,
        validation=job.validation,
        progress=job.progress,
        factory=job.factory,
        pruning=phase.pruning,
        **phase.options,
    )


def _distills(settings: Settings, job: Job) -> bool:
    """Whether there is a teacher: to a new head the model's old one teaches nothing, only one that the user named."""
    return settings.distill and not (settings.new_head and job.teacher is None)


def _facts(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What the runs came to: from the first's beginning to the last's end."""
    return {
        "before": runs[0]["before"],
        "after": runs[-1]["after"],
        "loss": [point for run in runs for point in run["loss"]],
        "sparsity": runs[0]["sparsity"],
        "runs": runs,
    }


def _tell_layers(model: nn.Module, job: Job) -> None:
    """A line for each weight whose zeros hold; of the model with floats, in which every zero is one that was meant."""
    for name, pruned in Masks.of(model).state_dict().items():
        zeros, elements = int(pruned.sum()), pruned.numel()
        layer, _, tensor = name.rpartition(".")
        said = f"{zeros:,} of the {elements:,} elements of {tensor} are zero"
        job.record.note("sparse", said, where=layer, zeros=zeros, elements=elements, sparsity=zeros / elements)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and not bool(parameter.any()):
            job.record.note("empty", "every weight is zero", where=name.rpartition(".")[0])


def _refuse_codes(model: nn.Module) -> None:
    codes = view_of(model).quantized()
    if codes:
        raise UsageError(
            f"{len(codes)} layers are codes already, such as {codes[0]}; which of their zeros were meant is not known",
            where="model",
            expected="a float model: zeros come first, codes after them",
            try_="the model before that, checkpoints/train/sparse in the folder of the run, with quantize: …",
        )
