# SPDX-License-Identifier: Apache-2.0
"""Zeros are counted exactly, in floats and in codes, in modules and in graphs."""

import numpy as np
import pytest
import torch
from onnx import helper
from torch import nn

import fewbit
import onnx_graphs
from fewbit.sparsity.sizes import sizes
from fewbit.sparsity.zeros import facts, zeros_of


def _pruned(layer, count):
    with torch.no_grad():
        layer.weight.reshape(-1)[:count] = 0
        layer.weight.reshape(-1)[1] = -0.0
    return layer


def test_modules_are_counted_with_tied_weights_once():
    model = nn.ModuleDict({"a": _pruned(nn.Linear(8, 4, bias=False), 10), "c": _pruned(nn.Conv2d(2, 3, 3), 7)})
    model["b"] = nn.Linear(8, 4, bias=False)
    model["b"].weight = model["a"].weight
    found = zeros_of(model)
    assert [(each.layer, each.zeros, each.elements) for each in found] == [("a", 10, 32), ("c", 7, 54)]
    assert facts(found)["share"] == 17 / 86


@pytest.mark.parametrize("mode", ["int8_sym", "int8_asym", "int4_sym", "int4_asym"])
@pytest.mark.parametrize("frozen", [True, False])
def test_codes_that_stand_for_zero_are_counted(tmp_path, mode, frozen):
    torch.manual_seed(0)
    model = nn.Sequential(_pruned(nn.Linear(64, 16), 600)).eval()
    small = fewbit.compress_weights(model, mode=mode, group_size=-1 if "8" in mode else 32)
    small = small if frozen else fewbit.load(fewbit.export(small, tmp_path / "m"), model)
    wanted = int((small[0].weight == 0).sum())
    assert wanted >= 600
    assert [(each.layer, each.zeros, each.shape) for each in zeros_of(small)] == [("0", wanted, (16, 64))]


def test_empty_and_scalar_parameters_do_no_harm():
    model = nn.Linear(3, 2)
    model.scale = nn.Parameter(torch.tensor(0.0))
    model.nothing = nn.Parameter(torch.empty(0, 4))
    assert facts(zeros_of(model))["elements"] == 6


def _matmul(weight):
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="mul")
    return onnx_graphs.model([node], {"x": ["n", len(weight)]}, {"y": ["n", weight.shape[1]]}, {"w": weight})


def test_a_layer_with_several_weights_is_counted_in_each():
    weights = {"W": onnx_graphs.random(1, 16, 3), "R": onnx_graphs.random(1, 16, 4)}
    weights["W"][0, :2], weights["R"][0, :3] = 0, 0
    node = helper.make_node("LSTM", ["x", "W", "R"], ["y"], name="lstm", hidden_size=4)
    made = onnx_graphs.model([node], {"x": [2, 1, 3]}, {"y": [2, 1, 1, 4]}, weights)
    found = facts(zeros_of(made))
    assert {name: each["zeros"] for name, each in found["layers"].items()} == {"lstm.W": 6, "lstm.R": 12}
    assert sum(each["elements"] for each in found["layers"].values()) == found["elements"] == 112


def test_graphs_are_counted():
    weight = onnx_graphs.random(8, 6)
    weight[2:4] = 0
    weight[0, 0] = -0.0
    assert [(each.layer, each.zeros, each.shape) for each in zeros_of(_matmul(weight))] == [("mul", 13, (8, 6))]


def test_constants_are_weights_too():
    weight = onnx_graphs.random(8, 6)
    weight[3] = 0
    made = _matmul(weight)
    value = helper.make_node("Constant", [], ["w"], value=made.graph.initializer[0])
    made.graph.node.insert(0, value)
    del made.graph.initializer[:]
    assert [(each.layer, each.zeros) for each in zeros_of(made)] == [("mul", 6)]
    assert sizes(made)["raw"] == weight.nbytes


@pytest.mark.parametrize("per_channel", [False, True])
def test_codes_of_a_graph_are_counted_at_their_zero_points(per_channel):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 20, (8, 6)).astype(np.uint8)
    points = rng.integers(0, 20, 6).astype(np.uint8) if per_channel else np.uint8(7)
    scales = np.ones(6, np.float32) if per_channel else np.float32(1)
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], name="dq", axis=1),
        helper.make_node("MatMul", ["x", "w"], ["y"], name="mul"),
    ]
    made = onnx_graphs.model(nodes, {"x": ["n", 8]}, {"y": ["n", 6]}, {"q": codes, "s": scales, "z": points})
    (found,) = zeros_of(made)
    assert (found.layer, found.zeros) == ("mul", int((codes == points).sum()))


@pytest.mark.parametrize("mode", ["int4_sym", "int4_asym", "int8_sym"])
def test_packed_codes_of_a_graph_are_counted(mode):
    weight = onnx_graphs.random(64, 16)
    weight[np.random.default_rng(0).random(weight.shape) < 0.6] = 0
    small = fewbit.compress_weights(_matmul(weight), mode=mode, group_size=-1 if "8" in mode else 32)
    eye = np.eye(64, dtype=np.float32)
    wanted = int((onnx_graphs.run(small, x=eye)[0] == 0).sum())
    (found,) = zeros_of(small)
    assert found.layer == "mul" and found.zeros == wanted >= 600 and sorted(found.shape) == [16, 64]
