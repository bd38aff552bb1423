# SPDX-License-Identifier: Apache-2.0
"""From samples to the inputs of a model."""

from fewbit.data.inputs.adapter import InputAdapter, model_inputs

__all__ = ["InputAdapter", "model_inputs"]
