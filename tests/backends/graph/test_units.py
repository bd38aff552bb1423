# SPDX-License-Identifier: Apache-2.0
"""Each pattern lands in its unit, and every node in exactly one."""

import numpy as np
import onnx
import pytest
from onnx.helper import make_node as node

from fewbit.backends.graph.opening import open_graph
from fewbit.backends.graph.units import units
from onnx_graphs import model, random

NUMBER, PAIR = np.float32(0.5), random(1, 4, 1, 1)
PICTURE, ROWS = {"x": [1, 4, 6, 6]}, {"x": [5, 4]}


def conv(reads="x", gives="c", weight="w", **more):
    return node("Conv", [reads, weight], [gives], name=gives, **more)


def gate(reads, gives, **more):
    return node("HardSigmoid", [reads], [gives], name=gives, **more)


def parts(nodes, inputs, constants=None, opset=14):
    given = {"w": random(4, 4, 1, 1), "m": random(4, 4)} | (constants or {})
    graph = open_graph(model(nodes, inputs, {nodes[-1].output[0]: None}, given, opset)).graph
    found = units(graph)
    assert sorted(n.name for unit in found for n in unit.nodes) == sorted(n.name for n in graph)
    assert [n for unit in found for n in unit.nodes if n not in list(graph)] == []
    return found


def said(nodes, inputs, constants=None, opset=14):
    return [(unit.kind, "+".join(n.op_type for n in unit.nodes)) for unit in parts(nodes, inputs, constants, opset)]


