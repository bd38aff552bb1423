# SPDX-License-Identifier: Apache-2.0
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.numerics import pieces as module
from fewbit.numerics.pieces import parts, pieces


@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    transposed=st.booleans(),
    most=st.sampled_from([None, 1, 3, 100]),
    size=st.sampled_from([1, 7, 64, 10_000]),
)
def test_every_element_once(shape, transposed, most, size):
    rows = torch.arange(shape[0] * shape[1]).view(shape)
    rows = rows.T.contiguous().T if transposed else rows
    found = torch.zeros(shape, dtype=torch.int64)
    before, module._HOST = module._HOST, size
    try:
        for place, piece in pieces(rows, most):
            assert piece.numel() <= size and len(piece) <= (most or 100)
            start = int(piece[0, 0]) % shape[1]
            assert torch.equal(piece, rows[place, start : start + piece.shape[1]])
            found[place, start : start + piece.shape[1]] += 1
    finally:
        module._HOST = before
    assert bool((found == 1).all())


@pytest.mark.parametrize("transposed", [True, False])
def test_pieces_follow_the_memory(transposed):
    """A cut across the layout would read a cache line for each element."""
    rows = torch.zeros(3000, 500)
    rows = rows.T if transposed else rows
    _, piece = next(iter(pieces(rows)))
    assert (piece.T if transposed else piece).is_contiguous()


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    order=st.permutations(range(4)),
    axis=st.integers(0, 3),
    size=st.sampled_from([1, 7, 64, 10_000]),
)
def test_every_element_of_any_shape_once_and_at_its_place(shape, order, axis, size):
    order = [a for a in order if a < len(shape)]
    axis %= len(shape)
    x = torch.arange(torch.Size(shape).numel()).view(shape).permute(order)
    total = torch.zeros(x.shape[axis], dtype=torch.int64)
    rest = [a for a in range(x.ndim) if a != axis]
    before, module._HOST = module._HOST, size
    try:
        met = []
        for place, part in parts(x, axis):
            assert part.numel() <= size
            met += part.flatten().tolist()
            total[place] += part.sum(rest) if rest else part
    finally:
        module._HOST = before
    assert sorted(met) == list(range(x.numel()))
    assert torch.equal(total, x.sum(rest) if rest else x)


def test_parts_follow_the_memory():
    x = torch.zeros(4, 64, 50, 50)
    for each in (x, x.movedim(1, -1), x.to(memory_format=torch.channels_last)):
        part = next(iter(parts(each, 1)))[1]
        strides = sorted(zip(part.stride(), part.shape))
        packed = [(s, n) for s, n in strides if n > 1]
        assert all(inner * n == outer for (inner, n), (outer, _) in pairwise(packed)), "one run of memory"
