# SPDX-License-Identifier: Apache-2.0
"""Tensors as the rows that observers read: one row per scale."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from fewbit.numerics.granularity import BlockShape
from fewbit.numerics.grid import QParams, QuantizationGrid
from fewbit.numerics.ops import Array, namespace
from fewbit.numerics.quantize import qparams_from_min_max
from fewbit.observers._base import RangeObserver, make_observer

_ELEMENTS = 1 << 24
"""Of a weight that are observed at a time: a histogram takes 32 KiB per row."""


def activation_rows(x: Array, grid: QuantizationGrid, *, features: int = -1) -> Array:
    """The rows of an activation whose scales are computed beforehand and hold for every token.

    Args:
        x: any shape with a feature axis.
        grid: per channel gives `[features, n]`, per group `[groups, n]`, all others `[1, n]`.
        features: the feature axis.

    >>> import numpy as np
    >>> from fewbit.numerics.dtypes import Dtype
    >>> from fewbit.numerics.granularity import QSchemeType
    >>> grid = QuantizationGrid(Dtype.int8, QSchemeType.per_channel)
    >>> activation_rows(np.zeros((2, 3, 4, 4), np.float32), grid, features=1).shape
    (3, 32)
    """
    shape = tuple(x.shape)
    if not shape:
        return x.reshape((1, 1))
    block = grid.activation_block(shape, features=features, dynamic=False)
    if block == shape or not prod(shape):
        return x.reshape((prod(BlockShape(shape, block).counts), -1) if prod(shape) else (1, 0))
    return BlockShape(shape, block).rows(x)


def weight_rows(weight: Array, grid: QuantizationGrid) -> Array:
    """The rows of a weight `[out, in, kernel…]`, `[blocks, elements]`; short blocks repeat their own values."""
    shape = tuple(weight.shape)
    return BlockShape(shape, grid.weight_block(shape)).rows(weight)


def observe_weight(
    weight: Array, grid: QuantizationGrid, observer: str | type, parameters: Mapping[str, Any] | None = None
) -> QParams:
    """Scales and zero points of a weight by an observer, some blocks at a time.

    Args:
        weight: `[out, in, kernel…]`.
        grid: the values it may take.
        observer: a `RangeObserver`, see `make_observer`.
        parameters: of the observer.
    """
    shape = tuple(weight.shape)
    blocks = BlockShape(shape, grid.weight_block(shape))
    rows = blocks.rows(weight)
    global_scale = None
    if grid.two_level:  # it belongs to the complete tensor
        low, high = blocks.extremes(weight)
        global_scale = qparams_from_min_max(low, high, grid, blocks.block).global_scale
    ends = []
    step = max(_ELEMENTS // max(rows.shape[1], 4096), 1)
    for start in range(0, rows.shape[0], step):
        part = make_observer(observer, parameters)
        assert isinstance(part, RangeObserver), observer
        part.update(rows[start : start + step])
        ends.append(part.range(grid, global_scale))
    xp = namespace(weight)
    low, high = (xp.concatenate(parts).reshape(blocks.counts) for parts in zip(*ends))
    return qparams_from_min_max(low, high, grid, blocks.block, global_scale=global_scale)
