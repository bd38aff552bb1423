# SPDX-License-Identifier: Apache-2.0
"""From a model that is ready to be trained to one that is: the optimizer, the step, the loop, what they found out."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.data.findings import Progress
from fewbit.errors import DataError, UsageError
from fewbit.record import Record
from fewbit.tuning import checkpoints, state
from fewbit.tuning.calling import to_device
from fewbit.tuning.checkpoints import Checkpoints
from fewbit.tuning.evaluating import Evaluator, judged_by
from fewbit.tuning.feeding import Feed, Part
from fewbit.tuning.first_look import try_out
from fewbit.tuning.loop import Loop
from fewbit.tuning.machine import Machine
from fewbit.tuning.masks import Masks
from fewbit.tuning.methods._base import Objective, decayed
from fewbit.tuning.metrics_log import MetricsLog
from fewbit.tuning.opening import Data
from fewbit.tuning.options import Options
from fewbit.tuning.out_of_memory import Situation, explained
from fewbit.tuning.own_loss import computed_alone, refuse_unknown
from fewbit.tuning.pruning import Pruning
from fewbit.tuning.run_facts import facts_of, nothing_gained
from fewbit.tuning.stepping import Stepper, unit_for
from fewbit.tuning.tasks._base import NOTHING
from fewbit.tuning.unfit_samples import told_accelerator


@dataclass(frozen=True)
class Parts:
    """Everything of a run but the model."""

    machine: Machine
    options: Options
    data: Data
    task: Any
    method: Any
    log: MetricsLog
    kept: Checkpoints | None
    progress: Progress
    pruning: Pruning | None = None


def run_loop(
    parts: Parts, model: nn.Module, objective: Objective, checkpoint: Path | None, record: Record
) -> nn.Module:
    """Train a model.

    Args:
        parts: of the run.
        model: whose parameters that learn have `requires_grad`; it is changed.
        objective: what is minimized.
        checkpoint: to go on from.
        record: takes what happened.

    Returns:
        The model, or where processes had parts of it, another one that is whole.

    Raises:
        UsageError: nothing learns, or nobody knows for how long.
    """
    machine, options = parts.machine, parts.options
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not learning:
        raise UsageError("no parameter of the model learns", where="method", expected="parameters with requires_grad")
    refuse_unknown(model, parts.task, machine.world)
    total = steps_of(parts.data.train, options)
    tensors, found = ({}, {}) if checkpoint is None else checkpoints.read(checkpoint)
    first = next(parts.data.train.epoch(0), None)
    if first is None:
        raise DataError("the training data has no batch", code="no-samples", expected="at least one")
    unit = found["unit"] if found else machine.gather(unit_for(_learned(first)))[0]
    here = partial(Situation, machine.device, options, writes=parts.kept is not None, cuts=parts.data.train.cuts)
    with explained(lambda: here("placing", step=0)):
        model.to(machine.device)
    named = parts.data.train.name(first.items)
    with machine.autocast(), explained(lambda: here("learning", 1, first.batch, named)):
        try_out(model, parts.task, to_device(first.batch, machine.device), named, parts.data.classes)
    check = getattr(objective, "check", None)
    if check is not None:
        with machine.autocast():
            check(model, to_device(first.batch, machine.device))
    if machine.world > 1 and not machine.shares_parameters:
        machine.accelerator.ddp_handler.find_unused_parameters = _leaves_out(machine, model, objective, first)
    # A model whose parameters were cut in parts is never quite itself again: what it learned goes into another one.
    twin = copy.deepcopy(model) if machine.shares_parameters else None
    optimizer = make_optimizer(model, parts.method, options, machine.device)
    shared = machine.wrap(model, optimizer)
    masks = Masks.of(model) if options.hold_zeros else None
    if masks:
        record.note(
            "zeros-held", f"weights that are zero stay zero in {len(masks)} matrices, such as {next(iter(masks))}"
        )
    if parts.pruning is not None:
        masks = Masks({}) if masks is None else masks
        parts.pruning.begin(model, masks)
    stepper = Stepper(machine, shared, optimizer, objective, parts.method, options, unit, masks)
    evaluator = None
    if parts.data.validation is not None:
        evaluator = Evaluator(machine, parts.data.validation, parts.task, options.eval_batches)
    loop = Loop(
        machine,
        shared,
        optimizer,
        stepper,
        parts.data.train,
        evaluator,
        judged_by(parts.task, options.judge_by),
        options,
        total,
        parts.log,
        parts.kept,
        parts.progress,
        unit,
        parts.pruning,
        masks,
    )
    if checkpoint is not None:
        note = loop.resume(tensors, found)
        record.note("resumed", f"from step {loop.place.step}", where=checkpoint)
        if note is not None:
            record.note("random-state", note)
    del tensors
    with computed_alone(model, parts.task, machine.world), told_accelerator(loop.where):
        loop.run()
    record.facts |= facts_of(loop, model, learning)
    why = nothing_gained(record.facts, options.lr) if options.keep_best else None
    if why is not None:
        record.note("nothing-gained", why)
    if twin is None:
        return model
    state.learn(twin, state.learned(model))
    return twin


def steps_of(feed: Feed, options: Options) -> int:
    """How many steps a run has.

    Raises:
        UsageError: the data does not know its length, and nobody says.
    """
    if options.max_steps is not None:
        return options.max_steps
    if feed.steps is None:
        raise UsageError(
            "the data does not know how many batches it has",
            where="options",
            expected="max_steps",
            try_="max_steps=1000",
        )
    return max(1, math.ceil(options.epochs * feed.steps - 1e-9))


def make_optimizer(model: nn.Module, method: Any, options: Options, device: torch.device) -> torch.optim.AdamW:
    """AdamW over what learns; one kernel for all parameters where the device has it."""
    groups = getattr(method, "parameter_groups", decayed)(model, options)
    fused = device.type in ("cpu", "cuda")
    betas = (options.betas[0], options.betas[1])
    return torch.optim.AdamW(groups, lr=options.lr, betas=betas, eps=options.eps, weight_decay=0.0, fused=fused)


@contextmanager
def made_for_training(model: nn.Module, options: Options) -> Iterator[None]:
    """Within the block a model keeps no cache of keys and values, and activations only if there is room for them."""
    config: Any = getattr(model, "config", None)
    cached = getattr(config, "use_cache", None)
    able: Any = model
    if options.gradient_checkpointing and not hasattr(model, "gradient_checkpointing_enable"):
        raise UsageError(
            f"a {type(model).__name__} has no gradient checkpointing", where="options", expected="a Hugging Face model"
        )
    if cached:
        config.use_cache = False
    if options.gradient_checkpointing:
        able.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    try:
        yield
    finally:
        if cached:
            config.use_cache = cached
        if options.gradient_checkpointing:
            able.gradient_checkpointing_disable()


def _learned(part: Part) -> float:
    """About how much is learned from a part."""
    labels = part.batch.get("labels")
    if isinstance(labels, Tensor) and not labels.is_floating_point():
        return float((labels != NOTHING).sum())
    sizes = [len(value) for value in part.batch.values() if isinstance(value, Tensor) and value.ndim]
    return float(max(sizes, default=1))


def _leaves_out(machine: Machine, model: nn.Module, objective: Objective, part: Part) -> bool:
    """Whether a batch leaves some parameters without a gradient, which processes have to know of each other."""
    training = model.training
    model.eval()
    with machine.autocast():
        total, _ = objective(model, to_device(part.batch, machine.device))
    total.backward()  # type: ignore[no-untyped-call]
    left = any(parameter.grad is None for parameter in model.parameters() if parameter.requires_grad)
    model.zero_grad(set_to_none=True)
    model.train(training)
    return any(machine.gather(left))
