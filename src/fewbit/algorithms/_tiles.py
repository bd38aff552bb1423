# SPDX-License-Identifier: Apache-2.0
"""A weight in tiles: some blocks at a time, few enough that what is computed from them stays in the cache.

Blocks that are cut short at the end of an axis have fewer elements than the others. They are not padded: the weight is
cut into regions in which all blocks have the same shape, and every region into tiles. What belongs to blocks is kept
flat, one entry a block, region after region; `flat` and `shaped` translate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor

from fewbit.numerics.blocks import Blocks
from fewbit.numerics.qparams import QParams

_RUN = 4096


@dataclass(frozen=True)
class Region:
    """A box of a tensor that its blocks divide.

    Args:
        blocks: the region's own shape and block shape.
        where: the box in the tensor.
        scales: the box in the tensor's scales.
    """

    blocks: Blocks
    where: tuple[slice, ...]
    scales: tuple[slice, ...]

    def parts(self, x: Tensor) -> Tensor:
        """The region of a tensor as a view `[*counts, *block]`."""
        axes = len(self.where)
        split = self.blocks.split(x[self.where])
        return split.permute(*range(0, 2 * axes, 2), *range(1, 2 * axes, 2))

    def tiles(self, size: int) -> Iterator[tuple[Any, ...]]:
        """Indices into `parts` of about `size` elements each, at least one block, in the order of the scales."""
        counts, elements = self.blocks.counts, prod(self.blocks.block)
        axis = 0
        while axis < len(counts) - 1 and prod(counts[axis + 1 :]) * elements > size:
            axis += 1
        step = max(1, size // (prod(counts[axis + 1 :]) * elements))
        for outer in product(*map(range, counts[:axis])):
            for first in range(0, counts[axis], step):
                yield *outer, slice(first, first + step)


@dataclass(frozen=True)
class Tiles:
    """The tiles of a tensor.

    >>> tiles = Tiles(Blocks((4, 70), (1, 32)))
    >>> [(place, list(rows().shape)) for place, rows in tiles.walk(200, torch.zeros(4, 70))]
    [(slice(0, 6, None), [6, 32]), (slice(6, 8, None), [2, 32]), (slice(8, 12, None), [4, 6])]
    """

    blocks: Blocks

    @property
    def regions(self) -> list[Region]:
        """The body and, along every axis where the last block is cut short, the rim."""
        found = []
        for box in product(*(_spans(side, width) for side, width in zip(self.blocks.shape, self.blocks.block))):
            own = Blocks(tuple(stop - start for start, stop, _ in box), tuple(width for _, _, width in box))
            where = tuple(slice(start, stop) for start, stop, _ in box)
            first = [start // width for (start, _, _), width in zip(box, self.blocks.block)]
            if prod(own.shape):
                found.append(Region(own, where, tuple(slice(at, at + n) for at, n in zip(first, own.counts))))
        return found

    @property
    def count(self) -> int:
        """The number of blocks."""
        return prod(self.blocks.counts)

    def walk(self, size: int, *tensors: Tensor | None, most: int | None = None) -> Iterator[tuple[Any, ...]]:
        """Tile by tile, which blocks of the flat order they are, and for every tensor a function that gives its rows.

        Rows are `[blocks, elements]`: a view where memory allows, else a copy.

        Args:
            size: about how many elements a tile has; a block is never cut.
            tensors: each of a shape that can be broadcast to the whole; none gives none.
            most: the most blocks in a tile.
        """
        start = 0
        for region in self.regions:
            counts, elements = region.blocks.counts, prod(region.blocks.block)
            parts = [None if x is None else region.parts(x.expand(self.blocks.shape)) for x in tensors]
            for index in region.tiles(min(size, (most or size) * elements)):
                first, last = index[-1].start, min(index[-1].stop, counts[len(index) - 1])
                count = (last - first) * prod(counts[len(index) :])
                yield slice(start, start + count), *(partial(_rows, part, index, elements) for part in parts)
                start += count

    def flat(self, scales: Tensor) -> Tensor:
        """What is shaped like the scales, in the flat order."""
        return torch.cat([scales.new_empty(0), *(scales[region.scales].reshape(-1) for region in self.regions)])

    def shaped(self, flat: Tensor) -> Tensor:
        """The inverse of `flat`."""
        scales, start = flat.new_empty(self.blocks.counts), 0
        for region in self.regions:
            counts = region.blocks.counts
            scales[region.scales] = flat[start : start + prod(counts)].reshape(counts)
            start += prod(counts)
        return scales

    def flat_qparams(self, qparams: QParams) -> QParams:
        """Scales and zero points in the flat order."""
        zero = None if qparams.zero_point is None else self.flat(qparams.zero_point)
        return QParams(qparams.grid, qparams.block, self.flat(qparams.scale), zero, qparams.super_scale)

    def shaped_qparams(self, flat: QParams) -> QParams:
        """The inverse of `flat_qparams`."""
        zero = None if flat.zero_point is None else self.shaped(flat.zero_point)
        return QParams(flat.grid, flat.block, self.shaped(flat.scale), zero, flat.super_scale)


def total(x: Tensor) -> Tensor:
    """The sum over the last axis, the same whatever the number of threads.

    torch gives whole rows to its threads, in which case nothing depends on how many there are, but it cuts a single row
    among them. So long rows are cut here, always at the same places.
    """
    cut = x.shape[-1] // _RUN * _RUN
    if cut <= _RUN:
        return x.sum(-1)
    runs = total(x[..., :cut].reshape(*x.shape[:-1], -1, _RUN).sum(-1))
    return runs + x[..., cut:].sum(-1) if cut < x.shape[-1] else runs


def _rows(part: Tensor | None, index: tuple[Any, ...], elements: int) -> Tensor | None:
    return None if part is None else part[index].reshape(-1, elements)


def _spans(side: int, width: int) -> list[tuple[int, int, int]]:
    """Where whole blocks lie along an axis and where the rest: start, stop, width of a block."""
    whole = side // width * width
    return [(0, whole, width), (whole, side, max(side - whole, 1))]
