# SPDX-License-Identifier: Apache-2.0
"""Targets: found by name; what there is to do in a unit, counted by hand."""

import numpy as np
import pytest
from onnx.helper import make_node as node

from fewbit.backends.graph.opening import open_graph
from fewbit.backends.graph.shaping import value_shapes
from fewbit.backends.graph.targets import GENERIC, ONNXRUNTIME, OPENVINO, crossing, elements, target_of, work_of
from fewbit.backends.graph.units import units
from fewbit.errors import UsageError
from onnx_graphs import model, random


def work(nodes, constants, **inputs):
    made = open_graph(model(nodes, {name: list(shape) for name, shape in inputs.items()}, {"y": None}, constants))
    shapes = value_shapes(made, {name: random(*shape) for name, shape in inputs.items()})
    return work_of(units(made.graph)[-1], shapes)


def test_names():
    assert target_of(None) is ONNXRUNTIME and target_of("openvino") is OPENVINO and target_of("generic") is GENERIC
    with pytest.raises(UsageError, match="onxruntime") as told:
        target_of("onxruntime")
    assert "onnxruntime" in str(told.value)


def test_crossings():
    assert elements((2, 3, 4)) == 24 and elements(()) == 1
    flat, picture = crossing(ONNXRUNTIME, 0.5, (2, 50)), crossing(ONNXRUNTIME, 0.5, (1, 2, 5, 10))
    assert flat == 50.0 and picture == flat + 100 * ONNXRUNTIME.layout


def test_convolutions():
    found = work([node("Conv", ["x", "w"], ["y"], name="y")], {"w": random(6, 4, 3, 3)}, x=(2, 4, 8, 8))
    assert (found.out, found.reads, found.deep, found.channels) == (
        2 * 6 * 36,
        2 * 4 * 64,
        36,
        6,
    ) and not found.depthwise
    found = work([node("Conv", ["x", "w"], ["y"], name="y", group=4)], {"w": random(4, 1, 3, 3)}, x=(1, 4, 8, 8))
    assert found.depthwise and found.deep == 9
    found = work([node("Conv", ["x", "w"], ["y"], name="y", group=2)], {"w": random(4, 2, 3, 3)}, x=(1, 4, 8, 8))
    assert not found.depthwise and found.deep == 18


def test_transposed_convolutions_meet_the_whole_kernel_once_an_input():
    made = [node("ConvTranspose", ["x", "w"], ["y"], name="y", strides=[2, 2])]
    found = work(made, {"w": random(4, 6, 2, 2)}, x=(1, 4, 5, 5))
    assert found.deep * found.out == 4 * 25 * 6 * 4 and found.channels == 6


@pytest.mark.parametrize("turned", [0, 1])
def test_linears(turned):
    weight = random(7, 5) if turned else random(5, 7)
    found = work([node("Gemm", ["x", "w"], ["y"], name="y", transB=turned)], {"w": weight}, x=(3, 5))
    assert (found.out, found.deep, found.channels) == (21, 5, 7)


def test_products():
    found = work([node("MatMul", ["x", "z"], ["y"], name="y")], {}, x=(2, 3, 5), z=(2, 5, 4))
    assert (found.out, found.reads, found.deep) == (24, 70, 5)


@pytest.mark.parametrize("target", [ONNXRUNTIME, OPENVINO, GENERIC])
def test_costs_are_numbers_for_all_that_can_be_in_integers(target):
    one = work([node("Conv", ["x", "w"], ["y"], name="y")], {"w": random(6, 4, 3, 3)}, x=(2, 4, 8, 8))
    for kind, cost in target.integer.items():
        assert np.isfinite(cost(one)) and cost(one) >= 0, kind
