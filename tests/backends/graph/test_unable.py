# SPDX-License-Identifier: Apache-2.0
"""What is known against integers without data is what a run with data finds, and nothing that it does not."""

import numpy as np
import onnx
import pytest
from onnx.helper import make_node as node

import fewbit
from fewbit.backends.graph.unable import INSIDE
from fewbit.backends.graph.view import GraphView
from fewbit.errors import UsageError
from fewbit.record import Record
from onnx_graphs import model, random, run

PICTURE = {"x": [1, 4, 7, 7]}
LAYERS = {
    "transposed": (node("ConvTranspose", ["x", "w"], ["y"], name="l"), PICTURE, random(4, 2, 3, 3)),
    "transposed, in groups": (node("ConvTranspose", ["x", "w"], ["y"], name="l", group=2), PICTURE, random(4, 2, 3, 3)),
    "on the left": (node("MatMul", ["w", "x"], ["y"], name="l"), {"x": [4, 7]}, random(6, 4)),
    "a stack": (node("MatMul", ["x", "w"], ["y"], name="l"), {"x": [3, 2, 4]}, random(3, 4, 6)),
    "input transposed": (node("Gemm", ["x", "w"], ["y"], name="l", transA=1), {"x": [4, 3]}, random(4, 6)),
    "a bias times two": (node("Gemm", ["x", "w", "x"], ["y"], name="l", beta=2.0), {"x": [4, 4]}, random(4, 4)),
}
ABLE = {
    "conv": (node("Conv", ["x", "w"], ["y"], name="l"), PICTURE, random(6, 4, 3, 3)),
    "matmul": (node("MatMul", ["x", "w"], ["y"], name="l"), {"x": [3, 4]}, random(4, 6)),
    "gemm": (node("Gemm", ["x", "w"], ["y"], name="l", transB=1), {"x": [3, 4]}, random(6, 4)),
}


def made(case):
    layer, inputs, weight = case
    return model([layer], inputs, {"y": None}, {"w": weight})


def view(proto, target=None):
    opened = GraphView.of(proto)
    opened.aim(target)
    return opened


@pytest.mark.parametrize("case", LAYERS.values(), ids=LAYERS)
def test_layers_without_integer_nodes_get_narrow_weights(case, tmp_path):
    proto = made(case)
    assert list(view(proto).unable(static=False)) == ["l"]
    fewbit.quantize(proto, preset="w8a8_dynamic", output=tmp_path / "s.onnx")
    small = onnx.load(tmp_path / "s.onnx")
    assert [n.op_type for n in small.graph.node] == ["DequantizeLinear", case[0].op_type]
    x = random(*next(iter(case[1].values())), seed=1)
    wanted, found = run(proto, x=x)[0], run(small, x=x)[0]
    assert 0 < np.square(found - wanted).sum() < 1e-3 * np.square(wanted).sum()
    lines = Record.from_json((tmp_path / "s.onnx.record.json").read_bytes()).lines
    assert any("stays in float" in line["reason"] and line["where"].startswith("l") for line in lines)


@pytest.mark.parametrize("case", LAYERS.values(), ids=LAYERS)
def test_what_a_static_plan_knows_a_run_finds(case, tmp_path):
    proto = made(case)
    reasons = view(proto).unable(static=True)
    items = [{"x": random(*next(iter(case[1].values())), seed=seed)} for seed in range(5)]
    price = {"price": float("inf")}
    with pytest.raises(UsageError, match="nothing was quantized") as caught:
        fewbit.quantize(proto, items, output=tmp_path / "s.onnx", advanced_parameters=price)
    assert caught.value.where == f"1 × {reasons['l']} (l)" and not (tmp_path / "s.onnx").exists()


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("case", ABLE.values(), ids=ABLE)
def test_nothing_is_said_against_the_others(case, static):
    assert view(made(case)).unable(static=static) == {}


def test_another_runtime_has_other_kernels():
    proto = made(LAYERS["transposed"])
    assert view(proto).unable(static=True) == {"l": "onnxruntime has no integer kernel for ConvTranspose"}
    assert view(proto, "openvino").unable(static=True) == {}
    assert "no axis" in view(made(LAYERS["transposed, in groups"]), "openvino").unable(static=True)["l"]


def test_layers_in_branches():
    def branch(nodes, out):
        return onnx.helper.make_graph(nodes, out, [], [onnx.helper.make_tensor_value_info(out, 1, None)])

    nodes = [
        node("ReduceMax", ["x"], ["most"], name="most", keepdims=0),
        node("Greater", ["most", "n"], ["large"], name="large"),
        node("If", ["large"], ["y"], name="if", then_branch=branch([node("MatMul", ["x", "a"], ["t"], name="in")], "t"),
             else_branch=branch([node("Relu", ["x"], ["o"], name="other")], "o")),
    ]  # fmt: skip
    opened = view(model(nodes, {"x": [4, 8]}, {"y": None}, {"a": random(8, 8), "n": np.float32(0)}))
    assert opened.unable(static=True) == {"in": INSIDE} and opened.unable(static=False) == {}


def test_half_floats_are_widened_and_doubles_are_not():
    for dtype, said in ((onnx.TensorProto.FLOAT16, 0), (onnx.TensorProto.DOUBLE, 1)):
        number = onnx.helper.tensor_dtype_to_np_dtype(dtype)
        proto = model([ABLE["matmul"][0]], {"x": [3, 4]}, {"y": [3, 6]}, {"w": random(4, 6).astype(number)})
        for value in (*proto.graph.input, *proto.graph.output):
            value.type.tensor_type.elem_type = dtype
        assert len(view(proto).unable(static=True)) == said
