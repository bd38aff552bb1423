# SPDX-License-Identifier: Apache-2.0
"""Zeros dealt out: exactly so many, evenly, and none taken back."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.numerics.dealing import dealt


@given(st.lists(st.integers(0, 30), max_size=12), st.integers(0, 300))
def test_as_many_as_asked_for_none_taken_back_and_even_where_some_were_added(there, zeros):
    found = dealt(zeros, torch.tensor(there, dtype=torch.int64)).tolist()
    assert sum(found) == (max(zeros, sum(there)) if there else 0)
    assert all(after >= before for before, after in zip(there, found))
    added = [after for before, after in zip(there, found) if after > before]
    assert not added or max(added) <= min(found) + 1


def test_huge_weights_are_counted_exactly():
    assert int(dealt((1 << 34) + 1, torch.zeros(1 << 15)).sum()) == (1 << 34) + 1
