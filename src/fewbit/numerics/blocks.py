# SPDX-License-Identifier: Apache-2.0
"""How a tensor is cut into blocks that share one scale.

Every granularity is a block shape: per tensor the whole shape, per channel one index of an axis, per group a run along
an axis, per block a rectangle. Scales have one entry a block: the tensor's number of axes, each divided by the block's
side and rounded up. So `[out, in]` in groups of 32 along `in` has scales `[out, ceil(in / 32)]`; a last block that is
cut short keeps a scale of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor


class QSchemeType(Enum):
    """Which elements share a scale."""

    per_tensor = "per_tensor"
    per_channel = "per_channel"
    per_group = "per_group"
    per_block = "per_block"
    per_token = "per_token"


@dataclass(frozen=True)
class Blocks:
    """A tensor shape and the block shape it is cut by.

    >>> Blocks((4, 70), (1, 32)).counts
    (4, 3)
    """

    shape: tuple[int, ...]
    block: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Blocks along each axis: the shape of the scales."""
        return tuple(-(-side // width) for side, width in zip(self.shape, self.block))

    @property
    def divides(self) -> bool:
        """Whether no block is cut short."""
        return all(side % width == 0 for side, width in zip(self.shape, self.block))

    def split(self, x: Tensor) -> Tensor:
        """`x` as `[n0, b0, n1, b1, …]`: a view where the blocks divide the shape, a zero-padded copy where not."""
        if not self.divides:
            pads = [(-side) % width for side, width in zip(self.shape, self.block)]
            x = F.pad(x, [p for pad in reversed(pads) for p in (0, pad)])
        return x.reshape([side for pair in zip(self.counts, self.block) for side in pair])

    def spread(self, scale: Tensor) -> Tensor:
        """Scales of shape `counts` as `[n0, 1, n1, 1, …]`, to be broadcast against `split(x)`."""
        return scale.reshape([side for n in self.counts for side in (n, 1)])

    def lay(self, x: Tensor) -> Tensor:
        """`x`, never padded, in a shape that meets `over(scale)`; `reshape` brings it back."""
        return self.split(x) if self.divides else x

    def over(self, scale: Tensor) -> Tensor:
        """Scales of shape `counts`, to be broadcast against `lay(x)`."""
        if self.divides:
            return self.spread(scale)
        for axis, (count, width) in enumerate(zip(self.counts, self.block)):
            if count > 1 and width > 1:
                # An index, and no repeat that is then cut: torch 2.13 compiles that to loops that miss the last block.
                owner = torch.arange(self.shape[axis], device=scale.device) // width
                scale = scale.index_select(axis, owner)
        return scale

    def rows(self, x: Tensor) -> Tensor:
        """`x` as `[blocks, elements of a block]`, block order as in the flattened scales."""
        axes = len(self.shape)
        parts = self.split(x).permute([*range(0, 2 * axes, 2), *range(1, 2 * axes, 2)])
        return parts.reshape(prod(self.counts), prod(self.block))

    def merged(self, *, keep_last: bool = False) -> Blocks:
        """The same blocks over fewer axes: neighbours are put together where elements and scales keep their order.

        Args:
            keep_last: leave the last axis alone.

        >>> Blocks((8, 4, 64), (1, 1, 32)).merged()
        Blocks(shape=(2048,), block=(32,))
        """
        pairs = list(zip(self.shape, self.block))
        last = pairs[-1:] if keep_last else []
        done: list[tuple[int, int]] = []
        for side, width in pairs[: len(pairs) - len(last)]:
            before, wide = done[-1] if done else (1, 1)
            if width == side:  # a whole axis belongs to the block of the axis before it
                done[-1:] = [(before * side, wide * side)]
            elif wide == 1 and side % width == 0:
                done[-1:] = [(before * side, width)]
            else:
                done.append((side, width))
        done += last
        return Blocks(tuple(side for side, _ in done), tuple(width for _, width in done))
