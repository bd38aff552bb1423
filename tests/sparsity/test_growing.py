# SPDX-License-Identifier: Apache-2.0
"""Masks that grow: exact counts, what was pruned stays so, and the same set as brute force finds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.numerics.sparsity import Pattern, count
from fewbit.sparsity.growing import grown

PATTERNS = ["unstructured", "1:4", "2:4", "1x4", "2x2"]


@st.composite
def weights(draw):
    """Small whole numbers, so that many are equal and some are zero."""
    shape = draw(st.sampled_from([(4, 8), (3, 12), (2, 8, 3, 3), (5, 4, 1, 1)]))
    values = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    return torch.randint(-3, 4, shape, generator=values).float()


def path(weight, structure, shares):
    """The masks of one weight whose zeros grow while it changes."""
    final = Pattern.read(structure, None if ":" in structure else max(shares))
    pruned, found = {}, []
    for number, share in enumerate(sorted(shares)):
        moved = torch.roll(weight, number).masked_fill(pruned["w"], 0) if pruned else weight
        pruned = grown({"w": moved}, pruned, final, min(share, final.share), together=False)
        found.append((min(share, final.share), pruned["w"]))
    return final, found


@given(weights(), st.sampled_from(PATTERNS), st.lists(st.floats(0, 0.99), min_size=1, max_size=5))
def test_masks_only_grow_and_counts_are_exact(weight, structure, shares):
    final, found = path(weight, structure, shares)
    before = torch.zeros_like(weight, dtype=torch.bool)
    for share, pruned in found:
        assert not bool((before & ~pruned).any())
        if final.block == (1, 1):
            assert int(pruned.sum()) == count(share, weight.numel())
        before = pruned


@given(weights(), st.sampled_from([(1, 4), (2, 4)]), st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_no_group_ever_keeps_fewer_than_n(weight, kept_of, shares):
    keep, of = kept_of
    final, found = path(weight, f"{keep}:{of}", [*shares, 1.0])
    for share, pruned in found:
        groups = pruned.movedim(1, -1).reshape(-1, of).sum(1)
        assert int(groups.max()) <= of - keep
        if share == final.share:
            assert bool((groups == of - keep).all())


@given(weights(), st.lists(st.floats(0, 0.99), min_size=1, max_size=4))
def test_blocks_go_whole_and_their_number_is_exact(weight, shares):
    _, found = path(weight, "1x4", shares)
    for share, pruned in found:
        blocks = pruned.movedim(1, -1).reshape(-1, 4).sum(1)
        assert set(blocks.tolist()) <= {0, 4}
        assert int((blocks == 4).sum()) == count(share, len(blocks))


@given(weights(), weights(), st.floats(0, 1))
def test_together_the_smallest_of_all_go(one, other, share):
    found = grown({"a": one, "b": other}, {}, Pattern(share), share, together=True)
    sizes = [abs(float(v)) for w in (one, other) for v in w.flatten()]
    order = sorted(range(len(sizes)), key=lambda place: (-sizes[place], place))
    kept = set(order[: len(sizes) - count(share, len(sizes))])
    pruned = torch.cat([found["a"].flatten(), found["b"].flatten()])
    assert [place for place, gone in enumerate(pruned.tolist()) if not gone] == sorted(kept)


@given(weights(), weights(), st.floats(0, 0.9), st.floats(0, 0.9))
def test_what_regrows_is_what_gradients_ask_for(weight, other, share, regrow):
    wanted = torch.roll(other.flatten(), 1)[: weight.numel()].abs()
    wanted = torch.cat([wanted, torch.zeros(weight.numel() - len(wanted))]).reshape(weight.shape)
    before = {"w": weight.abs() < 2}
    weight = weight.masked_fill(before["w"], 0)
    found = grown({"w": weight}, before, Pattern(share), share, wanted={"w": wanted}, regrow=regrow)["w"].flatten()
    total = weight.numel()
    assert int(found.sum()) == count(share, total)
    sizes = [(-1 if gone else abs(float(w))) for w, gone in zip(weight.flatten(), before["w"].flatten(), strict=True)]
    order = sorted(range(total), key=lambda place: (-sizes[place], place))
    largest = order[: total - count(share + regrow * (1 - share), total)]
    asks = wanted.flatten().tolist()
    rest = sorted(set(range(total)) - set(largest), key=lambda place: (-asks[place], place))
    kept = set(largest) | set(rest[: total - count(share, total) - len(largest)])
    assert {place for place in range(total) if not found[place]} == kept


def test_zeros_that_were_there_count():
    weight = torch.tensor([[0.0, 5.0, 1.0, 2.0], [3.0, 4.0, 6.0, 7.0]])
    found = grown({"w": weight}, {"w": weight == 0}, Pattern(0.25), 0.25, together=False)["w"]
    assert found.nonzero().tolist() == [[0, 0], [0, 2]]
    more = grown({"w": weight}, {"w": weight < 5}, Pattern(0.25), 0.25, together=False)["w"]
    assert torch.equal(more, weight < 5), "none comes back where there are more than asked for"


@pytest.mark.parametrize("structure", PATTERNS)
def test_the_same_weights_give_the_same_masks(structure):
    weight = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    masks = [path(weight, structure, [0.1, 0.4, 0.6])[1][-1][1] for _ in range(2)]
    assert torch.equal(*masks)
