# SPDX-License-Identifier: Apache-2.0
"""Average precision against the definition, with boxes as sets of pixels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.tuning.measures.average_precision import THRESHOLDS, average_precision, box_overlaps, match

SIDE = 12


def pixels(box):
    """The pixels of a box with whole corners."""
    x, y, width, height = box
    columns, rows = (range(round(c - s / 2), round(c + s / 2)) for c, s in ((x, width), (y, height)))
    return {(column, row) for column in columns for row in rows}


def draw_boxes(rng, count):
    low = rng.integers(0, SIDE - 1, (count, 2))
    high = low + 1 + rng.integers(0, SIDE - 1 - low + 1)
    return np.concatenate([(low + high) / 2, high - low], 1)


def overlap(a, b):
    return len(pixels(a) & pixels(b)) / len(pixels(a) | pixels(b))


@given(st.integers(0, 10**6))
def test_overlaps_are_those_of_sets_of_pixels(seed):
    rng = np.random.default_rng(seed)
    first, second = draw_boxes(rng, 3), draw_boxes(rng, 4)
    expected = [[overlap(a, b) for b in second] for a in first]
    np.testing.assert_allclose(box_overlaps(first, second), expected)


@settings(deadline=None)
@given(st.integers(0, 10**6))
def test_a_box_takes_the_free_object_that_it_overlaps_most(seed):
    rng = np.random.default_rng(seed)
    boxes, truth = draw_boxes(rng, 8), draw_boxes(rng, 4)
    boxes[:3] = truth[rng.integers(0, 4, 3)] + rng.integers(0, 2, (3, 4)) * [1, 1, 0, 0]
    kinds, true_kinds = rng.integers(0, 2, 8), rng.integers(0, 2, 4)
    found = match(boxes, kinds, truth, true_kinds)
    for column, threshold in enumerate(THRESHOLDS):
        free = set(range(4))
        for row in range(8):
            candidates = [
                (overlap(boxes[row], truth[n]), -n)
                for n in free
                if kinds[row] == true_kinds[n] and overlap(boxes[row], truth[n]) >= threshold - 1e-9
            ]
            assert found[row, column] == bool(candidates)
            if candidates:
                free.remove(-max(candidates)[1])


@given(st.integers(0, 10**6), st.integers(0, 12), st.integers(1, 9))
def test_the_area_is_the_mean_of_the_best_precision_from_each_recall_on(seed, boxes, objects):
    rng = np.random.default_rng(seed)
    scores, right = rng.permutation(boxes).astype(float), rng.integers(0, 2, (boxes, 2)).astype(bool)
    right &= right.cumsum(0) <= objects
    found = average_precision(scores, right, np.array([objects]), np.ones((1, boxes), int))[0]
    for column in range(2):
        ranked = right[np.argsort(-scores), column].tolist()
        points = [(sum(ranked[:n]), sum(ranked[:n]) / n) for n in range(1, boxes + 1)]
        area = sum(max((p for hit, p in points if hit * 100 >= r * objects), default=0) for r in range(101)) / 101
        assert found[column] == pytest.approx(area)


def test_a_hand_made_case():
    """Right, wrong, right, of two objects: precision 1 up to half of them, two thirds from there on."""
    right = np.array([[True], [False], [True]])
    found = average_precision(np.array([0.9, 0.8, 0.7]), right, np.array([2]), np.ones((1, 3), int))
    assert found[0, 0] == pytest.approx((51 * 1 + 50 * 2 / 3) / 101)


def one_by_one(scores, right, objects):
    """The definition for one draw, all of whose boxes are there as often as they were drawn."""
    order = np.argsort(-scores, kind="stable")
    found = right[order].cumsum(0)
    precision = found / np.arange(1, len(order) + 1)[:, None]
    precision = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
    areas = np.zeros(right.shape[1])
    for column in range(right.shape[1]):
        first = np.searchsorted(found[:, column] * 100, np.arange(101) * objects, side="left")
        areas[column] = precision[first[first < len(order)], column].sum() / 101
    return areas


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 30), st.integers(1, 9))
def test_many_draws_at_once_are_each_for_itself(seed, boxes, most):
    """Boxes that are drawn twice lie beside each other in the ranking, those that are not drawn nowhere."""
    rng = np.random.default_rng(seed)
    scores, right = rng.permutation(boxes).astype(float), rng.random((boxes, 3)) < [0.9, 0.5, 0.1]
    times = rng.integers(0, most, (7, boxes))
    objects = (times @ right).max(1, initial=0) + rng.integers(1, 5, 7)
    found = average_precision(scores, right, objects, times)
    for draw in range(7):
        often = np.repeat(np.arange(boxes), times[draw])
        expected = one_by_one(scores[often], right[often], objects[draw])
        np.testing.assert_allclose(found[draw], expected, rtol=0, atol=1e-12)
