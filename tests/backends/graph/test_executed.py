# SPDX-License-Identifier: Apache-2.0
"""What the runtime runs is counted from its own graph, and what stays float is named as the model names it."""

import json

import numpy as np
import onnx
import pytest
from onnx.helper import make_node as node

from fewbit.backends.graph.executed import Executed, executed
from fewbit.backends.graph.opening import open_graph
from fewbit.errors import DataError
from onnx_graphs import model, random


def seen(nodes, inputs, outputs, constants, opset=13):
    found = executed(open_graph(model(nodes, inputs, outputs, constants, opset)))
    assert sum(found.floating.values()) == len(found.float_nodes)
    return found


def foreign(domain, nodes, inputs, outputs, constants):
    """A model with operators that onnx does not know."""
    proto = model([], inputs, outputs, constants)
    proto.graph.node.extend(nodes)
    proto.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    return open_graph(proto)


def coded(name, value, reads, kind=np.uint8):
    """A value through QuantizeLinear and DequantizeLinear."""
    grid = {f"{name}.s": np.float32(0.05), f"{name}.z": np.array(0, kind)}
    pair = [
        node("QuantizeLinear", [value, *grid], [f"{name}.q"], name=f"{name}.q"),
        node("DequantizeLinear", [f"{name}.q", *grid], [reads], name=f"{name}.d"),
    ]
    return pair, grid


def coded_weight(name, *shape):
    codes = np.clip(np.round(random(*shape) * 40), -127, 127).astype(np.int8)
    constants = {f"{name}.c": codes, f"{name}.s": np.float32(0.02), f"{name}.z": np.int8(0)}
    return [node("DequantizeLinear", list(constants), [name], name=f"{name}.d")], constants


def test_a_convolution_between_codes_runs_in_integers_and_one_without_does_not():
    first, a = coded("in", "x", "xq")
    weight, b = coded_weight("w", 4, 3, 3, 3)
    last, c = coded("out", "y", "yq")
    nodes = [
        *first, *weight,
        node("Conv", ["xq", "w"], ["y"], name="whole", pads=[1, 1, 1, 1]),
        *last,
        node("Conv", ["yq", "v"], ["z"], name="broken"),
    ]  # fmt: skip
    found = seen(nodes, {"x": [1, 3, 8, 8]}, {"z": None}, {**a, **b, **c, "v": random(2, 4, 1, 1)})
    assert found.integer == {"QLinearConv": 1} and found.floating == {"Conv": 1}
    assert found.float_nodes == [("broken", "Conv")]
    assert found.conversions == {"QuantizeLinear": 1, "DequantizeLinear": 1}


def test_sums_of_codes_are_no_compute_operators():
    (left, a), (right, b), (last, c) = coded("p", "x", "xq"), coded("q", "y", "yq"), coded("r", "s", "z")
    nodes = [*left, *right, node("Add", ["xq", "yq"], ["s"], name="add"), *last]
    found = seen(nodes, {"x": [4, 8], "y": [4, 8]}, {"z": None}, {**a, **b, **c})
    assert found.elementwise == {"QLinearAdd": 1} and not found.integer and not found.floating


def test_weight_only_products_are_counted_apart():
    packed = np.random.default_rng(0).integers(0, 255, (8, 1, 16)).astype(np.uint8)
    nodes = [
        node("MatMulNBits", ["x", "b", "s"], ["y"], domain="com.microsoft", K=32, N=8, bits=4, block_size=32, name="n"),
        node("MatMul", ["y", "w"], ["z"], name="head"),
    ]
    constants = {"b": packed, "s": random(8), "w": random(8, 3)}
    found = executed(foreign("com.microsoft", nodes, {"x": [2, 32]}, {"z": [2, 3]}, constants))
    assert found.weight_only == {"MatMulNBits": 1} and found.float_nodes == [("head", "MatMul")] and not found.integer


