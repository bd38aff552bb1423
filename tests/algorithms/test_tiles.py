# SPDX-License-Identifier: Apache-2.0
import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.algorithms._tiles import Tiles, total
from fewbit.numerics.blocks import Blocks


@st.composite
def cuts(draw):
    axes = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, 7)) for _ in range(axes))
    return shape, tuple(draw(st.integers(1, side)) for side in shape)


def by_hand(shape, block):
    """The elements of every block, by index arithmetic: `{place among the scales: flat element numbers}`."""
    found = {}
    for place in product(*(range(math.ceil(side / width)) for side, width in zip(shape, block))):
        spans = [range(i * w, min((i + 1) * w, s)) for i, w, s in zip(place, block, shape)]
        found[place] = [sum(i * math.prod(shape[a + 1 :]) for a, i in enumerate(at)) for at in product(*spans)]
    return found


@given(cuts(), st.integers(1, 60), st.integers(1, 9) | st.none())
def test_every_block_comes_once_in_the_flat_order(cut, size, most):
    shape, block = cut
    tiles = Tiles(Blocks(shape, block))
    x = torch.arange(math.prod(shape)).reshape(shape)
    names = tiles.flat(torch.arange(tiles.count).reshape(tiles.blocks.counts))
    seen, expected = {}, by_hand(shape, block)
    for place, take in tiles.walk(size, x, most=most):
        rows = take()
        assert len(rows) == 1 or (rows.numel() <= size and len(rows) <= (most or size))
        for name, row in zip(names[place].tolist(), rows.tolist(), strict=True):
            assert name not in seen
            seen[name] = row
    assert seen == dict(enumerate(expected.values()))


@given(cuts())
def test_flat_and_shaped_are_inverse(cut):
    tiles = Tiles(Blocks(*cut))
    scales = torch.rand(tiles.blocks.counts, generator=torch.Generator().manual_seed(0))
    assert torch.equal(tiles.shaped(tiles.flat(scales)), scales)


def test_what_is_broadcast_comes_with_its_weights():
    tiles = Tiles(Blocks((4, 70), (1, 32)))
    w = torch.arange(280.0).reshape(4, 70)
    h = torch.arange(70.0)
    for _, rows, none, own in tiles.walk(100, w, None, h):
        assert none() is None
        assert torch.equal(own(), rows() % 70)


def test_rows_of_a_contiguous_weight_are_views():
    w = torch.zeros(8, 64)
    for _, rows in Tiles(Blocks((8, 64), (1, 32))).walk(128, w):
        rows().add_(1)
    assert (w == 1).all()


@pytest.mark.parametrize("shape", [(1, 1), (3, 31), (1, 4095), (1, 8193), (2, 8192), (1, 1 << 18), (5, 40_000)])
def test_totals_are_right_and_do_not_depend_on_threads(shape, threads):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 1e3
    found = threads(lambda: total(x))
    for row, value in zip(x.double(), found):
        assert value.item() == pytest.approx(math.fsum(row.tolist()), abs=1e-6 * row.abs().sum().item())
