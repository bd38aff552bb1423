# SPDX-License-Identifier: Apache-2.0
"""Dynamic layers: what ONNX Runtime fuses them to, and that they compute what integers of both sides give."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from backends.graph.writing_layers import checked, encode, executed, graph_of
from fewbit.backends.graph.dynamic import write_dynamic
from fewbit.backends.graph.layers import layers
from fewbit.backends.graph.opening import open_graph
from fewbit.errors import UsageError
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from onnx_graphs import model, random, run

CHANNEL = Grid(Dtype.int8, QSchemeType.per_channel)
GRIDS = {
    "int8-channel": CHANNEL,
    "int8": Grid(Dtype.int8),
    "uint8-channel": Grid(Dtype.uint8, QSchemeType.per_channel, symmetric=False),
    "uint8": Grid(Dtype.uint8, symmetric=False),
    "int4-channel": Grid(Dtype.int4, QSchemeType.per_channel),
}


def rounded(x):
    """An activation as DynamicQuantizeLinear's definition rounds it: uint8 over its range, zero included."""
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = np.float32(high - low) / np.float32(255)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    return (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("shape", [[3, 32], [2, 3, 32]], ids=str)
def test_matmul(grid, shape, tmp_path):
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "fc")
    opened, layer = graph_of(node, {"x": shape}, {"y": None}, {"w": random(32, 5)})
    codes = encode(layer, grid)
    made = write_dynamic(opened.graph, layer, codes)
    assert (made.name, made.op_type) == ("fc", "MatMulInteger")
    proto = checked(opened)
    x = random(*shape, seed=1)
    expected = rounded(x) @ codes.dequantize().numpy().T
    np.testing.assert_allclose(run(proto, x=x)[0], expected, rtol=1e-4, atol=1e-4)
    ops, go = executed(proto, tmp_path)
    assert ops == ["DynamicQuantizeMatMul"]
    np.testing.assert_allclose(go(x=x)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transposed", [False, True])
def test_gemm(transposed, tmp_path):
    weight, bias = random(5, 32) if transposed else random(32, 5), random(5, seed=2)
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], "fc", transB=int(transposed), alpha=0.5, beta=3.0)
    opened, layer = graph_of(node, {"x": [3, 32]}, {"y": [3, 5]}, {"w": weight, "b": bias})
    codes = encode(layer, CHANNEL)
    write_dynamic(opened.graph, layer, codes)
    ops, go = executed(checked(opened), tmp_path)
    assert ops == ["DynamicQuantizeMatMul"]
    x = random(3, 32, seed=1)
    expected = 0.5 * rounded(x) @ codes.dequantize().numpy().T + 3 * bias
    np.testing.assert_allclose(go(x=x)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("grid", [CHANNEL, GRIDS["int8"], GRIDS["uint8"]], ids=["channel", "tensor", "asymmetric"])
def test_conv_with_padding(groups, grid):
    """Padding is zero, whatever the zero point of the input."""
    weight, bias = random(8, 4 // groups, 3, 3), random(8, seed=2)
    node = helper.make_node(
        "Conv", ["x", "w", "b"], ["y"], "conv", group=groups, pads=[1, 1, 1, 1], strides=[2, 1], dilations=[1, 2]
    )
    opened, layer = graph_of(node, {"x": [1, 4, 7, 7]}, {"y": None}, {"w": weight, "b": bias})
    codes, x = encode(layer, grid), random(1, 4, 7, 7, seed=1) + 1
    float_node = model([node], {"x": [1, 4, 7, 7]}, {"y": None}, {"w": codes.dequantize().numpy(), "b": bias})
    assert write_dynamic(opened.graph, layer, codes).op_type == "ConvInteger"
    np.testing.assert_allclose(
        run(checked(opened), x=x)[0], run(float_node, x=rounded(x).astype(np.float32))[0], rtol=1e-4, atol=1e-4
    )


def test_what_several_layers_read_is_quantized_once(tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["h"], "relu"),
        helper.make_node("MatMul", ["h", "v"], ["a"], "query"),
        helper.make_node("MatMul", ["h", "w"], ["b"], "key"),
    ]
    proto = model(nodes, {"x": [3, 32]}, {"a": [3, 5], "b": [3, 6]}, {"v": random(32, 5), "w": random(32, 6, seed=1)})
    opened = open_graph(proto)
    values = []
    for layer in reversed(list(layers(opened.graph))):  # in any order
        codes = encode(layer, CHANNEL)
        values.insert(0, codes.dequantize().numpy())
        write_dynamic(opened.graph, layer, codes)
    assert [node.op_type for node in opened.graph].count("DynamicQuantizeLinear") == 1
    ops, go = executed(checked(opened), tmp_path)
    assert ops == ["Relu", "DynamicQuantizeLinear", "MatMulIntegerToFloat", "MatMulIntegerToFloat"]
    x = random(3, 32, seed=3)
    for got, value in zip(go(x=x), values, strict=True):
        np.testing.assert_allclose(got, rounded(np.maximum(x, 0)) @ value.T, rtol=1e-4, atol=1e-4)


def test_half_floats():
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], "fc")
    constants = {"w": random(32, 5).astype(np.float16), "b": random(5).astype(np.float16)}
    proto = model([node], {"x": [3, 32]}, {"y": [3, 5]}, constants)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    opened = open_graph(proto)
    layer = next(layers(opened.graph))
    codes = encode(layer, CHANNEL)
    write_dynamic(opened.graph, layer, codes)
    x = random(3, 32, seed=1).astype(np.float16)
    got = run(checked(opened), x=x)[0]
    assert got.dtype == np.float16
    expected = rounded(x.astype(np.float32)) @ codes.dequantize().numpy().T + constants["b"]
    np.testing.assert_allclose(got, expected, rtol=1e-2, atol=1e-2)