PATTERNS = {
    "conv and relu": (
        [conv(), node("Relu", ["c"], ["y"], name="y")], PICTURE, {}, [("conv", "Conv+Relu")],
    ),
    "conv and clip": (
        [conv(), node("Clip", ["c", "lo", "hi"], ["y"], name="y")], PICTURE,
        {"lo": np.float32(0), "hi": np.float32(6)}, [("conv", "Conv+Clip")],
    ),
    "conv and clip to what a node computes": (
        [node("ReduceMax", ["x"], ["hi"], name="hi", keepdims=0), conv(),
         node("Clip", ["c", "", "hi"], ["y"], name="y")], PICTURE, {},
        [("other", "ReduceMax"), ("conv", "Conv"), ("other", "Clip")],
    ),
    "conv and maximum with zero": (
        [conv(), node("Max", ["zero", "c"], ["y"], name="y")], PICTURE, {"zero": np.float32(0)}, [("conv", "Conv+Max")],
    ),
    "conv that two read": (
        [conv(), node("Relu", ["c"], ["r"], name="r"), node("Add", ["c", "r"], ["y"], name="y")], PICTURE, {},
        [("conv", "Conv"), ("pass", "Relu"), ("add", "Add")],
    ),
    "matmul and bias and relu": (
        [node("MatMul", ["x", "m"], ["a"], name="a"), node("Add", ["b", "a"], ["c"], name="c"),
         node("Relu", ["c"], ["y"], name="y")], ROWS, {"b": random(4)}, [("linear", "MatMul+Add+Relu")],
    ),
    "matmul and a bias that adds an axis": (
        [node("MatMul", ["x", "m"], ["a"], name="a"), node("Add", ["a", "b"], ["y"], name="y")], ROWS,
        {"b": random(1, 1, 4)}, [("linear", "MatMul"), ("other", "Add")],
    ),
    "matmul and a constant for each row": (
        [node("MatMul", ["x", "m"], ["a"], name="a"), node("Add", ["a", "b"], ["y"], name="y")], ROWS,
        {"b": random(5, 1)}, [("linear", "MatMul"), ("other", "Add")],
    ),
    "hard-swish as one": ([node("HardSwish", ["x"], ["y"], name="y")], PICTURE, {}, [("hard_swish", "HardSwish")]),
    "hard-swish as two": (
        [gate("x", "g"), node("Mul", ["g", "x"], ["y"], name="y")], PICTURE, {}, [("hard_swish", "HardSigmoid+Mul")],
    ),
    "a gate for something else": (
        [gate("x", "g"), conv(), node("Mul", ["g", "c"], ["y"], name="y")], PICTURE, {},
        [("hard_sigmoid", "HardSigmoid"), ("conv", "Conv"), ("mul", "Mul")],
    ),
    "a gate that falls": ([gate("x", "y", alpha=-0.2)], PICTURE, {}, [("other", "HardSigmoid")]),
    "a gate that falls, times x": (
        [gate("x", "g", alpha=-0.2), node("Mul", ["g", "x"], ["y"], name="y")], PICTURE, {},
        [("other", "HardSigmoid"), ("mul", "Mul")],
    ),
    "a chain of numbers": (
        [node("Mul", ["x", "n"], ["a"], name="a"), node("Add", ["n", "a"], ["b"], name="b"),
         node("Div", ["b", "n"], ["c"], name="c"), node("Sub", ["c", "n"], ["y"], name="y")], PICTURE, {"n": NUMBER},
        [("affine", "Mul+Add+Div+Sub")],
    ),
    "a chain that is read inside": (
        [node("Mul", ["x", "n"], ["a"], name="a"), node("Add", ["n", "a"], ["b"], name="b"),
         node("Concat", ["a", "b"], ["y"], name="y", axis=1)], PICTURE, {"n": NUMBER},
        [("affine", "Mul"), ("affine", "Add"), ("concat", "Concat")],
    ),
    "times a negative": ([node("Mul", ["x", "n"], ["y"], name="y")], PICTURE, {"n": -NUMBER}, [("other", "Mul")]),
    "a number less x": ([node("Sub", ["n", "x"], ["y"], name="y")], PICTURE, {"n": NUMBER}, [("other", "Sub")]),
    "a number by x": ([node("Div", ["n", "x"], ["y"], name="y")], PICTURE, {"n": NUMBER}, [("other", "Div")]),
    "by channel": ([node("Mul", ["x", "p"], ["y"], name="y")], PICTURE, {"p": PAIR}, [("other", "Mul")]),
    "a product with itself": ([node("Mul", ["x", "x"], ["y"], name="y")], PICTURE, {}, [("other", "Mul")]),
    "sum and relu": (
        [conv(), node("Add", ["c", "x"], ["a"], name="a"), node("Relu", ["a"], ["y"], name="y")], PICTURE, {},
        [("conv", "Conv"), ("add", "Add+Relu")],
    ),
    "a product of activations": (
        [node("MatMul", ["x", "m"], ["a"], name="a"), node("Transpose", ["a"], ["t"], name="t", perm=[1, 0]),
         node("MatMul", ["x", "t"], ["y"], name="y")], ROWS, {},
        [("linear", "MatMul"), ("pass", "Transpose"), ("product", "MatMul")],
    ),
    "a weight on the left": ([node("MatMul", ["m", "x"], ["y"], name="y")], {"x": [4, 5]}, {}, [("other", "MatMul")]),
    "weights in a stack": (
        [node("MatMul", ["x", "s"], ["y"], name="y")], {"x": [3, 5, 4]}, {"s": random(3, 4, 2)}, [("other", "MatMul")],
    ),
    "gemm": ([node("Gemm", ["x", "m", "b"], ["y"], name="y")], ROWS, {"b": random(1, 4)}, [("linear", "Gemm")]),
    "gemm with alpha": ([node("Gemm", ["x", "m"], ["y"], name="y", alpha=2.0)], ROWS, {}, [("other", "Gemm")]),
    "gemm with a bias for each row": (
        [node("Gemm", ["x", "m", "b"], ["y"], name="y")], {"x": [4, 4]}, {"b": random(4, 1)}, [("other", "Gemm")],
    ),
    "gemm that adds an activation": (
        [node("Gemm", ["x", "m", "z"], ["y"], name="y")], ROWS | {"z": [5, 4]}, {}, [("other", "Gemm")],
    ),
    "gemm of columns": (
        [node("Gemm", ["x", "m"], ["y"], name="y", transA=1)], {"x": [4, 5]}, {}, [("other", "Gemm")],
    ),
    "parts": (
        [node("Split", ["x"], ["a", "b"], name="s", axis=1), node("Add", ["a", "b"], ["y"], name="y")], PICTURE, {},
        [("pass", "Split"), ("add", "Add")],
    ),
    "moves of a constant": (
        [node("Expand", ["p", "z"], ["e"], name="e"), node("Add", ["x", "e"], ["y"], name="y")], PICTURE,
        {"p": PAIR, "z": np.array([1, 4, 6, 6], np.int64)}, [("other", "Expand"), ("add", "Add")],
    ),
    "the same part twice": ([node("Concat", ["x", "x"], ["y"], name="y", axis=1)], PICTURE, {}, [("other", "Concat")]),
    "resized to the nearest, and in between": (
        [node("Resize", ["x", "", "k"], ["a"], name="a"),
         node("Resize", ["a", "", "k"], ["y"], name="y", mode="linear")], PICTURE,
        {"k": np.array([1, 1, 2, 2], np.float32)}, [("pass", "Resize"), ("other", "Resize")],
    ),
    "gelu": (
        [node("Div", ["x", "k"], ["d"], name="d"), node("Erf", ["d"], ["e"], name="e"),
         node("Add", ["e", "i"], ["a"], name="a"), node("Mul", ["x", "a"], ["t"], name="t"),
         node("Mul", ["t", "n"], ["y"], name="y")], ROWS,
        {"k": np.float32(2**0.5), "i": np.float32(1), "n": NUMBER}, [("gelu", "Div+Erf+Add+Mul+Mul")],
    ),
    "gelu of what is halved first": (
        [node("Mul", ["x", "n"], ["h"], name="h"), node("Mul", ["x", "k"], ["d"], name="d"),
         node("Erf", ["d"], ["e"], name="e"), node("Add", ["i", "e"], ["a"], name="a"),
         node("Mul", ["h", "a"], ["y"], name="y")], ROWS,
        {"k": np.float32(2**-0.5), "i": np.float32(1), "n": NUMBER}, [("affine", "Mul"), ("gelu", "Mul+Erf+Add+Mul")],
    ),
    "erf of something, times something else": (
        [node("Mul", ["x", "k"], ["d"], name="d"), node("Erf", ["d"], ["e"], name="e"),
         node("Mul", ["e", "z"], ["y"], name="y")], ROWS | {"z": [5, 4]}, {"k": np.float32(2**-0.5)},
        [("affine", "Mul"), ("other", "Erf"), ("mul", "Mul")],
    ),
    "softmax and the like": (
        [node("Softmax", ["x"], ["s"], name="s"), node("Sigmoid", ["s"], ["a"], name="a"),
         node("LeakyRelu", ["a"], ["l"], name="l"), node("GlobalAveragePool", ["l"], ["y"], name="y")], PICTURE, {},
        [("softmax", "Softmax"), ("sigmoid", "Sigmoid"), ("leaky_relu", "LeakyRelu"),
         ("global_average_pool", "GlobalAveragePool")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns(name):
    nodes, inputs, constants, wanted = PATTERNS[name]
    assert said(nodes, inputs, constants) == wanted


def test_what_a_chain_of_numbers_comes_to():
    nodes = [
        node("Mul", ["x", "two"], ["a"], name="a"), node("Add", ["a", "three"], ["b"], name="b"),
        node("Div", ["b", "two"], ["c"], name="c"), node("Sub", ["c", "three"], ["y"], name="y"),
    ]  # fmt: skip
    (unit,) = parts(nodes, PICTURE, {"two": np.float32(2), "three": np.array([3], np.float32)})
    assert (unit.factor, unit.offset) == (1.0, -1.5)  # ((2x + 3) / 2) - 3


def test_between_what_is_clipped():
    constants = {"lo": np.float32(-1), "hi": np.float32(6)}
    (unit,) = parts([conv(), node("Clip", ["c", "lo", "hi"], ["y"], name="y")], PICTURE, constants)
    assert unit.ends == (-1.0, 6.0) and unit.out.name == "y" and [value.name for value in unit.reads] == ["x"]
    (unit,) = parts([conv(), node("Relu", ["c"], ["y"], name="y")], PICTURE)
    assert unit.ends == (0.0, np.inf)


def test_an_output_of_the_graph_stays_one():
    proto = model(
        [conv(), node("Relu", ["c"], ["y"], name="y")], PICTURE, {"c": None, "y": None}, {"w": random(4, 4, 1, 1)}
    )
    assert [unit.kind for unit in units(open_graph(proto).graph)] == ["conv", "pass"]


def test_a_bias_that_the_graph_computes_is_no_bias():
    nodes = [node("Relu", ["z"], ["b"], name="b"), node("Conv", ["x", "w", "b"], ["y"], name="y")]
    assert said(nodes, PICTURE | {"z": [4]}) == [("pass", "Relu"), ("other", "Conv")]


def test_operators_of_other_domains_are_left_alone():
    proto = model([node("Relu", ["x"], ["a"], name="a")], PICTURE, {"y": [1, 4, 6, 6]}, {})
    proto.graph.node.append(node("Conv", ["a", "a"], ["y"], name="theirs", domain="theirs"))
    proto.opset_import.append(onnx.helper.make_opsetid("theirs", 1))
    assert [unit.kind for unit in units(open_graph(proto).graph)] == ["pass", "other"]


@pytest.mark.parametrize(("apart", "wanted"), [
    ((), [("conv", "Conv+Relu"), ("add", "Add+Clip")]),
    (("r",), [("conv", "Conv"), ("pass", "Relu"), ("add", "Add+Clip")]),
    (("y", "r"), [("conv", "Conv"), ("pass", "Relu"), ("add", "Add"), ("pass", "Clip")]),
])  # fmt: skip
def test_units_without_the_clipping_that_stays_in_float(apart, wanted):
    nodes = [
        conv(), node("Relu", ["c"], ["r"], name="r"), node("Add", ["r", "x"], ["a"], name="a"),
        node("Clip", ["a"], ["y"], name="y"),
    ]  # fmt: skip
    graph = open_graph(model(nodes, PICTURE, {"y": None}, {"w": random(4, 4, 1, 1)}, 14)).graph
    assert [(unit.kind, "+".join(n.op_type for n in unit.nodes)) for unit in units(graph, apart)] == wanted


def test_units_without_the_bias_that_stays_in_float():
    nodes = [
        node("MatMul", ["x", "m"], ["a"], name="a"), node("Add", ["a", "b"], ["c"], name="c"),
        node("Relu", ["c"], ["y"], name="y"),
    ]  # fmt: skip
    graph = open_graph(model(nodes, ROWS, {"y": None}, {"m": random(4, 4), "b": random(4)}, 14)).graph
    assert [unit.kind for unit in units(graph)] == ["linear"]
    assert [unit.kind for unit in units(graph, ["c"])] == ["linear", "other", "pass"]
    assert units(graph, ["c"])[0].bias is None