FUSED = {
    "convolution and ReLU": (
        [node("Conv", ["x", "w"], ["c"], name="one"), node("Relu", ["c"], ["y"], name="relu")],
        [1, 3, 8, 8], {"w": random(5, 3, 3, 3)}, {"one"},
    ),
    "in blocks of channels": (
        [node("Conv", ["x", "w"], ["c"], name="one"), node("Relu", ["c"], ["r"], name="relu"),
         node("Conv", ["r", "v"], ["y"], name="two")],
        [1, 16, 8, 8], {"w": random(32, 16, 3, 3), "v": random(16, 32, 1, 1)}, {"one", "two"},
    ),
    "matrix and bias": (
        [node("MatMul", ["x", "w"], ["c"], name="one"), node("Add", ["c", "b"], ["r"], name="add"),
         node("Relu", ["r"], ["y"], name="relu")],
        [4, 16], {"w": random(16, 8), "b": random(8)}, {"one"},
    ),
    "transposed product": (
        [node("Transpose", ["x"], ["t"], perm=[0, 2, 1], name="turn"), node("MatMul", ["x", "t"], ["m"], name="one"),
         node("Mul", ["m", "s"], ["y"], name="scale")],
        [2, 4, 8], {"s": np.float32(0.5)}, {"one"},
    ),
    "batch norm": (
        [node("Conv", ["x", "w"], ["c"], name="one"),
         node("BatchNormalization", ["c", "v", "v", "v", "v"], ["y"], name="norm")],
        [1, 3, 8, 8], {"w": random(16, 3, 3, 3), "v": np.ones(16, np.float32)}, {"one"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", FUSED)
def test_what_was_fused_is_named_as_the_model_names_it(kind):
    nodes, shape, constants, wanted = FUSED[kind]
    found = seen(nodes, {"x": shape}, {"y": None}, constants)
    assert {name for name, _ in found.float_nodes} == wanted


def test_a_convolution_that_the_runtime_makes_of_a_product_is_named_for_the_product():
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv"),
        node("Relu", ["c"], ["r"], name="relu"),
        node("Mul", ["r", "s"], ["m"], name="product"),
        node("Add", ["m", "b"], ["a"], name="sum"),
        node("MaxPool", ["a"], ["y"], name="pool", kernel_shape=[2, 2]),
    ]
    constants = {"w": random(16, 16, 1, 1), "s": random(1, 16, 1, 1), "b": random(1, 16, 1, 1)}
    found = seen(nodes, {"x": [1, 16, 8, 8]}, {"y": None}, constants)
    names = {name for name, _ in found.float_nodes}
    assert "conv" in names and names <= {"conv", "product", "sum"}


def test_branches_are_counted_and_products_of_whole_numbers_are_not():
    def branch(name):
        out = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        return onnx.helper.make_graph([node("MatMul", ["x", "w"], [name], name=f"{name}.m")], name, [], [out])

    nodes = [
        node("If", ["c"], ["y"], name="if", then_branch=branch("a"), else_branch=branch("b")),
        node("Shape", ["x"], ["shape"]), node("MatMul", ["shape", "shape"], ["n"], name="whole"),
        node("Cast", ["n"], ["z"], to=1),
    ]  # fmt: skip
    proto = model(nodes, {"x": ["n", 4]}, {"y": None, "z": None}, {"w": random(4, 3)})
    proto.graph.input.append(onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []))
    found = executed(open_graph(proto))
    assert found.floating == {"MatMul": 2} and {name for name, _ in found.float_nodes} == {"a.m", "b.m"}


def test_facts_are_plain_data():
    found = Executed({"QGemm": 1}, {"Conv": 1}, {}, {}, {}, [("a", "Conv")])
    assert json.loads(json.dumps(found.facts()))["float_nodes"] == [["a", "Conv"]]


def test_a_model_that_the_runtime_refuses():
    strange = foreign("nowhere", [node("Nothing", ["x"], ["y"], domain="nowhere")], {"x": [1]}, {"y": [1]}, {})
    with pytest.raises(DataError, match="does not take the model"):
        executed(strange)
