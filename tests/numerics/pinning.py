# SPDX-License-Identifier: Apache-2.0
"""Scales from a tensor's own range."""

import math

from fewbit.numerics.blocks import Blocks
from fewbit.numerics.qparams import from_range
from numerics.cutting import own


def pin(x, grid, block=None):
    block = grid.weight_block(tuple(x.shape)) if block is None else block
    blocks = Blocks(tuple(x.shape), block)
    rows, inside = blocks.rows(x.float()), own(blocks)
    low, high = rows.where(inside, math.inf), rows.where(inside, -math.inf)
    return from_range(low.amin(1).reshape(blocks.counts), high.amax(1).reshape(blocks.counts), grid, block)
