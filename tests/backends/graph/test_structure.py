# SPDX-License-Identifier: Apache-2.0
"""Who feeds whom: links where a scale passes, none where it does not; marks move as the runtime moves values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.helper import make_node as node

from fewbit.backends.graph.moving import moved
from fewbit.backends.graph.opening import open_graph
from fewbit.backends.graph.reshaping import reshaped
from fewbit.backends.graph.structure import find_structure
from linked_graphs import LINKED, STOPPED, ints
from onnx_graphs import model, random, run


def structure(proto):
    return find_structure(open_graph(proto))


@pytest.mark.parametrize("name", LINKED)
def test_links(name):
    proto, wanted = LINKED[name]
    found = structure(proto).links
    assert {(link.producer, tuple(sorted(link.consumers)), link.channels) for link in found} == wanted
    assert len(found) == len(wanted)


@pytest.mark.parametrize("name", STOPPED)
def test_no_link_where_a_scale_does_not_pass(name):
    assert structure(STOPPED[name]).links == ()


def test_order_and_layers_that_read_the_same_value():
    found = structure(LINKED["attention"][0])
    assert found.order == ("norm", "q", "k", "v", "out") and found.shared == (("q", "k", "v"),)


def test_shapes_computed_by_the_graph_are_followed():
    """As exporters write it: Shape, Gather, Unsqueeze and Concat make the target of a Reshape."""
    nodes = [
        node("MatMul", ["x", "a"], ["c"], name="a"), node("Shape", ["c"], ["s"]), node("Gather", ["s", "zero"], ["n"]),
        node("Unsqueeze", ["n", "first"], ["n1"]), node("Concat", ["n1", "rest"], ["shape"], axis=0),
        node("Reshape", ["c", "shape"], ["h"]), node("Transpose", ["h"], ["t"], perm=[0, 2, 1, 3]),
        node("Transpose", ["t"], ["u"], perm=[0, 2, 1, 3]), node("Concat", ["n1", "merged"], ["back"], axis=0),
        node("Reshape", ["u", "back"], ["o"]), node("MatMul", ["o", "b"], ["y"], name="b"),
    ]  # fmt: skip
    constants = {"a": random(8, 6), "b": random(6, 3), "zero": ints(0)[0], "first": ints(0), "rest": ints(-1, 3, 2)}
    proto = model(nodes, {"x": ["batch", "length", 8]}, {"y": None}, constants | {"merged": ints(-1, 6)})
    (link,) = structure(proto).links
    assert (link.producer, link.consumers, link.channels) == ("a", ("b",), tuple(range(6)))


def test_a_product_is_no_second_producer_of_what_passes_through_it():
    nodes = [
        node("MatMul", ["x", "a"], ["c"], name="a"), node("Relu", ["c"], ["r"]),
        node("Mul", ["r", "k"], ["m"], name="k"), node("MatMul", ["m", "b"], ["y"], name="b"),
    ]  # fmt: skip
    constants = {"a": random(8, 6), "k": random(6), "b": random(6, 3)}
    (link,) = structure(model(nodes, {"x": [2, 5, 8]}, {"y": None}, constants)).links
    assert link.producer == "a"


def chain(length):
    nodes, constants = [], {}
    for i in range(length):
        nodes += [node("MatMul", [f"v{i}", f"w{i}"], [f"r{i}"], name=f"l{i}"), node("Relu", [f"r{i}"], [f"v{i + 1}"])]
        constants[f"w{i}"] = random(4, 4)
    return model(nodes, {"v0": [1, 4]}, {f"v{length}": None}, constants)


def test_each_node_is_visited_as_often_in_a_long_graph_as_in_a_short_one(monkeypatch):
    from fewbit.backends.graph import flow

    seen = []
    original = flow.Flow._visit
    monkeypatch.setattr(flow.Flow, "_visit", lambda self, node: (seen.append(node), original(self, node)))
    counts = []
    for length in (20, 40):
        seen.clear()
        assert len(structure(chain(length)).links) == length - 1
        counts.append(len(seen))
    assert counts[1] < 2.2 * counts[0]


MOVES = {
    "transpose": ("Transpose", {"perm": [0, 2, 3, 1]}, ()),
    "reverse": ("Transpose", {}, ()),
    "flatten": ("Flatten", {"axis": 2}, ()),
    "slice": ("Slice", {}, (ints(1, -3), ints(100, -1), ints(1, 3))),
    "slice back": ("Slice", {}, (ints(-1), ints(-(1 << 62)), ints(1), ints(-2))),
    "split": ("Split", {"axis": 1}, (ints(1, 3, 2),)),
    "gather": ("Gather", {"axis": 1}, (ints(5, 0, 0, -2),)),
    "gather one": ("Gather", {"axis": -3}, (ints(2)[0],)),
    "gather elsewhere": ("Gather", {"axis": 2}, (ints(2, 0),)),
    "unsqueeze": ("Unsqueeze", {}, (ints(-1, 1),)),
    "tile": ("Tile", {}, (ints(1, 2, 3, 1),)),
    "expand": ("Expand", {}, (ints(5, 1, 1, 3, 4),)),
    "reshape": ("Reshape", {}, (ints(0, 2, -1, 4),)),
    "reshape to one": ("Reshape", {}, (ints(-1),)),
}


@pytest.mark.parametrize("name", MOVES)
def test_channels_move_as_the_runtime_moves_values(name):
    op, attributes, more = MOVES[name]
    names = [f"k{i}" for i in range(len(more))]
    outputs = [f"y{i}" for i in range(3 if op == "Split" else 1)]
    made = node(op, ["x", *names], outputs, **attributes)
    proto = model([made], {"x": [2, 6, 3, 4]}, dict.fromkeys(outputs), dict(zip(names, more)))
    mark = np.arange(6).reshape(1, 6, 1, 1)
    opened = next(iter(open_graph(proto).graph))
    wanted = run(proto, x=np.broadcast_to(mark, (2, 6, 3, 4)).astype(np.float32))
    for found, places in zip(moved(opened, [mark, *[None] * len(more)]), wanted, strict=True):
        np.testing.assert_array_equal(np.broadcast_to(found, places.shape), places)


@given(st.data())
def test_a_mark_is_reshaped_right_or_not_at_all(data):
    """Against numpy, with some of the sides not told."""
    before = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    axis = data.draw(st.integers(0, len(before) - 1))
    rest, after = int(np.prod(before)), []
    while rest > 1 and len(after) < 4:
        side = data.draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0]))
        after.append(side)
        rest //= side
    after.append(rest)
    mark = np.arange(before[axis]).reshape([side if at == axis else 1 for at, side in enumerate(before)])
    told = [side if data.draw(st.booleans()) else None for side in before]
    target = [side if data.draw(st.booleans()) else None for side in after]
    found = reshaped(mark, told, target)
    wanted = np.broadcast_to(mark, before).reshape(after)
    if found is None:
        assert None in told or None in target
    else:
        assert found.ndim == len(after)
        np.testing.assert_array_equal(np.broadcast_to(found, after), wanted)
