# SPDX-License-Identifier: Apache-2.0
"""How far a model's answers and states are from a teacher's, at the positions that count; tensors in, sums out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fewbit.tuning.tasks._base import NOTHING, Batch, logits_of

_AT_ONCE = 2**24
"""Logits at a time: enough for a GPU to be busy, and 64 MB in float32."""


def divergence(student: Tensor, teacher: Tensor, where: Tensor | None, temperature: float) -> tuple[Tensor, int | None]:
    """T² KL(teacher ‖ student), summed over positions, and over how many; none where the task counts the same ones.

    Args:
        student: logits `[…, classes]`.
        teacher: the same.
        where: `[…]`, the positions that count; none for all.
        temperature: T.

    >>> float(divergence(torch.zeros(2, 3), torch.zeros(2, 3), None, 2.0)[0])
    0.0
    """
    student, teacher = student.flatten(0, -2), teacher.flatten(0, -2)
    rows = None if where is None else where.flatten().nonzero().flatten()
    total: Tensor = _Divergence.apply(student, teacher, rows, temperature)  # type: ignore[no-untyped-call]
    return total, len(student) if where is None else None


class _Divergence(torch.autograd.Function):
    """The sum of T² KL over rows, a few at a time, with its gradient found on the way.

    Logits of a vocabulary are the largest tensors of a step by far. Left to autograd, five of their size would be kept
    in float32 until the backward; here it is one in the student's dtype, the gradient T (softmax(s/T) - softmax(t/T)).
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, student: Tensor, teacher: Tensor, rows: Tensor | None, temperature: float
    ) -> Tensor:
        wide = torch.promote_types(student.dtype, torch.float32)
        total = student.new_zeros((), dtype=wide)
        slope = torch.zeros_like(student) if ctx.needs_input_grad[0] else None
        every = torch.arange(len(student), device=student.device) if rows is None else rows
        step = max(1, _AT_ONCE // max(1, student.shape[-1]))
        for start in range(0, len(every), step):
            some = every[start : start + step]
            ours = functional.log_softmax(student[some].to(wide) / temperature, -1)
            theirs = functional.log_softmax(teacher[some].to(wide) / temperature, -1)
            total += functional.kl_div(ours, theirs, log_target=True, reduction="sum")
            if slope is not None:
                slope[some] = ours.exp_().sub_(theirs.exp_()).mul_(temperature).to(slope.dtype)
        ctx.slope = slope
        return total * temperature**2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:  # type: ignore[override]
        return ctx.slope * grad.to(ctx.slope.dtype), None, None, None


def hidden_distance(
    student: Tensor | None, teacher: Tensor | None, where: Tensor | None, batch: Batch
) -> tuple[Tensor, int | None]:
    """The mean squared difference of states in units of the teacher's mean square, summed over positions or samples.

    The second number is how many these are, or none where the task counts the same ones.

    Args:
        student: `[batch, positions, features]`, or any other shape that begins with the batch.
        teacher: the same.
        where: the positions that count, if they are those of the states.
        batch: whose `attention_mask` says which positions there are.
    """
    assert student is not None and teacher is not None
    student, teacher = student.float(), teacher.float()
    mask = batch.get("attention_mask")
    counted = where is not None and where.shape == student.shape[:-1]
    if counted:
        student, teacher = student[where], teacher[where]
    elif isinstance(mask, Tensor) and mask.shape == student.shape[:-1]:
        student, teacher = (each * mask[..., None] for each in (student, teacher))
        student, teacher = student.flatten(1), teacher.flatten(1)
    else:
        student, teacher = student.flatten(1), teacher.flatten(1)
    off, size = (student - teacher).square().sum(-1), teacher.square().sum(-1)
    return (off / size.clamp(min=torch.finfo(torch.float32).tiny)).sum(), None if counted else len(off)


def positions(logits: Tensor, batch: Batch, task: Any) -> Tensor | None:
    """Where the task learns something, `[…]` of logits `[…, classes]`; none where labels do not say."""
    labels = batch.get("labels")
    if not isinstance(labels, Tensor) or labels.is_floating_point():
        return None
    if task.MODEL == "AutoModelForCausalLM":  # position t is asked for token t + 1
        labels = functional.pad(labels, (0, 1), value=NOTHING)[..., 1:]
    if labels.numel() != logits.shape[:-1].numel():
        return None
    return labels.reshape(logits.shape[:-1]) != NOTHING


def logits_of_all(outputs: Any) -> list[Tensor]:
    """Every set of logits of an answer, classes last: of start and end of an answer, of pixels, or just the logits."""
    found = list(named_logits(outputs).values())
    return [each.movedim(1, -1) if each.ndim == 4 else each for each in found]


def named_logits(outputs: Any) -> dict[str, Tensor]:
    """Every set of logits of an answer by name, as it is."""
    names = outputs.keys() if isinstance(outputs, Mapping) else ()
    found = {name: outputs[name] for name in names if name.endswith("logits") and isinstance(outputs[name], Tensor)}
    return found or {"logits": logits_of(outputs)}
