# SPDX-License-Identifier: Apache-2.0
"""Shapes from one run."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from fewbit.backends.graph.shaping import Form, value_forms, value_shapes
from fewbit.errors import DataError
from onnx_graphs import model, random


@pytest.mark.parametrize("known", [True, False])
def test_forms(known):
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("NonZero", ["r"], ["places"]),
        helper.make_node("Cast", ["r"], ["h"], to=10),
        helper.make_node("ReduceSum", ["h"], ["t"], keepdims=0),
        helper.make_node("SequenceConstruct", ["r", "r"], ["list"]),
        helper.make_node("SequenceLength", ["list"], ["n"]),
        helper.make_node("Cast", ["t"], ["y"], to=1),
    ]
    proto = model(nodes, {"x": ["a", "b"]}, {"y": None}, {})
    if not known:
        del proto.graph.value_info[:]
    graph = ir.from_proto(proto)
    before = ir.to_proto(graph).SerializeToString()
    item = {"x": np.array([[1, -1, 0], [2, 3, 4]], np.float32)}
    assert value_forms(graph, item) == {
        "x": Form((2, 3), "float32"),
        "s": Form((2,), "int64"),
        "r": Form((2, 3), "float32"),
        "places": Form((2, 4), "int64"),
        "h": Form((2, 3), "float16"),
        "t": Form((), "float16"),
        "n": Form((), "int64"),
        "y": Form((), "float32"),
    }
    assert list(value_shapes(graph, item)) == ["x", "r", "h", "t", "y"]
    assert ir.to_proto(graph).SerializeToString() == before


def test_lengths_below_zero_are_not_known():
    graph = ir.from_proto(model([helper.make_node("Relu", ["x"], ["y"])], {"x": [-1, "?"]}, {"y": None}, {}))
    assert value_shapes(graph, {"x": random(3, 2)}) == {"x": (3, 2), "y": (3, 2)}


def test_items_that_do_not_fit():
    graph = ir.from_proto(model([helper.make_node("Relu", ["x"], ["y"])], {"x": [2]}, {"y": None}, {}))
    with pytest.raises(DataError, match="'x' is float32"):
        value_shapes(graph, {"x": random(3)})
