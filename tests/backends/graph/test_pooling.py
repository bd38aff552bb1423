# SPDX-License-Identifier: Apache-2.0
"""The mean over all positions of a picture is a pooling; every other mean stays what it is."""

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
    onnx.checker.check_model(made, full_check=True)
    return made, Counter(n.op_type for n in made.graph.node), notes


def mean(axes, keepdims, opset):
    if opset < 18:
        return node("ReduceMean", ["r"], ["y"], name="mean", axes=axes, keepdims=keepdims), {}
    return node("ReduceMean", ["r", "axes"], ["y"], name="mean", keepdims=keepdims), {"axes": np.array(axes)}


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[2], [2, 3], [-1, -2], [2, 3, 4]], ids=str)
def test_a_mean_over_all_positions_is_a_pooling(axes, keepdims, opset):
    shape = [2, 3, 5, 4, 2][: 2 + len(axes)]
    reduce, constants = mean(axes, keepdims, opset)
    proto = model([node("Relu", ["x"], ["r"]), reduce], {"x": ["n", *shape[1:]]}, {"y": None}, constants, opset)
    made, ops, notes = repaired(proto)
    assert ops == {"Relu": 1, "GlobalAveragePool": 1} | ({} if keepdims else {"Flatten": 1})
    assert made.graph.output[0].name == "y" and notes[0][0] == "mean" and made.graph.node[1].name == "mean"
    x = random(*shape)
    np.testing.assert_allclose(run(made, x=x)[0], run(proto, x=x)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "axes"), [([2, 3, 4, 5], [1, 2]), ([2, 3, 4, 5], [3]), ([2, 3], [1]), ([2, 3, 4], [1])]
)
def test_other_means_stay(shape, axes):
    proto = model([node("Relu", ["x"], ["r"]), mean(axes, 1, 13)[0]], {"x": shape}, {"y": None}, {})
    assert repaired(proto)[1] == {"Relu": 1, "ReduceMean": 1}


def test_the_means_of_a_norm_stay():
    nodes = [
        node("ReduceMean", ["x"], ["m"], axes=[-1]), node("Sub", ["x", "m"], ["d"]), node("Pow", ["d", "two"], ["s"]),
        node("ReduceMean", ["s"], ["v"], axes=[-1]), node("Add", ["v", "e"], ["w"]), node("Sqrt", ["w"], ["q"]),
        node("Div", ["d", "q"], ["y"]),
    ]  # fmt: skip
    proto = model(nodes, {"x": [2, 3, 8]}, {"y": None}, {"two": np.float32(2), "e": np.float32(1e-5)})
    assert repaired(proto)[1]["ReduceMean"] == 2


def test_a_mean_of_unknown_rank_stays():
    nodes = [node("Reshape", ["x", "shape"], ["r"]), mean([2, 3], 1, 13)[0]]
    proto = model(nodes, {"x": [24]}, {"y": None}, {})
    proto.graph.input.append(onnx.helper.make_tensor_value_info("shape", onnx.TensorProto.INT64, ["k"]))
    opened = open_graph(proto)
    repair(opened)
    assert [n.op_type for n in opened.graph] == ["Reshape", "ReduceMean"]
