# SPDX-License-Identifier: Apache-2.0
"""One threshold over all layers, against a sort of everything."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.numerics.sparsity import Pattern, kept
from fewbit.sparsity.pruning.global_threshold import zeros_of_each

VALUES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1.0000001, 1e-40, -3.5, 65504.0, 2.0, -2.0])


def by_sorting(weights, zeros):
    """The mask of what is kept: the largest, the first of equals."""
    flat = torch.cat([w.flatten() for w in weights]).abs()
    order = torch.argsort(flat, descending=True, stable=True)
    mask = torch.zeros_like(flat, dtype=torch.bool)
    mask[order[: len(flat) - zeros]] = True
    return torch.split(mask, [w.numel() for w in weights])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(VALUES, min_size=1, max_size=12), min_size=1, max_size=5), st.floats(0, 1))
def test_it_is_what_a_sort_of_everything_gives(rows, share):
    weights = [torch.tensor(row)[None] for row in rows]
    zeros = round(share * sum(w.numel() for w in weights))
    found = zeros_of_each([lambda w=w: w for w in weights], zeros)
    wanted = by_sorting(weights, zeros)
    assert sum(found) == zeros and found == [int((~mask).sum()) for mask in wanted]
    for w, number, mask in zip(weights, found, wanted):  # what a layer's own pattern keeps is what the sort keeps
        assert torch.equal(kept(w.abs(), Pattern(number / w.numel())).flatten(), mask)


def test_random_weights_of_other_types():
    torch.manual_seed(0)
    weights = [torch.randn(7, 5).bfloat16(), torch.randn(3, 4, 2, 2), torch.randn(50).half()[None]]
    found = zeros_of_each([lambda w=w: w for w in weights], 60)
    wanted = by_sorting([w.float() for w in weights], 60)
    assert found == [int((~mask).sum()) for mask in wanted]
