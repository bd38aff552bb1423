# SPDX-License-Identifier: Apache-2.0
"""Every parameter learns that is not frozen."""

from __future__ import annotations

from torch import nn

from fewbit.tuning.options import Options

NEEDS_TEACHER = False
OPTIONS: tuple[str, ...] = ()


def setup(model: nn.Module, options: Options) -> nn.Module:
    """The model as it is; where everything is frozen, as a model that was made for inference may be, nothing is."""
    parameters = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    if not any(parameter.requires_grad for parameter in parameters):
        for parameter in parameters:
            parameter.requires_grad_(True)
    return model


def finish(model: nn.Module) -> nn.Module:
    """The model as it is."""
    return model
