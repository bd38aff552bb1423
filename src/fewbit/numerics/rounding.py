# SPDX-License-Identifier: Apache-2.0
"""The one place where numbers are rounded."""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor


class RoundType(Enum):
    """How a number between two grid points is settled."""

    half_even = "half_even"
    round = "round"  # halves away from zero
    floor = "floor"
    stochastic = "stochastic"


def round_to_integer(x: Tensor, mode: RoundType = RoundType.half_even, *, seed: int = 0) -> Tensor:
    """Round every element to an integer value, the same on every device.

    Args:
        x: any float tensor.
        mode: how to settle what lies between two integers.
        seed: for `stochastic`; equal seeds and shapes give equal results.

    >>> round_to_integer(torch.tensor([0.5, 1.5, -0.5]), RoundType.round)
    tensor([ 1.,  2., -1.])
    """
    if mode is RoundType.half_even:
        return x.round()
    if mode is RoundType.floor:
        return x.floor()
    if mode is RoundType.round:
        whole = x.trunc()  # adding 0.5 first would carry 0.49999997 over; the difference here is exact
        return whole + x.sign() * ((x - whole).abs() >= 0.5)
    low = x.floor()
    return low + (uniform(x.shape, seed, x.device) < x - low)


def uniform(shape: torch.Size, seed: int, device: torch.device) -> Tensor:
    """Numbers in [0, 1) that depend on seed and position alone: a counter hashed, not a generator's state.

    Generators give other numbers on other devices; this does not. The mixing steps are those of the 32-bit murmur
    finalizer, in int64 because torch has no unsigned multiplication.
    """
    count = torch.arange(shape.numel(), device=device, dtype=torch.int64)
    mixed = (count + (seed * 0x9E3779B9 & 0xFFFFFFFF)) & 0xFFFFFFFF
    for multiplier, shift in ((0x85EBCA6B, 16), (0xC2B2AE35, 13)):
        mixed = ((mixed ^ (mixed >> shift)) * multiplier) & 0xFFFFFFFF
    mixed = mixed ^ (mixed >> 16)
    return ((mixed >> 8).to(torch.float32) * 2.0**-24).reshape(shape)
