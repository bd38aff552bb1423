# SPDX-License-Identifier: Apache-2.0
"""The choice of what computes in integers costs least of all, against every other; and what it may not choose."""

from dataclasses import replace
from itertools import chain, combinations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.helper import make_node as node

from fewbit.backends.graph.opening import open_graph
from fewbit.backends.graph.placement import Board, Harm
from fewbit.backends.graph.shaping import value_shapes
from fewbit.backends.graph.targets import ONNXRUNTIME, Target
from fewbit.backends.graph.units import units
from onnx_graphs import model, random

COSTS = st.integers(0, 20).map(float)
KINDS = ("conv", "linear", "add", "concat", "pass", "affine", "mul")


def graph():
    """A bit of everything: two convolutions on one input, a concatenation, a residual, numbers, a layer at the end."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="c"), node("Relu", ["c"], ["r"], name="r"),
        node("Conv", ["x", "v"], ["d"], name="d"), node("Concat", ["r", "d"], ["cat"], name="cat", axis=1),
        node("Transpose", ["cat"], ["t"], name="t", perm=[0, 1, 3, 2]), node("Add", ["t", "n"], ["s"], name="s"),
        node("Add", ["s", "cat"], ["a"], name="a"), node("Tanh", ["a"], ["h"], name="h"),
        node("Mul", ["h", "a"], ["m"], name="m"), node("Reshape", ["m", "flat"], ["f"], name="f"),
        node("Gemm", ["f", "g"], ["y"], name="y"),
    ]  # fmt: skip
    constants = {
        "w": random(2, 2, 1, 1), "v": random(2, 2, 1, 1, seed=1), "n": np.float32(2), "g": random(16, 3),
        "flat": np.array([1, 16], np.int64),
    }  # fmt: skip
    made = open_graph(model(nodes, {"x": [1, 2, 2, 2]}, {"y": None, "d": None}, constants))
    return made, value_shapes(made, {"x": random(1, 2, 2, 2)})


MADE, SHAPES = graph()
UNITS = units(MADE.graph)


@st.composite
def targets(draw):
    whole, plain = ({kind: draw(COSTS) for kind in (*KINDS, "other")} for _ in range(2))

    def integer(work):
        return whole[work.kind] * work.out

    def floating(work):
        return plain[work.kind] * work.out

    unfused = {"add": draw(COSTS), "pass": draw(COSTS)}
    ways = frozenset({"linear"})
    return Target(
        "drawn", dict.fromkeys(KINDS, integer), floating, draw(COSTS), draw(COSTS), ways, draw(COSTS), unfused
    )


def price_of(board, chosen, harm, price):
    """What a choice costs, from its definition: each unit, each crossing once for a value, each rounded value once."""
    target = board.target
    total = sum(board._integer[u] if u in chosen else board._float[u] for u in board.units)
    rounded = set()
    for edge in board.edges:
        size = int(np.prod(SHAPES.get(edge.value.name, ())))
        layout = target.layout if len(SHAPES.get(edge.value.name, ())) > 3 else 0.0
        made = edge.producer in chosen
        only_codes = made and not target.gives_floats(edge.producer)
        wanted = any(reader in chosen for reader in edge.readers)
        left = edge.value.is_graph_output() or any(reader not in chosen for reader in edge.readers)
        if wanted and not made:
            total += size * (target.to_codes + layout)
        if only_codes and left:
            total += size * (target.from_codes + layout)
        if made and edge.producer.kind == "conv" and len(edge.readers) == 1 and edge.readers[0] not in chosen:
            total += target.unfused.get(edge.readers[0].kind, 0.0) * size
        if only_codes or wanted:
            rounded.update(board.roots(edge.value))
    shared = {e.value for e in board.edges if e.value.name in harm.shared and e.producer in chosen}
    shares = sum(harm.values.get(value.name, 0.0) for value in rounded - shared)
    return total + price * (shares + sum(harm.weights.get(u.name, 0.0) for u in chosen))


@settings(max_examples=25)
@given(targets(), st.data())
def test_no_other_choice_costs_less(target, data):
    board = Board(UNITS, target, SHAPES)
    names = [value.name for value in board.sites()]
    values, weights = ({name: data.draw(COSTS) for name in each} for each in (names, ("c", "d", "y")))
    harm = Harm(values, weights, frozenset(data.draw(st.sampled_from([(), ("s",)]))))
    price = data.draw(st.sampled_from([0.0, 1.0, 5.0]))
    found = board.place(harm, price)
    able = [unit for unit in UNITS if board.refused(unit) is None]
    assert len(able) == len(UNITS) - 1  # all but the Tanh
    every = chain.from_iterable(combinations(able, count) for count in range(len(able) + 1))
    least = min(price_of(board, frozenset(chosen), harm, price) for chosen in every)
    assert price_of(board, found.units, harm, price) == pytest.approx(least)
    assert found.after + price * found.harm == pytest.approx(least)
    assert found.before == pytest.approx(price_of(board, frozenset(), harm, 0.0))


@pytest.mark.parametrize(("cost", "names"), [(0.5, {"c", "d", "y"}), (2.0, set())])
def test_an_output_of_the_graph_is_made_float_again(cost, names):
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="c"), node("Conv", ["c", "w"], ["d"], name="d"),
        node("Conv", ["d", "w"], ["y"], name="y"),
    ]  # fmt: skip
    made = open_graph(model(nodes, {"x": [1, 2, 2, 2]}, {"y": None, "d": None}, {"w": random(2, 2, 1, 1)}))
    target = replace(_eager(), from_codes=cost)  # everyone saves 1, and d and y are each given out
    board = Board(units(made.graph), target, value_shapes(made, {"x": random(1, 2, 2, 2)}))
    assert {unit.name for unit in board.place().units} == names


def test_what_is_forbidden_is_not_chosen():
    board = Board(UNITS, _eager(), SHAPES)
    assert "c" in {unit.name for unit in board.place().units}
    for name in ("c", "r"):  # a node inside a unit forbids it whole
        assert "c" not in {unit.name for unit in board.place(forbidden=[name]).units}


def test_harm_is_worth_its_price():
    board = Board(UNITS, _eager(), SHAPES)
    harm = Harm(weights={"c": 1e-3})
    assert "c" in {unit.name for unit in board.place(harm, 1.0).units}
    assert "c" not in {unit.name for unit in board.place(harm, 1e9).units}


def _eager():
    return Target("eager", {kind: lambda work: 0.0 for kind in KINDS}, lambda work: 1.0 * work.out, 0.0, 0.0)


def why(nodes, constants, inputs, kind=1, opset=13):
    proto = model(nodes, inputs, {"y": None}, constants, opset)
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        value.type.tensor_type.elem_type = kind
    made = open_graph(proto)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    shapes = value_shapes(made, {name: random(*shape).astype(dtype) for name, shape in inputs.items()})
    board = Board(units(made.graph), ONNXRUNTIME, shapes)
    return [board.refused(unit) for unit in board.units]


def test_reasons():
    (told,) = why([node("Tanh", ["x"], ["y"], name="y")], {}, {"x": [2, 3]})
    assert "no integer kernel for Tanh" in told
    (told,) = why([node("Add", ["x", "n"], ["y"], name="y")], {"n": np.array([1.0], np.float32)}, {"x": []})
    assert "adds axes" in told
    (told,) = why(
        [node("MatMul", ["x", "w"], ["y"], name="y")], {"w": random(3, 2).astype(np.float64)}, {"x": [2, 3]}, 11
    )
    assert "float32 only" in told
    nodes = [
        node("Shape", ["x"], ["s"], name="s"), node("Gather", ["s", "i"], ["t"], name="t"),
        node("Expand", ["x", "t"], ["y"], name="y"),
    ]  # fmt: skip
    proto = model(nodes, {"x": [2, 3]}, {"y": None}, {"i": np.array([0, 1], np.int64)})
    made = open_graph(proto)
    board = Board(units(made.graph), ONNXRUNTIME, value_shapes(made, {"x": random(2, 3)}))
    assert "not float" in board.refused(board.units[1]) and board.refused(board.units[2]) is None


def test_a_branch_reads_too():
    """What only a branch reads in float has to be made float again: the node that holds the branch is its reader."""

    def branch(nodes, out):
        return onnx.helper.make_graph(nodes, out, [], [onnx.helper.make_tensor_value_info(out, 1, None)])

    nodes = [
        node("Conv", ["x", "w"], ["c"], name="c"), node("ReduceMax", ["x"], ["most"], name="most", keepdims=0),
        node("Greater", ["most", "n"], ["large"], name="large"),
        node("If", ["large"], ["y"], name="if", then_branch=branch([node("Relu", ["c"], ["t"], name="t")], "t"),
             else_branch=branch([node("Tanh", ["c"], ["o"], name="o")], "o")),
    ]  # fmt: skip
    made = open_graph(model(nodes, {"x": [1, 2, 2, 2]}, {"y": None}, {"w": random(2, 2, 1, 1), "n": np.float32(0)}))
    board = Board(units(made.graph), _eager(), value_shapes(made, {"x": random(1, 2, 2, 2)}))
    (edge,) = [edge for edge in board.edges if edge.value.name == "c"]
    assert [unit.name for unit in edge.readers] == ["if"]


def test_a_sum_with_a_number_is_looked_at_by_itself_and_a_product_follows():
    """Codes from zero to what something large was added to are further apart than those of what it was added to."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="c"), node("Mul", ["c", "n"], ["m"], name="m"),
        node("Add", ["c", "n"], ["a"], name="a"), node("Concat", ["m", "a"], ["y"], name="y", axis=1),
    ]  # fmt: skip
    made = open_graph(model(nodes, {"x": [1, 2, 2, 2]}, {"y": None}, {"w": random(2, 2, 1, 1), "n": np.float32(2)}))
    board = Board(units(made.graph), _eager(), value_shapes(made, {"x": random(1, 2, 2, 2)}))
    assert [value.name for value in board.sites()] == ["x", "c", "a", "y"]
    harm = Harm({"c": 1e-3, "a": 1.0})
    assert board.place(harm, 0.0).harm == pytest.approx(1.001) and board.place(harm, 100.0).harm < 1
    harm = replace(harm, shared=frozenset({"a"}))
    assert board.place(harm, 0.0).harm == pytest.approx(1e-3)
