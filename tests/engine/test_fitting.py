# SPDX-License-Identifier: Apache-2.0
"""A plan of a graph says what is known without data, for the runtime it is for."""

import onnx
import pytest
import torch
from onnx.helper import make_node as node

import fewbit
from fewbit.errors import UsageError
from fewbit.schemes.config import Config
from onnx_graphs import model, random


def network():
    nodes = [
        node("Conv", ["x", "c"], ["a"], name="conv", pads=[1, 1, 1, 1]), node("Relu", ["a"], ["r"], name="relu"),
        node("ConvTranspose", ["r", "t"], ["y"], name="up", strides=[2, 2]),
    ]  # fmt: skip
    return model(nodes, {"x": [1, 4, 8, 8]}, {"y": None}, {"c": random(8, 4, 3, 3), "t": random(8, 4, 2, 2)})


def layers(**more):
    return {layer["layer"]: layer for layer in fewbit.plan(network(), time=False, **more).layers()}


def test_a_layer_without_an_integer_kernel_is_float_in_a_static_plan():
    plan = fewbit.plan(network(), time=False)
    assert [w.point.layer for w in plan.weights] == ["conv"] and [a.point.layer for a in plan.static] == ["conv"]
    assert layers()["up.weight"]["float"] == "onnxruntime has no integer kernel for ConvTranspose"
    assert plan.bytes_before == 4 * (8 * 4 * 9 + 8 * 4 * 4) and plan.bytes_after == 8 * 4 * 9 + 4 * 8 + 4 * 8 * 4 * 4
    said = plan.to_dict()
    assert said["upper_bound"] and said["needs_data"] and said["target"] == "onnxruntime"
    assert "an upper bound, for onnxruntime" in plan.text()


def test_another_target():
    found = layers(target="openvino")
    assert found["up"]["input"] == found["conv"]["input"] == "uint8 asym per tensor static"
    with pytest.raises(UsageError, match="opnvino"):
        fewbit.plan(network(), target="opnvino")
    with pytest.raises(UsageError, match="PyTorch module"):
        fewbit.plan(torch.nn.Linear(4, 4), target="openvino")
    assert "upper_bound" not in fewbit.plan(torch.nn.Linear(4, 4), target="torch").to_dict()


def test_scales_found_in_each_call():
    plan = fewbit.plan(network(), preset="w8a8_dynamic", time=False)
    found = layers(preset="w8a8_dynamic")
    assert found["conv"]["input"] == "uint8 asym per tensor dynamic" and found["up"]["input"] is None
    assert found["up"]["weight"] == found["conv"]["weight"]
    ((where, why),) = plan.notes
    assert where == "up.input" and "ConvTranspose" in why and "float" in why
    assert "upper_bound" not in plan.to_dict()


def test_what_it_says_of_an_input_is_what_is_written():
    items = [{"x": random(1, 4, 8, 8, seed=seed)} for seed in range(5)]
    more = {"advanced_parameters": {"price": float("inf")}, "target": "openvino"}
    for small in (fewbit.quantize(network(), items, **more), fewbit.quantize(network(), preset="w8a8_dynamic")):
        types = {value.name: value.data_type for value in small.graph.initializer}
        zeros = {types[n.input[2]] for n in small.graph.node if n.op_type == "QuantizeLinear"}
        assert zeros <= {onnx.TensorProto.UINT8}  # DynamicQuantizeLinear knows nothing else


def test_a_scheme_that_a_run_would_refuse():
    config = Config.from_dict(
        {
            "global_quant_config": {
                "weight": {"dtype": "int4", "qscheme": "per_channel", "ch_axis": 0},
                "input_tensors": {"dtype": "int8", "qscheme": "per_tensor"},
            }
        }
    )
    with pytest.raises(UsageError, match="static schemes"):
        fewbit.plan(network(), config=config)


def test_a_weight_that_two_layers_share():
    nodes = [node("MatMul", ["x", "w"], ["a"], name="right"), node("MatMul", ["w", "a"], ["y"], name="left")]
    plan = fewbit.plan(model(nodes, {"x": [4, 4]}, {"y": None}, {"w": random(4, 4)}), time=False)
    assert [w.point.layer for w in plan.weights] == ["right"] and [a.point.layer for a in plan.static] == ["right"]
