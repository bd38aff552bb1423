# SPDX-License-Identifier: Apache-2.0
import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.images import shapes

sixteenths = st.integers(-8, 24).map(lambda number: number / 16)
outlines = st.lists(st.tuples(sixteenths, sixteenths), min_size=3, max_size=9).map(
    lambda points: np.array(points, float)
)


def expected_pixels(points, height, width):
    """For each pixel whether it is inside, by counting edges to the right of its centre in exact fractions.

    A centre exactly on an edge may be either: `None`.
    """
    corners = [(Fraction(x) * width, Fraction(y) * height) for x, y in points.tolist()]
    edges = list(zip(corners, corners[1:] + corners[:1]))
    result = {}
    for row, column in itertools.product(range(height), range(width)):
        x, y = column + Fraction(1, 2), row + Fraction(1, 2)
        spanning = [edge for edge in edges if min(edge[0][1], edge[1][1]) <= y < max(edge[0][1], edge[1][1])]
        crossings = [ax + (bx - ax) * (y - ay) / (by - ay) for (ax, ay), (bx, by) in spanning]
        result[row, column] = None if x in crossings else sum(crossing > x for crossing in crossings) % 2 == 1
    return result


def matches(mask, points):
    expected = expected_pixels(points, *mask.shape)
    return all(inside in (None, mask[pixel]) for pixel, inside in expected.items())


@settings(deadline=None, max_examples=100)
@given(outlines, st.integers(1, 12), st.integers(1, 12))
def test_raster_equals_a_test_of_every_pixel(points, height, width):
    assert matches(shapes.rasterize(points, height, width), points)


def test_a_star_that_crosses_itself_has_a_hole():
    corners = [(0.5 + 0.5 * np.sin(4 * np.pi * k / 5), 0.5 - 0.5 * np.cos(4 * np.pi * k / 5)) for k in range(5)]
    mask = shapes.rasterize(np.array(corners), 99, 99)
    assert not mask[49, 49] and mask[10, 49]


@pytest.mark.parametrize("seed", range(5))
def test_neighbours_share_no_pixel_and_leave_none(seed):
    """The common edge is computed from its upper end by both, whichever way their outlines run."""
    (x1, x2), height = np.random.default_rng(seed).random(2), 37
    left = np.array([[0, 0], [x1, 0], [x2, 1], [0, 1]])
    right = np.array([[x2, 1], [x1, 0], [1, 0], [1, 1]])
    one, other = shapes.rasterize(left, height, 41), shapes.rasterize(right, height, 41)
    assert not (one & other).any() and (one | other).all()


@settings(deadline=None, max_examples=150)
@given(outlines)
def test_clipping_keeps_what_is_on_the_image(points):
    clipped = shapes.clip_polygon(points)
    if len(clipped):
        assert clipped.min() >= 0 and clipped.max() <= 1
    mask = shapes.rasterize(clipped, 13, 11) if len(clipped) >= 3 else np.zeros((13, 11), bool)
    assert matches(mask, points)  # not equal rasters: a pixel center exactly on an edge may go either way


def crosses_by_pairs(points):
    """Every pair of edges, by the signs of the triangles that they span."""

    def turn(p, q, r):
        return (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])

    edges = list(zip(points, points[1:] + points[:1]))
    for (a, b), (c, d) in itertools.combinations(edges, 2):
        if turn(a, b, c) * turn(a, b, d) < 0 and turn(c, d, a) * turn(c, d, b) < 0:
            return True
    return False


@settings(deadline=None, max_examples=150)
@given(outlines)
def test_crossings_are_found_as_by_comparing_every_pair(points):
    assert shapes.crosses_itself(points) is crosses_by_pairs(points.tolist())


def test_a_hostile_outline_is_not_compared_edge_by_edge():
    assert shapes.crosses_itself(np.random.default_rng(0).random((5_000, 2))) is None


def test_a_long_ordinary_outline_is_compared():
    angle = np.linspace(0, 2 * np.pi, 20_000, endpoint=False)
    circle = np.stack([0.5 + 0.4 * np.cos(angle), 0.5 + 0.4 * np.sin(angle)], axis=1)
    assert shapes.crosses_itself(circle) is False


