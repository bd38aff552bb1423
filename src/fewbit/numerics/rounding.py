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
    """Round every element to an integer value, the same on every device; what becomes zero keeps its sign.

    Args:
        x: any float tensor.
        mode: how to settle what lies between two integers.
        seed: for `stochastic`; equal seeds and shapes give equal results.

    >>> round_to_integer(torch.tensor([0.5, 1.5, -0.5]), RoundType.round)
    tensor([ 1.,  2., -1.])
    """
    return round_(x.clone(), mode, seed=seed)


def round_(x: Tensor, mode: RoundType = RoundType.half_even, *, seed: int = 0) -> Tensor:
    """`round_to_integer` in place."""
    if mode is RoundType.half_even:
        return x.round_()
    if mode is RoundType.floor:
        return x.floor_()
    if mode is RoundType.round:
        # The number before one half, not one half: 0.49999997 + 0.5 is 1 in float32. Exact halves still carry, as the
        # sum lies midway between two floats and the one above ends in a zero.
        below_half = 0.5 - torch.finfo(x.dtype).eps / 4
        return x.add_(torch.full_like(x, below_half).copysign_(x)).trunc_()
    low = x.floor()
    up = uniform(x.shape, seed, x.device) < x - low
    return x.copy_(low.add_(up).copysign_(x))


def uniform(shape: torch.Size, seed: int, device: torch.device) -> Tensor:
    """Numbers in [0, 1) that depend on seed and position alone: a counter hashed, not a generator's state.

    Generators give other numbers on other devices; this does not. Position and seed are mixed one after the other, so
    the streams of two seeds are not shifts of one another.
    """
    count = torch.arange(shape.numel(), device=device, dtype=torch.int64)
    mixed = _mix((_mix(count & _WORD) + _mix_number(seed)) & _WORD)
    return (mixed >> 8).to(torch.float32).mul_(2.0**-24).reshape(shape)


# The two-round 32-bit integer hash of https://github.com/skeeto/hash-prospector. Both multipliers are below
# 2^31, so that no product leaves int64: torch has no unsigned multiplication.
_WORD = 0xFFFFFFFF
_ROUNDS = ((16, 0x21F0AAAD), (15, 0x735A2D97))


def _mix(word: Tensor) -> Tensor:
    for shift, multiplier in _ROUNDS:
        word = ((word ^ (word >> shift)) * multiplier) & _WORD
    return word ^ (word >> 15)


def _mix_number(seed: int) -> int:
    """The same for the seed, of which 64 bits count."""
    word = 0
    for part in (seed >> 32, seed):
        word = (word + part) & _WORD
        for shift, multiplier in _ROUNDS:
            word = ((word ^ (word >> shift)) * multiplier) & _WORD
        word ^= word >> 15
    return word
