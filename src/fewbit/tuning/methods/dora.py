# SPDX-License-Identifier: Apache-2.0
"""As LoRA, with the lengths of the weight's rows learned apart from their directions."""

from __future__ import annotations

from torch import nn

from fewbit.tuning.methods import lora
from fewbit.tuning.options import Options

NEEDS_TEACHER = False
OPTIONS = lora.OPTIONS
finish = lora.finish


def setup(model: nn.Module, options: Options) -> nn.Module:
    """Put adapters on the linear layers that `targets` names, or on all but the head."""
    return lora.with_adapters(model, options, dora=True)