def test_a_retraced_edge_is_no_crossing():
    assert shapes.crosses_itself(np.array([[0, 0], [0.5, 0], [0.5, 0.5], [0.5, 0], [1, 0], [1, 1]])) is False


@settings(deadline=None, max_examples=100)
@given(outlines)
def test_repeats_and_the_closing_corner_go(points):
    doubled = np.concatenate([np.repeat(points, 2, axis=0), points[:1]])
    cleaned = shapes.without_repeats(doubled)
    assert np.array_equal(cleaned, shapes.without_repeats(points))
    assert not len(cleaned) or np.any(cleaned != np.roll(cleaned, 1, axis=0), axis=1).all()


def test_a_symmetric_figure_eight_has_an_area_though_the_formula_says_zero():
    eight = np.array([[0, 0], [1, 1], [1, 0], [0, 1]], float)
    assert shapes.has_area(eight)
    assert not shapes.has_area(np.array([[0, 0], [0.5, 0.5], [1, 1]]))


def test_a_small_polygon_far_from_zero_has_an_area():
    assert shapes.has_area(np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) * 1e-5 + 0.9)


@settings(deadline=None, max_examples=200)
@given(*[st.floats(-3, 3) for _ in range(2)], *[st.floats(0.01, 3) for _ in range(2)])
def test_clipping_a_box_is_interval_arithmetic(x, y, width, height):
    clipped = shapes.clip_box((x, y, width, height))
    spans = [(max(0, c - s / 2), min(1, c + s / 2)) for c, s in ((x, width), (y, height))]
    if any(high - low <= shapes.ROUNDING for low, high in spans):
        assert clipped is None
        return
    edges = shapes.box_edges(clipped)
    assert edges == pytest.approx((spans[0][0], spans[1][0], spans[0][1], spans[1][1]), abs=1e-9)


@given(*[st.floats(0, 1) for _ in range(4)])
def test_box_conventions_agree(left, top, width, height):
    box = shapes.box_from_edges(left, top, left + width, top + height)
    assert shapes.box_edges(box) == pytest.approx((left, top, left + width, top + height))
    assert shapes.polygon_edges(shapes.box_outline(box)) == pytest.approx(shapes.box_edges(box))


def compressed(counts):
    """The encoder of COCO's API, as a text."""
    text = ""
    for position, count in enumerate(counts):
        value = count - counts[position - 2] if position > 2 else count
        while True:
            group = value & 31
            value >>= 5
            more = value != -1 if group & 16 else value != 0
            text += chr(group + 48 + (32 if more else 0))
            if not more:
                break
    return text


masks = st.tuples(st.integers(1, 9), st.integers(1, 9)).flatmap(
    lambda size: st.lists(st.booleans(), min_size=size[0] * size[1], max_size=size[0] * size[1]).map(
        lambda values: np.array(values).reshape(size)
    )
)


@settings(deadline=None, max_examples=150)
@given(masks)
def test_run_lengths_give_the_mask_back(mask):
    column_major = mask.T.ravel().tolist()
    counts = [len(list(run)) for _, run in itertools.groupby([False, *column_major])]
    counts[0] -= 1
    for encoded in (counts, compressed(counts)):
        assert np.array_equal(shapes.rle_mask(shapes.rle_runs(encoded, *mask.shape), *mask.shape), mask)


def test_a_compressed_mask_of_coco_itself():
    """The runs 6, 1, 40, 4, 5, 4, 5, 4, 21 of COCO's documentation on a mask of 9 x 10."""
    counts = [6, 1, 40, 4, 5, 4, 5, 4, 21]
    mask = shapes.rle_mask(shapes.rle_runs(compressed(counts), 9, 10), 9, 10)
    assert mask.sum() == 13 and mask[6, 0] and mask[2:6, 5].all()


@pytest.mark.parametrize(
    "counts",
    [[1, 2], [5, -1], [1 << 40], ["x"], [[1]], [0.5, 3.5], [1] * 100, [], "\x01", "P", "P" * 16, "ä", "zzzz\x7f"],
)
def test_runs_that_do_not_fill_the_mask_are_refused(counts):
    with pytest.raises(ValueError):
        shapes.rle_runs(counts, 2, 2)
