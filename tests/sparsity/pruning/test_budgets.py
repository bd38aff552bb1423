# SPDX-License-Identifier: Apache-2.0
"""Zeros shared out among layers, against every way there is."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.sparsity.pruning.budgets import Curve, split


@st.composite
def curves(draw):
    steps = sorted(draw(st.sets(st.integers(0, 6), min_size=1, max_size=4)))
    harm = sorted(draw(st.lists(st.floats(0, 10), min_size=len(steps), max_size=len(steps))))
    return Curve(tuple(steps), tuple(harm))


@settings(max_examples=120, deadline=None)
@given(st.lists(curves(), min_size=1, max_size=4), st.integers(0, 20))
def test_no_other_way_does_less_harm(layers, zeros):
    least, most = (sum(curve.zeros[end] for curve in layers) for end in (0, -1))
    wanted = min(max(zeros, least), most)
    found = split(layers, zeros)
    assert sum(found) == wanted
    assert all(curve.zeros[0] <= number <= curve.zeros[-1] for curve, number in zip(layers, found))
    hulls = [curve.hull() for curve in layers]
    ways = product(*(range(curve.zeros[0], curve.zeros[-1] + 1) for curve in layers))
    best = min(sum(hull.at(number) for hull, number in zip(hulls, way)) for way in ways if sum(way) == wanted)
    assert sum(hull.at(number) for hull, number in zip(hulls, found)) == pytest.approx(best, abs=1e-9)


@given(curves())
def test_a_hull_is_convex_and_below(curve):
    hull = curve.hull()
    assert hull.zeros[0] == curve.zeros[0] and hull.zeros[-1] == curve.zeros[-1]
    assert all(hull.at(x) <= y + 1e-9 for x, y in zip(curve.zeros, curve.harm))
    slopes = [
        (top - y) / (right - x)
        for (x, y), (right, top) in zip(zip(hull.zeros, hull.harm), zip(hull.zeros[1:], hull.harm[1:]))
    ]
    assert slopes == sorted(slopes)
