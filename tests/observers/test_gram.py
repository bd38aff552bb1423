# SPDX-License-Identifier: Apache-2.0
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.observers import gram
from fewbit.observers.gram import GramObserver
from fewbit.observers.moments import MomentsObserver


def rows(count, length, seed=0):
    return torch.randn(count, length, generator=torch.Generator().manual_seed(seed))


@given(st.integers(1, 5), st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_products_of_every_two_rows(count, lengths):
    observer, parts = GramObserver(), [rows(count, length, seed) for seed, length in enumerate(lengths)]
    for part in parts:
        observer.observe(part)
    x = torch.cat(parts, 1).double()
    wanted = torch.tensor([[sum(a * b) / x.shape[1] for b in x] for a in x], dtype=torch.float64)
    torch.testing.assert_close(observer.mean_product, wanted)


def test_its_diagonal_is_the_mean_square():
    ours, moments, x = GramObserver(), MomentsObserver(), rows(30, 500)
    for observer in (ours, moments):
        observer.observe(x)
    torch.testing.assert_close(ours.mean_square, moments.mean_square)


def test_large_tensors_go_by_pieces(monkeypatch):
    wanted, x = GramObserver(), rows(7, 1000)
    wanted.observe(x)
    monkeypatch.setattr(gram, "_HOST", 64)
    for part in (x, x.T.contiguous().T):
        observer = GramObserver()
        observer.observe(part)
        torch.testing.assert_close(observer.state(), wanted.state(), rtol=1e-12, atol=0)


def test_a_small_value_beside_many_large_ones():
    observer = GramObserver()
    observer.observe(torch.full((1, 1000), 1e4))
    observer.observe(torch.ones(1, 1000))
    assert observer.state()["gram"].item() == 1e11 + 1e3
