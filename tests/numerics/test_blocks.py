# SPDX-License-Identifier: Apache-2.0
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.numerics.blocks import Blocks
from numerics.cutting import joined

SIDES = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 9)), max_size=4)
FULL_SIDES = st.lists(st.tuples(st.integers(1, 7), st.integers(1, 9)), max_size=4)


def make(sides):
    return Blocks(tuple(side for side, _ in sides), tuple(width for _, width in sides))


def numbered(shape):
    return torch.arange(prod(shape), dtype=torch.float32).reshape(shape)


@given(SIDES)
def test_splitting_loses_nothing(sides):
    blocks = make(sides)
    x = numbered(blocks.shape)
    assert torch.equal(joined(blocks, blocks.split(x)), x)
    assert blocks.rows(x).shape == (prod(blocks.counts), prod(blocks.block))


@given(FULL_SIDES)
def test_each_row_is_one_block_in_order_and_padding_is_zero(sides):
    blocks = make(sides)
    x = numbered(blocks.shape) + 1
    rows = blocks.rows(x)
    assert blocks.divides == bool((rows > 0).all())
    for row, index in zip(rows, np.ndindex(*blocks.counts), strict=True):
        window = tuple(slice(i * w, (i + 1) * w) for i, w in zip(index, blocks.block))
        assert row[row != 0].tolist() == x[window].flatten().tolist()


@given(FULL_SIDES)
def test_spread_scales_meet_their_own_elements(sides):
    blocks = make(sides)
    scales = numbered(blocks.counts)
    seen = joined(blocks, torch.zeros_like(blocks.split(torch.zeros(blocks.shape))) + blocks.spread(scales))
    for index in np.ndindex(*blocks.shape):
        assert seen[index] == scales[tuple(i // w for i, w in zip(index, blocks.block))]


@given(FULL_SIDES)
def test_scales_laid_over_a_tensor_meet_their_own_elements_without_padding(sides):
    blocks = make(sides)
    scales = numbered(blocks.counts)
    laid = blocks.lay(torch.zeros(blocks.shape))
    assert laid.numel() == prod(blocks.shape)
    seen = (laid + blocks.over(scales)).reshape(blocks.shape)
    assert torch.equal(seen, joined(blocks, torch.zeros_like(blocks.split(seen)) + blocks.spread(scales)))


@pytest.mark.parametrize("keep_last", [False, True])
@given(FULL_SIDES)
def test_merged_axes_give_every_element_the_same_scale(keep_last, sides):
    blocks = make(sides)
    merged = blocks.merged(keep_last=keep_last)
    assert prod(merged.shape) == prod(blocks.shape) and prod(merged.counts) == prod(blocks.counts)
    scales = numbered(blocks.counts)

    def owner(some):
        zeros = torch.zeros_like(some.split(torch.zeros(some.shape)))
        return joined(some, zeros + some.spread(scales.reshape(some.counts)))

    assert torch.equal(owner(merged).flatten(), owner(blocks).flatten())
    if keep_last and blocks.shape:
        assert (merged.shape[-1], merged.block[-1]) == (blocks.shape[-1], blocks.block[-1])


@pytest.mark.parametrize(
    ("shape", "block", "merged"),
    [
        ((64, 32), (64, 32), ((2048,), (2048,))),  # per tensor
        ((64, 32, 3, 3), (1, 32, 3, 3), ((18432,), (288,))),  # per channel
        ((8, 64, 32), (1, 1, 16), ((16384,), (16,))),  # groups, with a stack
        ((64, 33), (1, 16), ((64, 33), (1, 16))),  # the last group is short
        ((64, 32), (16, 16), ((64, 32), (16, 16))),  # rectangles
        ((64, 32), (64, 1), ((64, 32), (64, 1))),  # columns
    ],
)
def test_the_usual_granularities_merge_to_as_few_axes_as_can_be(shape, block, merged):
    assert Blocks(shape, block).merged() == Blocks(*merged)
