# SPDX-License-Identifier: Apache-2.0
"""The runs that training a sparse model takes: one with floats, in which zeros grow or hold, and one with codes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from fewbit.engine.run import view_of
from fewbit.errors import UsageError
from fewbit.model.ops import CONV, CONV_TRANSPOSE
from fewbit.model.points import Role
from fewbit.schemes.faults import refuse
from fewbit.sparsity.gradual import Gradual
from fewbit.sparsity.job import Job
from fewbit.sparsity.layers import Chosen, choose_layers
from fewbit.sparsity.pruning.planning import misfits
from fewbit.sparsity.training_settings import TrainSettings
from fewbit.tuning.masks import Masks
from fewbit.tuning.options import Options

SAID = ("device", "batch_size", "seed", "workers")
"""What the user may say for the whole call; it goes before what a recipe says. All else is in the recipe by then."""

_SLOWER = 0.1
"""Codes learn at a tenth of the rate: the model has learned already, and is only rounded."""

# Networks of convolutions take large steps and many; transformers small ones and few.
_CONVOLUTIONS = {"lr": 1e-3, "epochs": 10.0}
_OTHERS = {"lr": 5e-5, "epochs": 3.0}


@dataclass(frozen=True)
class Phase:
    """One run of `finetune`.

    Args:
        name: `sparse` or `codes`; its folder's name too.
        method: of `finetune`.
        options: of `finetune`.
        pruning: what takes weights out, if anything does.
    """

    name: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    pruning: Gradual | None = None


def phases(model: nn.Module, settings: TrainSettings, job: Job) -> list[Phase]:
    """The runs, in their order, with options that are checked.

    Args:
        model: that is trained.
        settings: of the stage `train`.
        job: of the call.

    Raises:
        UsageError: options that cannot be.
    """
    pruning = None
    if settings.pattern is not None:
        chosen = choose(model, settings)
        together, regrow = settings.scope == "global", settings.regrow
        pruning = Gradual(chosen.points, settings.plan, settings.pattern, together=together, regrow=regrow)
    said = _options(model, settings, job)
    learns = pruning is not None or settings.quantize is None or job.mode == "sparse-transfer" or len(Masks.of(model))
    share = settings.quantize_share if settings.quantize is not None else 0.0
    found = []
    if learns:
        found.append(Phase("sparse", "full", said | _part(said, 1 - share), pruning))
    if settings.quantize is not None:
        rate = settings.quantize_lr if settings.quantize_lr is not None else said["lr"] * (_SLOWER if learns else 1)
        more = {"lr": rate, "preset": settings.quantize}
        found.append(Phase("codes", "qat", said | _part(said, share if learns else 1.0) | more))
    for phase in found:
        Options.read(phase.options)
    return found


def choose(model: nn.Module, settings: TrainSettings) -> Chosen:
    """The weights that are pruned gradually: those that are pruned at all, but for experts that share a tensor.

    Raises:
        UsageError: nothing is left to prune, or the pattern does not fit.
    """
    chosen, pattern = choose_layers(view_of(model), settings.targets, settings.ignore), settings.pattern
    assert pattern is not None
    points = tuple(point for point in chosen.points if not point.stack)
    dense = [
        (point.layer, "experts in one tensor, which are not pruned in training")
        for point in chosen.points
        if point.stack
    ]
    if not points:
        raise UsageError(
            "; ".join(f"{layer}: {reason}" for layer, reason in dense[:8]),
            where="targets",
            expected="a layer with a weight of its own",
            try_="the stage prune, which takes experts too, and train without final",
        )
    refuse(misfits(points, pattern), "structure")
    return Chosen(points, (*chosen.dense, *dense))


def _options(model: nn.Module, settings: TrainSettings, job: Job) -> dict[str, Any]:
    """What `finetune` is told in every run of a stage: the user's word, else the recipe's, else what is usual."""
    points = view_of(model).points(lambda point: point.role is Role.weight)
    convolutions = sum(point.elements for point in points if point.op in (CONV, CONV_TRANSPOSE))
    usual = _CONVOLUTIONS if 2 * convolutions >= sum(point.elements for point in points) else _OTHERS
    said = {**settings.options, **settings.said}
    said |= {name: job.options[name] for name in SAID if job.options.get(name) is not None}
    return {"lr": usual["lr"], **({} if "max_steps" in said else {"epochs": usual["epochs"]}), **said}


def _part(options: dict[str, Any], share: float) -> dict[str, Any]:
    """A share of a run, one step at least."""
    if options.get("max_steps") is not None:
        return {"max_steps": max(1, round(options["max_steps"] * share))}
    return {"epochs": options["epochs"] * share}
