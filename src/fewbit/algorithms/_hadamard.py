# SPDX-License-Identifier: Apache-2.0
"""Hadamard matrices: entries of ±1, rows orthogonal to one another, first row and column all ones.

Powers of two are Sylvester's. What is left of other orders is Paley's (1933): one more than a prime, or twice that. So
nearly every width that models have is covered by formulas, and no table is needed.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

_LARGEST = 512  # of a factor that is no power of two: it is multiplied with as a dense matrix
_POWER = 64  # of a factor that is one, for the same reason


@cache
def hadamard_factors(order: int) -> tuple[Tensor, ...] | None:
    """Hadamard matrices whose Kronecker product is one of this order; none where no formula here gives one.

    >>> [len(factor) for factor in hadamard_factors(576)], hadamard_factors(18)
    ([16, 36], None)
    """
    odd = order // (order & -order)
    if odd == 1:
        return tuple(map(_sylvester, _split(order)))
    core = odd * 4
    while order % core == 0 and core <= _LARGEST:
        found = _paley(core)
        if found is not None:
            return (*map(_sylvester, _split(order // core)), found)
        core *= 2
    return None


def _split(power: int) -> list[int]:
    """Powers of two no larger than one factor, whose product it is."""
    found = []
    while power > 1:
        found.append(min(power, _POWER))
        power //= found[-1]
    return found or [1]


def _sylvester(order: int) -> Tensor:
    found = torch.ones(1, 1, dtype=torch.float64)
    pair = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    while len(found) < order:
        found = torch.kron(found, pair)
    return found


def _paley(order: int) -> Tensor | None:
    """By the quadratic residues of a prime q: q + 1 where q leaves 3 over four, 2 (q + 1) where it leaves 1."""
    if _is_prime(order - 1) and (order - 1) % 4 == 3:
        core = _bordered(order - 1, -1.0)
        return _normal(core + torch.eye(order, dtype=torch.float64))
    half = order // 2
    if order % 2 == 0 and _is_prime(half - 1) and (half - 1) % 4 == 1:
        core, eye = _bordered(half - 1, 1.0), torch.eye(half, dtype=torch.float64)
        one = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
        other = torch.tensor([[1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64)
        return _normal(torch.kron(core, one) + torch.kron(eye, other))
    return None


def _bordered(prime: int, side: float) -> Tensor:
    """Whether differences are squares modulo a prime, +1 or -1, zero on the diagonal; with a border of ones."""
    squares = {number * number % prime for number in range(1, prime)}
    character = torch.tensor([0.0] + [1.0 if n in squares else -1.0 for n in range(1, prime)], dtype=torch.float64)
    index = torch.arange(prime)
    found = torch.zeros(prime + 1, prime + 1, dtype=torch.float64)
    found[1:, 1:] = character[(index[:, None] - index[None]) % prime]
    found[0, 1:], found[1:, 0] = 1.0, side
    return found


def _normal(found: Tensor) -> Tensor:
    found = found * found[:1]
    return found * found[:, :1]


def _is_prime(number: int) -> bool:
    return number > 2 and all(number % by for by in range(2, int(number**0.5) + 1))
