# SPDX-License-Identifier: Apache-2.0
"""Weight-only quantization by rounding to nearest."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fewbit.backends._base import EncodeWeight, Model
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import BlockShape
from fewbit.numerics.quantize import QuantizationGrid, qparams_from_min_max, quantize
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


def quantize_symmetric(weight: np.ndarray, bits: int, axis: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Round a weight to the nearest integers, one scale per index of an axis.

    Returns:
        The integers, int8, and the scales, float32, of shape [channels] or [].
    """
    block = tuple(1 if index == axis else side for index, side in enumerate(weight.shape))
    low, high = BlockShape(weight.shape, block).extremes(weight)
    qparams = qparams_from_min_max(low, high, QuantizationGrid(Dtype[f"int{bits}"]), block)
    return quantize(weight, qparams), qparams.scale.reshape(() if axis is None else (-1,))
