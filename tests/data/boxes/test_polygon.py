# SPDX-License-Identifier: Apache-2.0
import itertools
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.boxes import polygon, raster

coordinates = st.integers(-8, 24).map(lambda n: n / 16)
outlines = st.lists(st.tuples(coordinates, coordinates), min_size=3, max_size=9).map(lambda p: np.array(p, float))


def inside_even_odd(x, y, points):
    """The textbook test for one point, in fractions: count the edges to the right; `None` exactly on an edge."""
    inside = False
    for (x1, y1), (x2, y2) in zip(points, [*points[1:], points[0]]):
        if (y1 > y) != (y2 > y):
            meet = (x2 - x1) * (y - y1) / (y2 - y1) + x1
            if meet == x:
                return None
            inside ^= x < meet
    return inside


def agrees_with_brute_force(mask, points):
    """Whether every pixel is right; a centre exactly on an edge may fall to either side."""
    height, width = mask.shape
    scaled = [(Fraction(x) * width, Fraction(y) * height) for x, y in np.asarray(points).tolist()]
    half = Fraction(1, 2)
    for row in range(height):
        for column in range(width):
            inside = inside_even_odd(column + half, row + half, scaled)
            if inside is not None and inside != mask[row, column]:
                return False
    return True


@settings(deadline=None, max_examples=100)
@given(outlines, st.integers(1, 12), st.integers(1, 12))
def test_rasterize_with_even_odd_fill_equals_a_test_of_every_pixel(points, height, width):
    assert agrees_with_brute_force(raster.rasterise(points, height, width), points)


def test_rasterise_in_small_chunks_gives_the_same_mask(monkeypatch):
    points = np.random.default_rng(0).random((60, 2))
    whole = raster.rasterise(points, 30, 25)
    monkeypatch.setattr(raster, "_CHUNK", 100)
    assert np.array_equal(raster.rasterise(points, 30, 25), whole)
    assert agrees_with_brute_force(whole, points)


def test_a_star_that_crosses_itself_has_a_hole():
    corners = [(0.5 + 0.5 * np.sin(4 * np.pi * k / 5), 0.5 - 0.5 * np.cos(4 * np.pi * k / 5)) for k in range(5)]
    assert not raster.rasterise(np.array(corners), 99, 99)[49, 49]


def test_neighbours_share_no_pixel_and_leave_none():
    left = np.array([[0, 0], [0.5, 0], [0.3, 1], [0, 1]])
    right = np.array([[0.5, 0], [1, 0], [1, 1], [0.3, 1]])
    one, two = raster.rasterise(left, 40, 40), raster.rasterise(right, 40, 40)
    assert not (one & two).any() and (one | two).all()


def test_crossing_count_is_the_work_of_rasterise():
    assert raster.crossing_count(np.array([[0, 0], [1, 0], [1, 1], [0, 1]]), 30) == 60


@settings(deadline=None, max_examples=150)
@given(outlines)
def test_clip_keeps_what_lies_on_the_image(points):
    clipped = polygon.clip(points)
    if len(clipped):
        assert clipped.min() >= 0 and clipped.max() <= 1
    before = raster.rasterise(points, 13, 11)
    after = raster.rasterise(clipped, 13, 11) if len(clipped) >= 3 else np.zeros((13, 11), bool)
    # A centre within rounding of an edge may fall on either side; the coordinates are sixteenths, the centres are not.
    assert np.array_equal(before, after)


def crosses_by_pairs(points):
    def side(a, b, c):
        return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])

    edges = list(zip(points, [*points[1:], points[0]]))
    for (a, b), (c, d) in itertools.combinations(edges, 2):
        if side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0:
            return True
    return False


@settings(deadline=None, max_examples=150)
@given(outlines)
def test_self_intersection_is_found_as_by_comparing_every_pair(points):
    assert polygon.crosses(points) is crosses_by_pairs(points.tolist())


def test_an_outline_that_is_too_tangled_is_not_worked_out():
    points = np.random.default_rng(0).random((5_000, 2))
    assert polygon.crosses(points) is None


def test_a_long_ordinary_outline_is_worked_out():
    turn = np.linspace(0, 2 * np.pi, 20_000, endpoint=False)
    assert polygon.crosses(np.stack([0.5 + 0.4 * np.cos(turn), 0.5 + 0.4 * np.sin(turn)], axis=1)) is False


def test_a_retraced_edge_is_no_crossing():
    assert polygon.crosses(np.array([[0, 0], [0.5, 0], [0.5, 0.5], [0.5, 0], [1, 0], [1, 1]])) is False


@settings(deadline=None, max_examples=100)
@given(outlines)
def test_consecutive_duplicates_and_the_closing_point_go(points):
    doubled = np.concatenate([np.repeat(points, 2, axis=0), points[:1]])
    tidied = polygon.tidy(doubled)
    assert np.array_equal(tidied, polygon.tidy(points))
    assert not len(tidied) or np.any(tidied != np.roll(tidied, 1, axis=0), axis=1).all()


def test_area_keeps_its_digits_for_a_small_outline_far_from_zero():
    small = np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) * 1e-5 + 0.9
    assert np.isclose(polygon.area(small), 1e-10, rtol=1e-6)
