# SPDX-License-Identifier: Apache-2.0
"""Top-k accuracy against sorting by hand."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.tuning.measures.top_k import hits


@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 7))
def test_the_label_is_among_the_first_of_the_sorted_classes(seed, classes, k):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(20, classes, generator=generator)
    labels = torch.randint(0, classes, (20,), generator=generator)
    labels[::7] = -100
    ranked = logits.argsort(-1, descending=True).tolist()
    expected = sum(label in row[:k] for row, label in zip(ranked, labels.tolist()))
    assert hits(logits, labels, k) == expected


def test_who_says_the_same_of_all_classes_is_right_about_none():
    assert hits(torch.zeros(4, 10), torch.tensor([0, 3, 9, 5]), 5) == 0
    assert hits(torch.full((4, 10), torch.nan), torch.tensor([0, 3, 9, 5]), 5) == 0
