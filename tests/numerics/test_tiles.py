# SPDX-License-Identifier: Apache-2.0
"""Cutting a tensor into pieces may change how long something takes, and nothing else."""

from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.numerics import packing, tiles
from fewbit.numerics.blocks import Blocks
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import dequantize, fake_quantize, quantize
from fewbit.numerics.rounding import RoundType
from fewbit.numerics.scales import ScaleType
from numerics.cutting import joined
from numerics.pinning import pin

SIDES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 10)), min_size=1, max_size=4)


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(tiles, "TILE", 16)
    monkeypatch.setattr(packing, "TILE", 16)


@given(SIDES)
def test_pieces_cover_the_tensor_and_their_blocks_keep_their_scales(sides):
    blocks = Blocks(tuple(s for s, _ in sides), tuple(min(w, s) for s, w in sides))
    owner = torch.arange(prod(blocks.counts)).reshape(blocks.counts)
    seen = torch.full(blocks.shape, -1)
    original, tiles.TILE = tiles.TILE, 16
    try:
        for here, there, block in tiles.cut(blocks):
            piece = Blocks(tuple(seen[here].shape), block)
            assert (seen[here] == -1).all()
            assert blocks.counts[0] > 1 or block[0] == piece.shape[0]  # nothing to pad
            ones = piece.split(torch.ones(piece.shape, dtype=torch.long))
            seen[here] = joined(piece, ones * piece.spread(owner[there]))
    finally:
        tiles.TILE = original
    whole = blocks.split(torch.ones(blocks.shape, dtype=torch.long))
    assert torch.equal(seen, joined(blocks, whole * blocks.spread(owner)))


GRIDS = [
    Grid(Dtype.int8),
    Grid(Dtype.uint4, symmetric=False),
    Grid(Dtype.int3, symmetric=False, float_zero=True),
    Grid(Dtype.uint16),
    Grid(Dtype.uint12),
    Grid(Dtype.fp4, scale_type=ScaleType.float8_e4m3fn),
    Grid(Dtype.fp6_e3m2, scale_type=ScaleType.float8_e8m0fnu),
    Grid(Dtype.fp8_e4m3),
    Grid(Dtype.nf4),
    Grid(Dtype.int4, rounding=RoundType.stochastic),
]


@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: f"{g.dtype.name} {g.rounding.name}")
@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((9, 24), (9, 24)),
        ((9, 24), (1, 24)),
        ((9, 24), (9, 1)),
        ((9, 24), (1, 8)),
        ((9, 25), (1, 8)),
        ((9, 25), (4, 8)),
        ((9, 24), (1, 1)),
        ((3, 4, 10), (1, 1, 5)),
        ((3, 4, 10), (3, 1, 10)),
        ((2, 3, 3, 3), (1, 3, 3, 3)),
        ((100,), (100,)),
        ((100,), (7,)),
        ((1, 90), (1, 90)),
        ((1, 1, 90), (1, 1, 4)),
    ],
)
def test_pieces_give_the_same_bits_as_the_whole(grid, shape, block, monkeypatch):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    qparams = pin(x, grid, block)

    def everything():
        codes = quantize(x, qparams)
        kept = QTensor.from_codes(codes, qparams)
        values = [kept.dequantize(), kept.dequantize(torch.bfloat16), dequantize(codes, qparams)]
        return [codes.float(), kept.packed.float(), kept.codes().float(), *values, fake_quantize(x, qparams)]

    whole = everything()
    monkeypatch.setattr(tiles, "TILE", 16)
    monkeypatch.setattr(packing, "TILE", 16)
    assert all(map(torch.equal, whole, everything()))
    strided = x.movedim(0, -1).contiguous().movedim(-1, 0)
    assert torch.equal(quantize(strided, qparams).float(), whole[0])


def test_large_tensors_really_are_cut(monkeypatch):
    asked = []
    real = tiles.cut
    for module in ("quantize", "qtensor"):
        monkeypatch.setattr(f"fewbit.numerics.{module}.cut", lambda blocks: asked.append(blocks) or real(blocks))
    x = torch.ones(tiles.TILE // 256 + 1, 512)
    kept = QTensor.encode(x, pin(x, Grid(Dtype.int4), (1, 512)))
    kept.dequantize()
    assert asked == [Blocks((x.numel(),), (512,)), Blocks(tuple(x.shape), (1, 512))]


def test_learned_scales_get_their_gradient_from_large_tensors(small_tiles):
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(5))
    qparams = pin(x, Grid(Dtype.int8), (1, 16))
    qparams.scale.requires_grad_()
    codes = quantize(x, qparams)
    dequantize(codes, qparams).sum().backward()
    assert torch.equal(qparams.scale.grad, codes.float().sum(1, keepdim=True))
