# SPDX-License-Identifier: Apache-2.0
"""What a method is.

A member is a file with

- `NEEDS_TEACHER`: whether it makes no sense without `teacher=`;
- `setup(model, options) -> model`: makes a model ready to be trained; parameters that learn have `requires_grad`, all
  others have not. The model is a copy that the method may change. One with an argument `batches` is given a few batches
  of the training data, one with an argument `teacher` the teacher, if there is one;
- `finish(model) -> model`: what the user gets of the trained model. One with a second argument `batches` is given a few
  batches, of the validation data where there is some, to measure by;

and where there is a use for them

- `OPTIONS`: names of settings that are for it and for methods that name them too; all others find them without effect;
- `DEFAULTS`: settings that are other ones here, if the user does not say them;
- `parameter_groups(model, options) -> list[dict]`: groups for the optimizer, `weight_decay` included; matrices with
  weight decay and vectors without, if it says none;
- `before_step(model)`: changes gradients before their norm is taken, such as to hold zeros where they are;
- `after_step(model)`: changes weights after a step;
- `objective(task, teacher, options) -> Objective`: what is minimized instead of the task's loss. The one of `distill`
  is used with every method, where there is a teacher.

What a run learned is in parameters with `requires_grad` and in buffers; those, and nothing else, are in a checkpoint.
So `setup` makes the same of the same model each time, random numbers included: they are seeded when it is called.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from fewbit.tuning.options import Options
from fewbit.tuning.tasks._base import Batch


class Objective(Protocol):
    """What is minimized: called with the model and a batch, gives a sum and over how much it is one."""

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Run the model; the loss summed over whatever is learned, and over how much of it."""


class Method(Protocol):
    """What a method module offers at least."""

    NEEDS_TEACHER: bool

    def setup(self, model: nn.Module, options: Options) -> nn.Module:
        """Make a model ready to be trained."""

    def finish(self, model: nn.Module) -> nn.Module:
        """What the user gets of it."""


def decayed(model: nn.Module, options: Options) -> list[dict[str, Any]]:
    """Parameters that learn, as two groups: matrices with weight decay, vectors without."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [each for each in learning if each.ndim >= 2], "weight_decay": options.weight_decay},
        {"params": [each for each in learning if each.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
