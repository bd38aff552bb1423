# SPDX-License-Identifier: Apache-2.0
"""Orthogonal matrices that spread every channel over all, kept as factors: width · (64 + 64) products, not width²."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt

import torch
from torch import Tensor

from fewbit.algorithms._hadamard import hadamard_factors
from fewbit.numerics.rounding import uniform

_CHUNK = 1 << 22  # elements that are float64 at a time


@dataclass(frozen=True)
class Orthogonal:
    """An orthogonal matrix Q, the same block again and again along its diagonal but for signs.

    Args:
        factors: Hadamard matrices; their Kronecker product H makes a block.
        signs: ±1 for every channel, `[width]`.
        centred: Q keeps the mean of all channels, Q 1 = 1: it is H D Hᵀ instead of D H, D being the signs.

    >>> turn = Orthogonal.spreading(12, 4)
    >>> torch.dist(turn.matrix @ turn.matrix.T, torch.eye(12)) < 1e-12
    tensor(True)
    """

    factors: tuple[Tensor, ...]
    signs: Tensor
    centred: bool = False

    @classmethod
    def spreading(cls, width: int, block: int, *, centred: bool = False, seed: int = 0) -> Orthogonal:
        """Blocks of the largest order that divides both the width and what was asked for, and has such a matrix.

        Args:
            width: of Q.
            block: channels that may be mixed with one another: the width for all with all.
            centred: keep the mean.
            seed: of the signs, which are the same on every device.
        """
        orders = (n for n in range(min(block, width), 0, -1) if width % n == 0 and block % n == 0)
        factors = next(found for n in orders if (found := hadamard_factors(n)) is not None)
        signs = torch.where(uniform(torch.Size([width]), seed, torch.device("cpu")) < 0.5, -1.0, 1.0).double()
        order = prod(map(len, factors))
        if centred:
            signs[::order] = 1.0  # of what H turns the mean into
        return cls(factors, signs, centred)

    @property
    def width(self) -> int:
        """The order of Q."""
        return len(self.signs)

    @property
    def block(self) -> int:
        """The order of the blocks along its diagonal."""
        return prod(map(len, self.factors))

    @property
    def matrix(self) -> Tensor:
        """Q itself, float64 `[width, width]`."""
        return self(torch.eye(self.width, dtype=torch.float64))

    def __call__(self, x: Tensor) -> Tensor:
        """x Q along the last axis, computed in float64 and given in the type of x."""
        rows = x.reshape(-1, self.width)
        done = torch.empty_like(rows)
        size = max(_CHUNK // self.width, 1)
        for start in range(0, len(rows), size):
            done[start : start + size] = self._turned(rows[start : start + size].double())
        return done.reshape(x.shape)

    def _turned(self, x: Tensor) -> Tensor:
        signs = self.signs.to(x.device)
        return self._mixed(self._mixed(x) * signs, back=True) if self.centred else self._mixed(x * signs)

    def _mixed(self, x: Tensor, *, back: bool = False) -> Tensor:
        """x H / √block, or x Hᵀ / √block, factor by factor."""
        y = x.reshape(len(x), -1, *map(len, self.factors))
        for axis, factor in enumerate(self.factors, 2):
            by = (factor.T if back else factor).to(x.device)
            y = torch.tensordot(y, by, ([axis], [0])).movedim(-1, axis)
        return y.reshape(x.shape) / sqrt(self.block)
