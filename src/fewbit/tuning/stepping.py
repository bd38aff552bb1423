# SPDX-License-Identifier: Apache-2.0
"""One step: forward and backward of each part, then one change of the weights, weighed by what was learned from each.

The gradient of a step is that of the mean over everything learned in it. How much that is, is known only when all parts
and all processes are through; so each part's *sum* goes backward, and the gradients are divided once at the end, in the
same pass over them that clips. Nothing in here waits for the device.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.tuning.calling import to_device
from fewbit.tuning.feeding import Part
from fewbit.tuning.machine import Machine
from fewbit.tuning.masks import Masks
from fewbit.tuning.methods._base import Objective
from fewbit.tuning.options import Options
from fewbit.tuning.tasks._base import Batch


@dataclass(frozen=True)
class Told:
    """What a step says of itself, still on the device.

    Args:
        sums: loss, how much was learned, tokens; of all processes.
        norm: of the gradients before they were clipped.
    """

    sums: Tensor
    norm: Tensor


class Stepper:
    """Carries out steps.

    Args:
        machine: what it runs on.
        model: as the machine shares it.
        optimizer: of its parameters.
        objective: what is minimized.
        method: whose hooks are called.
        masks: zeros that hold, if there are any.
        options: of the run.
        unit: what sums are divided by on their way back, so that fp16 has room for them: a power of two, which
            changes no digit.
    """

    def __init__(
        self,
        machine: Machine,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        method: Any,
        options: Options,
        unit: float,
        masks: Masks | None = None,
    ):
        self._machine, self._model, self._optimizer, self._objective = machine, model, optimizer, objective
        self._clip, self._unit, self._masks = options.clip, unit, masks
        self._before, self._after = (getattr(method, name, None) for name in ("before_step", "after_step"))
        self._inner: nn.Module = getattr(model, "module", model)
        self._learning = [each for group in optimizer.param_groups for each in group["params"]]
        self._sums = torch.zeros(3, dtype=_wide(machine.device), device=machine.device)

    def run(self, part: Part) -> None:
        """Forward and backward of a part; gradients add up."""
        machine = self._machine
        batch = to_device(part.batch, machine.device)
        with nullcontext() if part.last else machine.unsynchronized(self._model):
            with machine.autocast():
                total, count = self._objective(self._model, batch)
            weight = (1.0 if part.counts else 0.0) / self._unit
            machine.scaler.scale(total * weight).backward()  # type: ignore[no-untyped-call]
        if part.counts:
            told = (total.detach(), count, tokens_of(batch, count))
            self._sums += torch.stack([each.to(self._sums.dtype) for each in told])

    def finish(self, rate: float) -> Told:
        """Change the weights by what the parts since the last time said.

        Args:
            rate: the learning rate.
        """
        machine, optimizer = self._machine, self._optimizer
        sums = machine.total(self._sums)
        self._sums = torch.zeros_like(sums)
        for group in optimizer.param_groups:
            group["lr"] = rate
        machine.scaler.unscale_(optimizer)
        if self._masks:
            self._masks.apply_gradients()
        if self._before is not None:
            self._before(self._inner)
        gradients = [each.grad for each in self._learning if each.grad is not None]
        # Processes average their gradients; this makes sums of them again.
        share = (machine.world * self._unit / sums[1].clamp(min=1)).float()
        norm = _norm(gradients) * share
        factor = share if self._clip is None else share * (self._clip / (norm + 1e-6)).clamp(max=1)
        if gradients:
            torch._foreach_mul_(gradients, factor)
        machine.scaler.step(optimizer)
        machine.scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if self._masks:
            self._masks.apply_weights(optimizer)
        if self._after is not None:
            with torch.no_grad():
                self._after(self._inner)
        return Told(sums, norm)


def unit_for(count: float) -> float:
    """The power of two nearest to what a part usually learns.

    >>> unit_for(700), unit_for(0)
    (512.0, 1.0)
    """
    return 2.0 ** max(0, round(math.log2(count))) if count >= 1 else 1.0


def tokens_of(batch: Batch, count: Tensor) -> Tensor:
    """How many tokens a batch has, without padding; where there are no tokens, how much is learned."""
    mask = batch.get("attention_mask")
    if isinstance(mask, Tensor) and mask.ndim == 2:
        return mask.sum()
    ids = batch.get("input_ids")
    return torch.full_like(count, ids.numel()) if isinstance(ids, Tensor) else count


def _norm(gradients: list[Tensor]) -> Tensor:
    if not gradients:
        return torch.zeros(())
    norm: Any = torch.nn.utils.get_total_norm(gradients)
    whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of parts that processes hold
    return whole


def _wide(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # which has no doubles
