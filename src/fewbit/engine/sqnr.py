# SPDX-License-Identifier: Apache-2.0
"""The signal-to-quantization-noise ratio of a model's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, log10

from torch import Tensor

_MOST = 200.0  # dB: outputs that are the same


_CONSTANT = 1e-6  # share of an output's energy about its mean, below which it counts as constant


def sqnr(wanted: Sequence[list[Tensor]], found: Sequence[list[Tensor]], *, about_mean: bool = False) -> float | None:
    """The signal-to-quantization-noise ratio in dB, the mean over outputs; `None` if outputs are not finite.

    Outputs of other shapes, and those that are no floats or all zero, are left out. With `about_mean` the mean of a
    wanted output over all items is no signal, unless that output is constant.

    >>> import torch
    >>> sqnr([[torch.tensor([10.0])]], [[torch.tensor([11.0])]])
    20.0
    """
    signal: dict[int, float] = {}
    noise: dict[int, float] = {}
    sums: dict[int, float] = {}
    sizes: dict[int, int] = {}
    for ours, theirs in zip(wanted, found):
        for index, (a, b) in enumerate(zip(ours, theirs)):
            if a.shape == b.shape and a.is_floating_point() and a.numel():
                signal[index] = signal.get(index, 0.0) + float(a.double().square().sum())
                noise[index] = noise.get(index, 0.0) + float((b.double() - a.double()).square().sum())
                sums[index] = sums.get(index, 0.0) + float(a.double().sum())
                sizes[index] = sizes.get(index, 0) + a.numel()
    if about_mean:
        for index, energy in signal.items():
            rest = energy - sums[index] ** 2 / sizes[index]
            signal[index] = rest if rest > _CONSTANT * energy else energy
    shares = [noise[index] / signal[index] for index in signal if signal[index] > 0]
    if not shares or not all(map(isfinite, shares)):
        return None
    return min(_MOST, -10 * log10(max(sum(shares) / len(shares), 1e-30)))
