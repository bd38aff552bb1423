# SPDX-License-Identifier: Apache-2.0
"""Learning from a teacher: the answers of the uncompressed model, and if wanted what flows inside it.

The loss of a position is T² · KL(softmax(t/T) ‖ softmax(s/T)) (Hinton et al., arXiv 1503.02531), summed over the
positions at which the task learns something and no others: padding and prompts teach nothing. So it comes as a sum and
a count, the task's own count, and a step in several batches has the gradient of one large batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.data.capturing.modes import evaluating
from fewbit.errors import UsageError
from fewbit.tuning.blocks import Outputs, find_blocks, pair_blocks
from fewbit.tuning.calling import run
from fewbit.tuning.distances import divergence, hidden_distance, logits_of_all, named_logits, positions
from fewbit.tuning.tasks._base import Batch


class Distillation:
    """What is minimized when there is a teacher: a part of the task's loss and a part of its distance from the teacher.

    Args:
        task: its module.
        teacher: on the student's device, a model of its own: it is put in eval mode.
        temperature: how much logits are softened; above 1 unlikely answers count more.
        weight: the teacher's part, 0 to 1; the rest is the task's.
        hidden: how much the states between blocks count beside the logits; 0 leaves them out.

    Raises:
        UsageError: a teacher without blocks, where hidden states are asked for.
    """

    def __init__(
        self, task: Any, teacher: nn.Module, *, temperature: float = 2.0, weight: float = 0.5, hidden: float = 0.0
    ):
        self._task, self._teacher = task, teacher.eval()
        self._temperature, self._weight, self._hidden = temperature, weight, hidden
        self._answers = getattr(task, "ANSWERS", ("labels",))
        self._blocks = find_blocks(teacher) if hidden else []
        if hidden and not self._blocks:
            raise _no_blocks("teacher", teacher)

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Run both on a batch; the mixed loss as a sum, and the task's count.

        Raises:
            UsageError: their answers or states are not of one shape.
        """
        pairs = self._pairs(model)
        with Outputs([mine for mine, _ in pairs]) as mine, Outputs([other for _, other in pairs]) as theirs:
            outputs = run(model, batch, self._answers)
            with torch.no_grad():
                wanted = run(self._teacher, batch, self._answers)
        refuse_unlike(named_logits(outputs), named_logits(wanted), mine.states(), theirs.states())
        total, count = self._task.loss(outputs, batch)
        where = positions(logits_of_all(outputs)[0], batch, self._task)
        distance = _mean_over(
            [
                divergence(ours, other, where, self._temperature)
                for ours, other in zip(logits_of_all(outputs), logits_of_all(wanted))
            ],
            count,
        )
        if pairs:
            apart = [hidden_distance(ours, other, where, batch) for ours, other in zip(mine.states(), theirs.states())]
            distance = distance + self._hidden * _mean_over(apart, count)
        return (1 - self._weight) * total + self._weight * distance, count

    def check(self, model: nn.Module, batch: Batch) -> None:
        """Refuse a teacher that does not fit, before anything is trained; the model is left as it is.

        Raises:
            UsageError: everything that does not fit.
        """
        with evaluating(model):
            self(model, batch)

    def _pairs(self, model: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
        if not self._hidden:
            return []
        blocks = find_blocks(getattr(model, "module", model))
        if not blocks:
            raise _no_blocks("model", model)
        return pair_blocks(blocks, self._blocks)


def refuse_unlike(
    student: Mapping[str, Tensor],
    teacher: Mapping[str, Tensor],
    states: list[Tensor | None],
    their_states: list[Tensor | None],
) -> None:
    """Refuse answers and states of other shapes, all at once."""
    faults = [
        f"{name} are {_shape(student.get(name))} of the model and {_shape(teacher.get(name))} of the teacher"
        for name in sorted(student.keys() | teacher.keys())
        if _shape(student.get(name)) != _shape(teacher.get(name))
    ]
    inside = [
        f"the states of block {index} are {_shape(mine)} of the model and {_shape(other)} of the teacher"
        for index, (mine, other) in enumerate(zip(states, their_states))
        if mine is None or _shape(mine) != _shape(other)
    ]
    if faults or inside:
        raise UsageError(
            "; ".join(faults + inside),
            where="teacher",
            expected="a teacher with the same vocabulary or classes"
            + (", and blocks of the same width" if states else ""),
            try_="the model before it was compressed"
            + ("; hidden_weight=0 compares logits alone" if inside and not faults else ""),
        )


def _mean_over(parts: list[tuple[Tensor, int | None]], count: Tensor) -> Tensor:
    """The mean of several sums, each as if it were one over the task's count."""
    scaled = [total if how_many is None else total * (count / max(how_many, 1)) for total, how_many in parts]
    return torch.stack(scaled).mean()


def _shape(tensor: Tensor | None) -> list[int] | None:
    return None if tensor is None else list(tensor.shape)


def _no_blocks(what: str, model: nn.Module) -> UsageError:
    return UsageError(
        f"the {what}, a {type(model).__name__}, is not stacked of blocks of one class",
        where="hidden_weight",
        expected="a stack of blocks, whose states can be compared",
        try_="hidden_weight=0, which compares logits alone",
    )
