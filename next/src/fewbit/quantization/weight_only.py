# SPDX-License-Identifier: Apache-2.0
"""Weight-only quantization by rounding to nearest."""

from __future__ import annotations

from collections.abc import Iterator

from fewbit.backends._base import EncodeWeight, Model
from fewbit.numerics.rounding import quantize_symmetric
from fewbit.progress import Bar
from fewbit.quantization.plan import Plan


def quantize_weights(model: Model, plan: Plan, bar: Bar) -> None:
    """Replace the planned weights of a model by integers and scales; shared weights once."""
    model.apply(_edits(model, plan, bar))


def _edits(model: Model, plan: Plan, bar: Bar) -> Iterator[EncodeWeight]:
    done: set[str] = set()
    for entry in bar.track(plan.layers):
        layer = entry.layer
        if entry.quantized and layer.weight not in done:
            done.add(layer.weight)
            integers, scales = quantize_symmetric(
                model.weight(layer.weight), plan.preset.weight_bits, layer.channel_axis
            )
            yield EncodeWeight(layer.weight, integers, scales, layer.channel_axis)
