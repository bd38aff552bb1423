# SPDX-License-Identifier: Apache-2.0
"""One map for pixels, masks and points: what was together stays together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.data.augmenting import geometry

sizes = st.tuples(st.integers(1, 12), st.integers(1, 12))


@st.composite
def moves(draw):
    """A size and any row of moves of a picture of that size."""
    height, width = size = draw(sizes)
    matrix = np.eye(3)
    for kind in draw(st.lists(st.sampled_from(["mirror", "flip", "window", "turn"]), max_size=4)):
        if kind == "window":
            wide, high = draw(st.integers(1, width)), draw(st.integers(1, height))
            left, top = draw(st.integers(0, width - wide)), draw(st.integers(0, height - high))
            step = geometry.enlarge(size, left, top, wide, high)
        elif kind == "turn":
            step = geometry.turn(size, draw(st.floats(-180, 180)))
        else:
            step = geometry.mirror(size, upside_down=kind == "flip")
        matrix = step @ matrix
    return size, matrix


@given(sizes, st.booleans(), st.integers(0, 3))
def test_a_mirror_is_exact(size, upside_down, channels):
    shape = (*size, channels) if channels else size
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    matrix = geometry.mirror(size, upside_down=upside_down)
    want = np.flip(pixels, 0 if upside_down else 1)
    assert np.array_equal(geometry.move_pixels(pixels, matrix, 0), want)
    if not channels:
        assert np.array_equal(geometry.move_mask(pixels, matrix, 0), want)
    assert np.allclose(matrix @ matrix, np.eye(3))


@pytest.mark.parametrize("quarter", [1, 2, 3])
def test_quarter_turns_of_a_square_are_exact(quarter):
    pixels = np.random.default_rng(0).integers(0, 256, (7, 7)).astype(np.uint8)
    assert np.array_equal(geometry.move_mask(pixels, geometry.turn((7, 7), 90 * quarter), 0), np.rot90(pixels, quarter))
    turned = geometry.move_pixels(pixels, geometry.turn((7, 7), 90 * quarter), 0)
    # Pixels are laid between neighbours, so a rounding error of the angle may be one step of 256, or a border pixel.
    assert np.abs(turned[1:-1, 1:-1].astype(int) - np.rot90(pixels, quarter)[1:-1, 1:-1]).max() <= 1


def test_a_window_of_half_the_size_shows_every_pixel_four_times():
    mask = np.arange(16).reshape(4, 4)
    moved = geometry.move_mask(mask, geometry.enlarge((4, 4), 1, 2, 2, 2), -1)
    assert np.array_equal(moved, np.kron(mask[2:4, 1:3], np.ones((2, 2), int)))


def test_what_comes_from_outside_is_filled():
    turned = geometry.move_mask(np.ones((9, 9), np.uint8), geometry.turn((9, 9), 45), 7)
    assert turned[0, 0] == 7 and turned[4, 4] == 1
    assert geometry.move_pixels(np.ones((9, 9, 3), np.uint8), geometry.turn((9, 9), 45), 9)[0, 0].tolist() == [9, 9, 9]


@given(moves(), st.data())
def test_the_pixels_of_a_box_stay_inside_the_moved_box(move, data):
    (height, width), matrix = move
    left, top = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    right, bottom = data.draw(st.integers(left + 1, width)), data.draw(st.integers(top + 1, height))
    mask = np.zeros((height, width), bool)
    mask[top:bottom, left:right] = True
    moved = geometry.move_mask(mask, matrix, False)
    ((x0, y0, x1, y1),) = geometry.move_boxes(np.array([[left, top, right, bottom]]), matrix)
    rows, columns = np.nonzero(moved)
    near = 1e-6 * max(1, np.abs(matrix).max())
    assert np.all((columns + 0.5 >= x0 - near) & (columns + 0.5 <= x1 + near))
    assert np.all((rows + 0.5 >= y0 - near) & (rows + 0.5 <= y1 + near))
    if geometry.keeps_axes(matrix):  # and the other way round: every pixel in the box is one of them
        y, x = np.mgrid[:height, :width] + 0.5
        inside = (x > x0 + near) & (x < x1 - near) & (y > y0 + near) & (y < y1 - near)
        assert np.all(moved[inside])


@given(moves(), st.lists(st.tuples(st.floats(0, 12), st.floats(0, 12)), min_size=1, max_size=5))
def test_points_move_and_come_back(move, points):
    _, matrix = move
    back = geometry.move_points(geometry.move_points(np.array(points), matrix), np.linalg.inv(matrix))
    assert np.allclose(back, points, atol=1e-6)


def test_pixels_and_masks_go_the_same_way():
    # Large flat regions: away from their edges a picture that is laid between pixels equals one that is not.
    picture = np.kron(np.array([[10, 90], [170, 250]], np.uint8), np.ones((32, 32), np.uint8))
    for matrix in (geometry.turn((64, 64), 30), geometry.enlarge((64, 64), 5, 9, 40, 50) @ geometry.mirror((64, 64))):
        pixels, mask = geometry.move_pixels(picture, matrix, 0), geometry.move_mask(picture, matrix, 0)
        assert np.mean(pixels == mask) > 0.93
