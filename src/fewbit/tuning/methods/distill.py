# SPDX-License-Identifier: Apache-2.0
"""The model learns to answer as its teacher does: the way to give a compressed model its accuracy back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from fewbit.modules.coded import Quantized
from fewbit.tuning.distilling import Distillation
from fewbit.tuning.methods import full, qat
from fewbit.tuning.options import Options
from fewbit.tuning.tasks._base import Batch
from fewbit.tuning.training_quantized import is_learning

NEEDS_TEACHER = True
OPTIONS = qat.OPTIONS
DEFAULTS = {"distill_weight": 1.0}
parameter_groups = qat.parameter_groups


def setup(
    model: nn.Module, options: Options, batches: Iterable[Batch] = (), teacher: nn.Module | None = None
) -> nn.Module:
    """Let everything learn; a quantized model with its rounding in place, and a float one if `preset` says so."""
    quantized = any(isinstance(module, Quantized) for module in model.modules())
    if quantized or options.preset is not None:
        return qat.setup(model, options, batches, teacher)
    return full.setup(model, options)


def finish(model: nn.Module) -> nn.Module:
    """The model as it came: with codes if it had codes."""
    return qat.finish(model) if is_learning(model) else full.finish(model)


def objective(task: Any, teacher: nn.Module, options: Options) -> Distillation:
    """A part of the task's loss and a part of the distance from the teacher."""
    return Distillation(
        task,
        teacher,
        temperature=options.temperature,
        weight=options.distill_weight,
        hidden=options.hidden_weight,
    )
