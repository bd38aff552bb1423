# SPDX-License-Identifier: Apache-2.0
"""Classes of places against a search through all pairs; blocks of a Reshape against counting the numbers."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fewbit.sparsity.shrinking.classes import Classes, Reason
from fewbit.sparsity.shrinking.graph_rules_reshape import blocks

WHY = Reason("n", "Add", "it joins")


@given(
    st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=14), st.sets(st.integers(1, 11), max_size=2)
)
def test_classes_are_what_can_be_reached_over_joined_pairs(pairs, held):
    classes = Classes()
    labels = classes.new(11)
    assert labels.tolist() == list(range(1, 12))
    for a, b in pairs:
        classes.join(np.array([a]), np.array([b]), WHY)
    classes.stay(np.array(sorted(held), np.int64), WHY)
    reach = np.eye(12, dtype=bool)
    for a, b in pairs:
        reach[a, b] = reach[b, a] = reach[a, b] or (a > 0 and b > 0)  # what is no channel joins nothing
    for _ in range(12):
        reach |= reach @ reach
    touched = held | {a + b for a, b in pairs if (a == 0) != (b == 0)}
    for label in range(1, 12):
        same = np.flatnonzero(reach[label])
        assert classes.roots(np.array([label]))[0] == same[0]
        assert (classes.reason(label) is not None) == bool(touched & set(same.tolist()))


@given(st.lists(st.integers(1, 5), max_size=4), st.data())
def test_blocks_hold_the_same_numbers_and_cannot_be_cut_further(old, data):
    new, rest = [], prod(old)
    while rest > 1:
        side = data.draw(st.sampled_from([d for d in range(2, rest + 1) if rest % d == 0]))
        new, rest = [*new, side], rest // side
    found = blocks(old, new)
    assert [a for left, _ in found for a in left] == [a for a, side in enumerate(old) if side != 1]
    assert [a for _, right in found for a in right] == list(range(len(new)))
    for left, right in found:
        assert prod(old[a] for a in left) == prod(new[a] for a in right)
        inner = {prod(old[a] for a in left[:n]) for n in range(1, len(left))}
        assert not inner & {prod(new[a] for a in right[:n]) for n in range(1, len(right))}
