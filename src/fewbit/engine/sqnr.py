# SPDX-License-Identifier: Apache-2.0
"""The signal-to-quantization-noise ratio of a model's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, log10

from torch import Tensor

_MOST = 200.0  # dB: outputs that are the same


def sqnr(wanted: Sequence[list[Tensor]], found: Sequence[list[Tensor]]) -> float | None:
    """The signal-to-quantization-noise ratio in dB, the mean over outputs; `None` if outputs are not finite.

    Outputs of other shapes, and those that are no floats or all zero, are left out.

    >>> import torch
    >>> sqnr([[torch.tensor([10.0])]], [[torch.tensor([11.0])]])
    20.0
    """
    signal: dict[int, float] = {}
    noise: dict[int, float] = {}
    for ours, theirs in zip(wanted, found):
        for index, (a, b) in enumerate(zip(ours, theirs)):
            if a.shape == b.shape and a.is_floating_point() and a.numel():
                signal[index] = signal.get(index, 0.0) + float(a.double().square().sum())
                noise[index] = noise.get(index, 0.0) + float((b.double() - a.double()).square().sum())
    shares = [noise[index] / signal[index] for index in signal if signal[index] > 0]
    if not shares or not all(map(isfinite, shares)):
        return None
    return min(_MOST, -10 * log10(max(sum(shares) / len(shares), 1e-30)))