def test_a_bias_that_is_computed_is_added_after():
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], "fc")
    opened, layer = graph_of(node, {"x": [3, 32], "b": [3, 5]}, {"y": [3, 5]}, {"w": random(32, 5)})
    codes = encode(layer, CHANNEL)
    write_dynamic(opened.graph, layer, codes)
    x, b = random(3, 32, seed=1), random(3, 5, seed=2)
    expected = rounded(x) @ codes.dequantize().numpy().T + b
    np.testing.assert_allclose(run(checked(opened), x=x, b=b)[0], expected, rtol=1e-4, atol=1e-4)


CONV = helper.make_node("Conv", ["x", "w"], ["y"], "fc")
REFUSED = {
    "groups": (helper.make_node("MatMul", ["x", "w"], ["y"], "fc"), [3, 32], random(32, 5),
               Grid(Dtype.int8, QSchemeType.per_group, group_size=8), 13, "scales of groups"),
    "transposed": (helper.make_node("ConvTranspose", ["x", "w"], ["y"], "fc"), [1, 4, 7, 7], random(4, 2, 3, 3),
                   CHANNEL, 13, "ConvTranspose"),
    "zero points": (CONV, [1, 4, 7, 7], random(2, 4, 3, 3), GRIDS["uint8-channel"], 13, "zero points of channels"),
    "set 10": (CONV, [1, 4, 7, 7], random(2, 4, 3, 3), CHANNEL, 10, "operator set 10"),
    "float": (CONV, [1, 4, 7, 7], random(2, 4, 3, 3), Grid(Dtype.fp8_e4m3), 13, "codes of fp8"),
    "left": (helper.make_node("MatMul", ["w", "x"], ["y"], "fc"), [32, 3], random(5, 32), CHANNEL, 13, "on the right"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_has_no_integer_nodes_is_refused_and_left_as_it_was(case):
    node, shape, weight, grid, opset, words = case
    opened, layer = graph_of(node, {"x": shape}, {"y": None}, {"w": weight}, opset=opset)
    codes = encode(layer, grid)
    before = ir.to_proto(opened).SerializeToString()
    with pytest.raises(UsageError, match=words) as error:
        write_dynamic(opened.graph, layer, codes)
    assert error.value.where == "fc"
    assert ir.to_proto(opened).SerializeToString() == before
