# SPDX-License-Identifier: Apache-2.0
"""A repaired graph computes what it did, in fewer nodes; what cannot be folded stays."""

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.helper import make_node as node

from fewbit.backends.graph.opening import open_graph
from fewbit.backends.graph.repair import repair
from onnx_graphs import model, random, run


def repaired(proto):
    opened = open_graph(proto)
    notes = repair(opened)
    made = ir.to_proto(opened)
    onnx.checker.check_model(made)
    return made, Counter(n.op_type for n in made.graph.node), notes


def same(proto, made, **feeds):
    for before, after in zip(run(proto, **feeds), run(made, **feeds)):
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)


def batch_norm(channels, seed=1):
    parts = random(4, channels, seed=seed)
    return {"scale": parts[0], "shift": parts[1], "mean": parts[2], "variance": np.abs(parts[3]) + 0.1}


CONVOLUTIONS = {
    "plain": ("Conv", (6, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
    "depthwise": ("Conv", (4, 1, 3, 3), {"group": 4}),
    "grouped": ("Conv", (6, 2, 1, 1), {"group": 2}),
    "transposed": ("ConvTranspose", (4, 6, 2, 2), {"strides": [2, 2]}),
    "transposed in groups": ("ConvTranspose", (4, 3, 2, 2), {"group": 2}),
}


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_a_batch_norm_is_folded_into_every_kind_of_convolution(kind, bias):
    op, shape, attributes = CONVOLUTIONS[kind]
    channels = shape[0] if op == "Conv" else shape[1] * attributes.get("group", 1)
    constants = {"w": random(*shape), **batch_norm(channels)} | ({"b": random(channels, seed=3)} if bias else {})
    nodes = [
        node(op, ["x", "w", "b"][: 2 + bias], ["c"], **attributes),
        node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["y"]),
    ]
    proto = model(nodes, {"x": [2, 4, 5, 5]}, {"y": None}, constants)
    made, ops, notes = repaired(proto)
    assert ops == {op: 1} and made.graph.output[0].name == "y" and "folded" in notes[0][1]
    same(proto, made, x=random(2, 4, 5, 5, seed=4))


@pytest.mark.parametrize(
    ("op", "constant", "folds"),
    [
        ("Mul", random(6, 1, 1), True), ("Add", random(1, 6, 1, 1), True), ("Sub", np.float32(2.0), True),
        ("Div", random(6, 1, 1) + 3, True), ("Add", random(5), False),
        ("Add", random(1, 1, 1, 1, 1), False), ("Mul", random(1, 6, 5, 5), False),
    ],
)  # fmt: skip
def test_products_and_sums_with_constants(op, constant, folds):
    nodes = [node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), node(op, ["c", "k"], ["y"])]
    proto = model(nodes, {"x": [1, 4, 5, 5]}, {"y": None}, {"w": random(6, 4, 3, 3), "k": constant})
    made, ops, _ = repaired(proto)
    assert ops == ({"Conv": 1} if folds else {"Conv": 1, op: 1})
    same(proto, made, x=random(1, 4, 5, 5, seed=2))


def test_a_weight_that_two_use_is_folded_for_one_only():
    nodes = [node("Conv", ["x", "w"], ["a"]), node("Mul", ["a", "k"], ["y"]), node("Conv", ["x", "w"], ["z"])]
    proto = model(nodes, {"x": [1, 4, 5, 5]}, {"y": None, "z": None}, {"w": random(6, 4, 1, 1), "k": random(6, 1, 1)})
    made, ops, _ = repaired(proto)
    assert ops == {"Conv": 2}
    same(proto, made, x=random(1, 4, 5, 5))


def test_what_others_read_too_is_not_folded():
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Mul", ["c", "k"], ["m"]), node("Add", ["c", "m"], ["y"])]
    proto = model(nodes, {"x": [1, 4, 5, 5]}, {"y": None, "c": None}, {"w": random(6, 4, 1, 1), "k": random(6, 1, 1)})
    made, ops, _ = repaired(proto)
    assert ops == {"Conv": 1, "Mul": 1, "Add": 1}
    same(proto, made, x=random(1, 4, 5, 5))


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm(transposed):
    weight = random(6, 4) if transposed else random(4, 6)
    nodes = [node("Gemm", ["x", "w", "b"], ["c"], transB=transposed), node("Mul", ["c", "k"], ["y"])]
    proto = model(nodes, {"x": [3, 4]}, {"y": None}, {"w": weight, "b": random(6), "k": random(6, seed=5)})
    made, ops, _ = repaired(proto)
    assert ops == {"Gemm": 1}
    same(proto, made, x=random(3, 4))


def swish(first, last, factor):
    nodes = [
        node("Add", ["x", "three"], ["a"]),
        node("Clip", ["a", "zero", "six"], ["c"]),
        node("Mul", ["x", "c"], ["m"]) if first == "Mul" else node(last, ["c", "f"], ["m"]),
        node(last, ["m", "f"], ["y"]) if first == "Mul" else node("Mul", ["m", "x"], ["y"]),
    ]
    constants = {"three": 3.0, "zero": 0.0, "six": 6.0, "f": factor}
    return model(nodes, {"x": [2, 9]}, {"y": None}, {k: np.float32(v) for k, v in constants.items()})


@pytest.mark.parametrize(("first", "last", "factor"), [("Mul", "Div", 6), ("Mul", "Mul", 1 / 6), ("Div", "Div", 6)])
def test_hard_swish_is_said_in_two_nodes(first, last, factor):
    proto = swish(first, last, factor)
    made, ops, _ = repaired(proto)
    assert ops == {"HardSigmoid": 1, "Mul": 1} and made.graph.output[0].name == "y"
    same(proto, made, x=random(2, 9) * 4)


def test_what_only_looks_like_hard_swish_stays():
    proto = swish("Mul", "Div", 5.0)
    made, ops, _ = repaired(proto)
    assert ops == {"Add": 1, "Clip": 1, "Mul": 1, "Div": 1}
    same(proto, made, x=random(2, 9) * 4)


def test_constants_are_computed_and_idle_nodes_go():
    nodes = [
        node("Constant", [], ["w0"], value=onnx.numpy_helper.from_array(random(24))),
        node("Reshape", ["w0", "shape"], ["w"]),
        node("Identity", ["x"], ["i"]),
        node("Dropout", ["i"], ["d"]),
        node("MatMul", ["d", "w"], ["m"]),
        node("Identity", ["m"], ["y"]),
    ]
    proto = model(nodes, {"x": [2, 4]}, {"y": None}, {"shape": np.array([4, 6])})
    made, ops, _ = repaired(proto)
    assert ops == {"MatMul": 1} and made.graph.output[0].name == "y"
    same(proto, made, x=random(2, 4))


def test_what_was_given_is_not_changed():
    proto = swish("Mul", "Div", 6)
    before = proto.SerializeToString()
    repaired(proto)
    assert proto.SerializeToString() == before
