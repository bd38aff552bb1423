# SPDX-License-Identifier: Apache-2.0
"""Functions in several nodes are recognised in the ways exporters spell them, and what only looks like them is not."""

import numpy as np
import pytest
from onnx.helper import make_node as node

from fewbit.backends.graph.opening import open_graph
from fewbit.backends.graph.patterns import attentions, gates, gelus, norms
from linked_graphs import NORM, attention, gate, layer_norm
from onnx_graphs import model, random

X = {"x": [2, 5, 8]}


def graph(nodes, inputs=X, outputs=("y",), **constants):
    opened = open_graph(model(nodes, inputs, dict.fromkeys(outputs), constants))
    return opened.graph


def names(pattern):
    return pattern.x.name, pattern.y.name


def test_layer_norm():
    (found,) = norms(graph(layer_norm(gives="y"), **NORM))
    assert names(found) == ("x", "y") and found.is_centered and len(found.nodes) == 9
    assert found.scale.op_type == "Mul" and found.shift.op_type == "Add"


def test_layer_norm_with_the_scale_first_and_epsilon_outside():
    nodes = [
        node("ReduceMean", ["x"], ["m"], axes=[-1]), node("Sub", ["x", "m"], ["c"]), node("Mul", ["gamma", "c"], ["g"]),
        node("ReduceMean", ["x"], ["m2"], axes=[-1]), node("Sub", ["x", "m2"], ["c2"]),
        node("Mul", ["c2", "c2"], ["s"]), node("ReduceMean", ["s"], ["v"], axes=[-1]),
        node("Mul", ["v", "n"], ["vn"]), node("Sqrt", ["vn"], ["r"]),
        node("Add", ["r", "epsilon"], ["re"]), node("Div", ["g", "re"], ["d"]), node("Add", ["d", "beta"], ["y"]),
    ]  # fmt: skip
    (found,) = norms(graph(nodes, n=np.float32(8 / 7), **NORM))
    assert names(found) == ("x", "y") and found.is_centered and len(found.nodes) == 12
    assert found.scale.outputs[0].name == "g" and found.shift is not None


@pytest.mark.parametrize("scaled", [True, False])
def test_root_mean_square_norm(scaled):
    nodes = [
        node("Pow", ["x", "two"], ["s"]), node("ReduceMean", ["s"], ["v"], axes=[-1]),
        node("Add", ["v", "epsilon"], ["e"]), node("Sqrt", ["e"], ["r"]), node("Reciprocal", ["r"], ["i"]),
        node("Mul", ["x", "i"], ["n" if scaled else "y"]),
    ] + [node("Mul", ["gamma", "n"], ["y"])] * scaled  # fmt: skip
    (found,) = norms(graph(nodes, **NORM))
    assert names(found) == ("x", "y") and not found.is_centered and (found.scale is not None) is scaled
    assert found.shift is None and len(found.nodes) == 6 + scaled


def test_a_root_of_something_else_is_no_norm():
    nodes = [node("ReduceMean", ["z"], ["v"], axes=[-1]), node("Sqrt", ["v"], ["r"]), node("Div", ["x", "r"], ["y"])]
    assert not list(norms(graph(nodes, X | {"z": [2, 5, 8]})))
    assert not list(norms(graph([node("Sqrt", ["x"], ["r"]), node("Div", ["x", "r"], ["y"])])))


GELU = {
    "erf": [node("Div", ["x", "root2"], ["a"]), node("Erf", ["a"], ["e"]), node("Add", ["e", "one"], ["f"])],
    "tanh": [
        node("Pow", ["x", "three"], ["p"]), node("Mul", ["p", "small"], ["q"]), node("Add", ["x", "q"], ["s"]),
        node("Mul", ["s", "big"], ["t"]), node("Tanh", ["t"], ["e"]), node("Add", ["one", "e"], ["f"]),
    ],
}  # fmt: skip
ENDS = {
    "x first": [node("Mul", ["x", "f"], ["g"]), node("Mul", ["g", "half"], ["y"])],
    "half first": [node("Mul", ["half", "f"], ["g"]), node("Mul", ["g", "x"], ["y"])],
    "half of x": [node("Mul", ["x", "half"], ["g"]), node("Mul", ["g", "f"], ["y"])],
}
NUMBERS = {
    "root2": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5), "three": np.float32(3),
    "small": np.float32(0.044715), "big": np.float32(0.7978845608),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("form", GELU)
def test_gelu(form, end):
    (found,) = gelus(graph(GELU[form] + ENDS[end], **NUMBERS))
    assert names(found) == ("x", "y") and len(found.nodes) == len(GELU[form]) + 2


@pytest.mark.parametrize("form", GELU)
def test_other_numbers_are_no_gelu(form):
    wrong = NUMBERS | {"root2": np.float32(2), "big": np.float32(1)}
    assert not list(gelus(graph(GELU[form] + ENDS["x first"], **wrong)))


def test_attention():
    found = list(attentions(open_graph(attention(kv=2)).graph))
    assert [(a.q.name, a.k.name, a.v.name, a.y.name, len(a.nodes)) for a in found] == [("qh", "kt", "vh", "o4", 4)]


def test_attention_with_a_computed_mask_and_a_softmax_that_is_none():
    inputs = {"q": [1, 2, 5, 4], "k": [1, 2, 4, 5], "v": [1, 2, 5, 4], "mask": [1, 1, 5, 5]}
    nodes = [
        node("MatMul", ["q", "k"], ["s"]), node("Sub", ["one", "mask"], ["n"]), node("Mul", ["n", "low"], ["m"]),
        node("Add", ["m", "s"], ["a"]), node("Softmax", ["a"], ["p"], axis=-1), node("MatMul", ["p", "v"], ["y"]),
    ]  # fmt: skip
    numbers = {"one": np.float32(1), "low": np.float32(-1e4)}
    (found,) = attentions(graph(nodes, inputs, **numbers))
    assert (found.q.name, found.k.name, found.v.name) == ("q", "k", "v") and len(found.nodes) == 4
    plain = [node("MatMul", ["x", "w"], ["l"]), node("Softmax", ["l"], ["y"], axis=-1)]
    assert not list(attentions(graph(plain, w=random(8, 3))))


def test_squeeze_and_excite():
    (found,) = gates(open_graph(gate()).graph)
    assert names(found) == ("r", "m")
    assert [n.op_type for n in found.nodes] == ["GlobalAveragePool", "Conv", "Relu", "Conv", "Sigmoid", "Mul"]


def test_squeeze_and_excite_with_swish_and_a_clipped_gate():
    nodes = [
        node("ReduceMean", ["x"], ["p"], axes=[2, 3]), node("Conv", ["p", "w"], ["c"]), node("Sigmoid", ["c"], ["s"]),
        node("Mul", ["c", "s"], ["w1"]), node("Conv", ["w1", "w"], ["d"]), node("Clip", ["d", "zero", "six"], ["e"]),
        node("Div", ["e", "six"], ["g"]), node("Mul", ["g", "x"], ["y"]),
    ]  # fmt: skip
    numbers = {"w": random(4, 4, 1, 1), "zero": np.float32(0), "six": np.float32(6)}
    (found,) = gates(graph(nodes, {"x": [1, 4, 6, 6]}, **numbers))
    assert names(found) == ("x", "y") and len(found.nodes) == 8
    classifier = [
        node("GlobalAveragePool", ["x"], ["p"]),
        node("Conv", ["p", "w"], ["c"]),
        node("Sigmoid", ["c"], ["y"]),
    ]
    assert not list(gates(graph(classifier, {"x": [1, 4, 6, 6]}, **numbers)))
