# SPDX-License-Identifier: Apache-2.0
"""Zeros around a picture become the padding of the convolution that reads it, and nothing else does."""

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import onnx_graphs
from fewbit.backends.graph.opening import open_graph
from fewbit.backends.graph.saving import to_proto
from fewbit.sparsity.deploying.folded_padding import fold_padding


def model(around, value=0.0, more=(), mode="constant"):
    nodes = [
        helper.make_node("Pad", ["x", "around", "value"], ["p"], name="pad", mode=mode),
        helper.make_node("Conv", ["p", "w"], ["y"], name="conv", pads=[1, 0, 0, 1]),
        *more,
    ]
    constants = {"around": np.array(around), "value": np.array(value, np.float32), "w": onnx_graphs.random(4, 3, 3, 3)}
    outputs = {"y": None} | {node.output[0]: None for node in more}
    return onnx_graphs.model(nodes, {"x": ["n", 3, 6, 6]}, outputs, constants)


def answers(proto):
    x = onnx_graphs.random(2, 3, 6, 6, seed=5)
    return onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})


@pytest.mark.parametrize(
    ("given", "folded"),
    [
        ({"around": [0, 0, 2, 1, 0, 0, 0, 3]}, True),
        ({"around": [0, 0, 1, 1, 0, 0, 1, 1], "value": 0.5}, False),
        ({"around": [0, 0, 1, 1, 0, 0, 1, 1], "mode": "reflect"}, False),
        ({"around": [1, 0, 1, 1, 0, 0, 1, 1]}, False),
        ({"around": [0, 0, 1, -1, 0, 0, 1, 1]}, False),
    ],
)
def test_zeros_on_the_outside_alone_are_folded(given, folded):
    before = model(**given)
    graph = open_graph(before)
    fold_padding(graph.graph)
    conv = graph.graph.node("conv")
    assert (conv.inputs[0].name == "x") == folded
    if folded:
        assert list(conv.attributes["pads"].as_ints()) == [3, 1, 0, 4]
    np.testing.assert_allclose(answers(to_proto(graph))[0], answers(before)[0], atol=1e-5)


def test_others_read_what_was_padded():
    before = model([0, 0, 1, 1, 0, 0, 1, 1], more=[helper.make_node("Relu", ["p"], ["z"], name="relu")])
    graph = open_graph(before)
    fold_padding(graph.graph)
    for found, wanted in zip(answers(to_proto(graph)), answers(before), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)
