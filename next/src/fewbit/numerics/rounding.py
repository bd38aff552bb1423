# SPDX-License-Identifier: Apache-2.0
"""The one place where numbers are rounded to integers."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np

from fewbit.numerics.ops import Array, arange, cast, is_numpy, like, namespace, quiet


class RoundType(Enum):
    """How a number between two integers is rounded."""

    half_even = "half_even"
    round = "round"  # halves away from zero
    floor = "floor"
    stochastic = "stochastic"


def round_to_integer(
    x: Array, mode: RoundType = RoundType.half_even, *, seed: int = 0, in_place: bool = False
) -> Array:
    """Round to integers, the same on every device; what becomes zero keeps its sign.

    Args:
        x: float32 or float64, any shape.
        mode: how to round what lies between two integers.
        seed: of `stochastic`; equal seeds and shapes give equal results.
        in_place: write the result into `x`.

    >>> round_to_integer(np.array([0.5, 1.5, -0.5], np.float32), RoundType.round).tolist()
    [1.0, 2.0, -1.0]
    """
    if not in_place:
        x = x.copy() if is_numpy(x) else x.clone()
    xp = namespace(x)
    if mode is RoundType.half_even:
        return np.rint(x, out=x) if xp is np else x.round_()
    if mode is RoundType.floor:
        return np.floor(x, out=x) if xp is np else x.floor_()
    if mode is RoundType.round:
        # The number before one half, not one half: 0.49999997 + 0.5 is 1 in float32. Exact halves still carry, as
        # the sum lies midway between two floats and the one above ends in a zero.
        x += xp.copysign(xp.full_like(x, 0.5 - xp.finfo(x.dtype).eps / 4), x)
        return np.trunc(x, out=x) if xp is np else x.trunc_()
    with quiet(x):
        low = xp.floor(x)
        up = uniform(tuple(x.shape), seed, x) < x - low
        x[...] = xp.copysign(low + cast(up, x.dtype), x)
    return x


def uniform(shape: Sequence[int], seed: int, x: Array) -> Array:
    """Numbers in [0, 1), float32, that depend on seed and position alone: a hashed counter, no generator's state.

    Generators give other numbers on other devices. Position and seed are mixed one after the other, so that the
    streams of two seeds are not shifts of one another.

    Args:
        shape: of the result.
        seed: 64 bits count.
        x: gives library and device.
    """
    count = 1
    for side in shape:
        count *= side
    mixed = _hash((_hash(arange(count, x) & _WORD) + int(_hash(_hash(seed >> 32 & _WORD) + seed & _WORD))) & _WORD)
    return (cast(mixed >> 8, "float32") * like(2.0**-24, x)).reshape(tuple(shape))


# The two-round 32-bit hash of https://github.com/skeeto/hash-prospector. Both multipliers are below 2^31, so that no
# product leaves int64: torch has no unsigned multiplication.
_WORD = 0xFFFFFFFF
_ROUNDS = ((16, 0x21F0AAAD), (15, 0x735A2D97))


def _hash(word: Array | int) -> Array | int:
    for shift, multiplier in _ROUNDS:
        word = ((word ^ (word >> shift)) * multiplier) & _WORD
    return word ^ (word >> 15)
