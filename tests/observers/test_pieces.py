# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.observers import _pieces
from fewbit.observers._pieces import pieces


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
    before, _pieces._HOST = _pieces._HOST, size
    try:
        for place, piece in pieces(rows, most):
            assert piece.numel() <= size and len(piece) <= (most or 100)
            start = int(piece[0, 0]) % shape[1]
            assert torch.equal(piece, rows[place, start : start + piece.shape[1]])
            found[place, start : start + piece.shape[1]] += 1
    finally:
        _pieces._HOST = before
    assert bool((found == 1).all())


@pytest.mark.parametrize("transposed", [True, False])
def test_pieces_follow_the_memory(transposed):
    """A cut across the layout would read a cache line for each element."""
    rows = torch.zeros(3000, 500)
    rows = rows.T if transposed else rows
    _, piece = next(iter(pieces(rows)))
    assert (piece.T if transposed else piece).is_contiguous()
