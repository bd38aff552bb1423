# SPDX-License-Identifier: Apache-2.0
"""From samples to the inputs of a model."""

from fewbit.data.inputs import adapter, advisor, casts, check, items, match
from fewbit.data.inputs.adapter import InputAdapter, load_transform, model_inputs
from fewbit.data.inputs.advisor import advise
from fewbit.data.inputs.batch import Batch
from fewbit.data.inputs.check import check_inputs

ISSUES = (*match.ISSUES, *casts.ISSUES, *items.ISSUES, *adapter.ISSUES, *check.ISSUES, *advisor.ISSUES)
"""What comparing samples with a model can find."""

__all__ = ["ISSUES", "Batch", "InputAdapter", "advise", "check_inputs", "load_transform", "model_inputs"]
