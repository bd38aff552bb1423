# SPDX-License-Identifier: Apache-2.0
"""Which elements share a scale: every granularity is a block shape.

Per tensor the block is the shape itself, per channel one index of an axis, per group a run along an axis, per block a
rectangle. There is one scale per block, so scales have the axes of the tensor, each divided by the block's side and
rounded up: `[out, in]` in groups of 32 along `in` has scales `[out, ceil(in / 32)]`. A short last block has its scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod

from fewbit.numerics.ops import Array, amax, amin, arange, like, pad_end, take


class QSchemeType(Enum):
    """Which elements share a scale."""

    per_tensor = "per_tensor"
    per_channel = "per_channel"
    per_group = "per_group"
    per_block = "per_block"
    per_token = "per_token"


@dataclass(frozen=True)
class BlockShape:
    """A tensor shape and the shape of the blocks it is divided into.

    >>> BlockShape((4, 70), (1, 32)).counts
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
        """Whether no block is short."""
        return all(side % width == 0 for side, width in zip(self.shape, self.block))

    def split(self, x: Array, fill: float | None = None) -> Array:
        """`x` as `[n0, b0, n1, b1, …]`: a view if the blocks divide the shape, else a padded copy.

        Args:
            x: of this shape.
            fill: what short blocks are filled with; by default they repeat their own values, which changes neither
                their extremes nor, much, their percentiles.
        """
        if not self.divides and fill is not None:
            x = pad_end(x, [-side % width for side, width in zip(self.shape, self.block)], fill)
        elif not self.divides:
            for axis, (side, width) in enumerate(zip(self.shape, self.block)):
                if side % width:
                    x = take(x, _repeating(side, width, x), axis)
        return x.reshape([side for pair in zip(self.counts, self.block) for side in pair])

    def view(self, x: Array) -> Array:
        """`x`, never padded, in a shape that broadcasts against `broadcast(scale)`; `reshape` brings it back."""
        if not self.divides:
            return x
        return x.reshape([side for pair in zip(self.counts, self.block) for side in pair])

    def broadcast(self, scale: Array) -> Array:
        """Scales of shape `counts` in a shape that broadcasts against `view(x)`."""
        if self.divides:
            return scale.reshape([side for count in self.counts for side in (count, 1)])
        for axis, (count, width) in enumerate(zip(self.counts, self.block)):
            if count > 1 and width > 1:
                # By index: torch 2.13 compiles a repetition that is then cut to loops that miss the last block.
                scale = take(scale, arange(self.shape[axis], scale) // width, axis)
        return scale

    def rows(self, x: Array) -> Array:
        """`x` as `[blocks, elements of a block]`, in the order of the flattened scales; short blocks repeat values."""
        parts, axes = self.split(x), len(self.shape)
        order = [*range(0, 2 * axes, 2), *range(1, 2 * axes, 2)]
        parts = parts.transpose(order) if hasattr(parts, "strides") else parts.permute(order)
        return parts.reshape((prod(self.counts), prod(self.block)))

    def extremes(self, x: Array) -> tuple[Array, Array]:
        """The smallest and the largest value of each block, both of shape `counts`.

        >>> import numpy as np
        >>> low, high = BlockShape((1, 3), (1, 2)).extremes(np.array([[3.0, 1.0, 2.0]]))
        >>> low.tolist(), high.tolist()
        ([[1.0, 2.0]], [[3.0, 2.0]])
        """
        parts, axes = self.split(x), tuple(range(1, 2 * len(self.shape), 2))
        return (amin(parts, axes), amax(parts, axes)) if axes else (x, x)

    def merged(self, *, keep_last: bool = False) -> BlockShape:
        """The same blocks over fewer axes: neighbors are joined if elements and scales keep their order.

        Args:
            keep_last: leave the last axis as it is.

        >>> BlockShape((8, 4, 64), (1, 1, 32)).merged()
        BlockShape(shape=(2048,), block=(32,))
        """
        pairs = list(zip(self.shape, self.block))
        last = pairs[-1:] if keep_last else []
        joined: list[tuple[int, int]] = []
        for side, width in pairs[: len(pairs) - len(last)]:
            outer, outer_width = joined[-1] if joined else (1, 1)
            if width == side:  # a complete axis belongs to the block of the axis before it
                joined[-1:] = [(outer * side, outer_width * side)]
            elif outer_width == 1 and side % width == 0:
                joined[-1:] = [(outer * side, width)]
            else:
                joined.append((side, width))
        joined += last
        return BlockShape(tuple(side for side, _ in joined), tuple(width for _, width in joined))


def _repeating(side: int, width: int, x: Array) -> Array:
    """Indices of an axis whose short last block repeats its own elements."""
    full = side // width * width
    return like([*range(full), *(full + index % (side - full) for index in range(width))], x, "int64")
