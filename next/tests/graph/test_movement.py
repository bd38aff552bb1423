# SPDX-License-Identifier: Apache-2.0
"""Labels through data movement, against executing it on every element."""

import numpy as np
import pytest

from fewbit.graph.ir import Node
from fewbit.graph.movement import compact, move, reshape, varying
from fewbit.graph.parity import connected_components, solve
from neutral_graphs import execute

MOVES = [
    ("reshape", (2, 6, 4), (2, 3, 2, 4), {}),
    ("reshape", (2, 6, 4), (12, 4), {}),
    ("reshape", (2, 6, 4), (2, 24), {}),
    ("reshape", (2, 6, 4), (4, 3, 1, 4), {}),
    ("reshape", (1, 6, 1), (6,), {}),
    ("transpose", (2, 6, 4), None, {"perm": (2, 0, 1)}),
    ("slice", (2, 6, 4), None, {"axis": 1, "start": 5, "stop": 0, "step": -2}),
    ("slice", (2, 6, 4), None, {"axis": 2, "start": 1, "stop": 2, "step": 1, "drop": True}),
    ("expand", (6, 1), (3, 6, 4), {}),
    ("repeat", (2, 6, 4), None, {"axis": 1, "times": 3, "interleave": True}),
    ("repeat", (2, 6, 4), None, {"axis": 2, "times": 2, "interleave": False}),
    ("pad", (2, 6, 4), None, {"pads": ((0, 0), (1, 2), (0, 0)), "value": 0.0}),
    ("gather", (2, 6, 4), None, {"axis": 1, "indices": (5, 5, 0)}),
    ("split", (2, 6, 4), None, {"axis": 1, "sizes": (1, 2, 3)}),
    ("split", (2, 3, 4), None, {"axis": 1, "sizes": (1, 1, 1), "drop": True}),
]


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (-1,), (0, -1)])
@pytest.mark.parametrize(("op", "shape", "target", "attrs"), MOVES)
def test_labels_move_as_elements_do(op, shape, target, attrs, axes):
    """Labels that depend on some axes, moved in their small form, are what every element's label would be."""
    node = Node("n", op, ("x",), tuple(f"y{i}" for i in range(len(attrs.get("sizes", "1")))), attrs)
    sizes = [size if axis in {a % len(shape) for a in axes} else 1 for axis, size in enumerate(shape)]
    labels = np.arange(1, np.prod(sizes) + 1).reshape(sizes)
    full = execute(node, [np.broadcast_to(labels, shape)], [target] * len(node.outputs))
    moved = move(node, [labels], [shape], [array.shape for array in full])
    for small, expected in zip(moved, full, strict=True):
        assert small.ndim == expected.ndim
        there = expected != 0  # padding with zeros has no channel: it may take any label
        np.testing.assert_array_equal(np.broadcast_to(small, expected.shape)[there], expected[there])


def test_labels_stay_as_small_as_the_number_of_channels():
    labels = reshape(np.arange(4096).reshape(1, 1, 4096), (8, 2048, 4096), (8, 2048, 32, 128))
    assert labels.shape == (1, 1, 32, 128)
    assert compact(np.tile([[3, 4]], (5, 1))).shape == (1, 2)


def test_concatenation_and_stacking():
    one, two = np.array([[1, 2]]), np.array([[7]])  # the second does not depend on its axis of 3
    node = Node("n", "concat", ("a", "b"), ("y",), {"axis": 1})
    (joined,) = move(node, [one, two], [(5, 2), (5, 3)], [(5, 5)])
    assert joined.tolist() == [[1, 2, 7, 7, 7]]
    stack = Node("n", "concat", ("a", "b"), ("y",), {"axis": 0, "new_axis": True})
    (stacked,) = move(stack, [one, one + 5], [(5, 2), (5, 2)], [(2, 5, 2)])
    assert stacked.tolist() == [[[1, 2]], [[6, 7]]]


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("slice", {"axis": 1, "start": None, "stop": None, "step": None}),
        ("gather", {"axis": 1}),
        ("pad", {"pads": ((0, 0), (1, 1)), "value": None}),
        ("pad", {"pads": ((1, 1), (0, 0)), "value": 1.0}),
        ("pad", {"pads": ((0, 0), (-1, 0)), "value": 0.0}),
    ],
)
def test_what_is_only_known_at_run_time_is_not_followed(op, attrs):
    node = Node("n", op, ("x",), ("y",), attrs)
    assert move(node, [np.arange(1, 4).reshape(1, 3)], [(2, 3)], [(2, 3)]) is None


def test_movement_along_other_axes_needs_no_indices():
    labels = np.arange(1, 4).reshape(1, 3)
    for node in (
        Node("n", "slice", ("x",), ("y",), {"axis": 0, "start": None, "stop": None, "step": None}),
        Node("n", "gather", ("x", "i"), ("y",), {"axis": 0}),
        Node("n", "pad", ("x",), ("y",), {"pads": ((1, 1), (0, 0)), "value": None}),
    ):
        (moved,) = move(node, [labels], [(2, 3)], [(4, 3)])
        assert varying(moved) == [1] and moved.ravel().tolist() == [1, 2, 3]


def test_equations_with_signs_against_following_them_one_by_one():
    random = np.random.default_rng(0)
    for _ in range(60):
        count, edges = int(random.integers(2, 12)), int(random.integers(0, 14))
        equations = [
            (random.integers(count, size=1), random.integers(count, size=1), int(random.choice([-1, 1])))
            for _ in range(edges)
        ]
        groups, signs = solve(count, equations)
        expected_groups, expected_signs = _by_search(count, equations)
        assert groups.tolist() == expected_groups
        assert [s for s, g in zip(signs.tolist(), expected_groups) if g >= 0] == [
            s for s, g in zip(expected_signs, expected_groups) if g >= 0
        ]


def _by_search(count, equations):
    """Every value relative to the first of its component, by walking the equations; contradictions are zero."""
    neighbors = {x: [] for x in range(count)}
    for left, right, sign in equations:
        neighbors[int(left[0])].append((int(right[0]), sign))
        neighbors[int(right[0])].append((int(left[0]), sign))
    groups, signs = [None] * count, [1] * count
    for start in range(count):
        if groups[start] is not None:
            continue
        value, queue, zero = {start: 1}, [start], start == 0
        while queue:
            x = queue.pop()
            for y, sign in neighbors[x]:
                if y not in value:
                    value[y] = value[x] * sign
                    queue.append(y)
                zero |= value[y] != value[x] * sign
        for x, sign in value.items():
            groups[x], signs[x] = (-1 if zero else start), sign
    return groups, signs


def test_components_of_a_long_chain():
    count = 50_000
    order = np.random.default_rng(0).permutation(count)
    roots = connected_components(count, order[:-1], order[1:])
    assert (roots == 0).all()
