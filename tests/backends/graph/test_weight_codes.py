# SPDX-License-Identifier: Apache-2.0
"""Weights behind DequantizeLinear: ONNX Runtime computes with exactly the values that the codes stand for."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from backends.graph.writing_layers import checked, encode, executed, graph_of
from fewbit.backends.graph.dynamic import write_dynamic
from fewbit.backends.graph.layers import layer_of, layers
from fewbit.backends.graph.nbits import write_nbits
from fewbit.backends.graph.opening import open_graph
from fewbit.backends.graph.opset import raise_opset
from fewbit.backends.graph.weight_codes import keep_codes, needed_opset, storage_type
from fewbit.backends.graph.weights import read_weight, write_weight
from fewbit.errors import UsageError
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from onnx_graphs import FLOAT, model, random, run

PER = QSchemeType
TENSOR, CHANNEL = PER.per_tensor, PER.per_channel


def conv(groups=1):
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], "conv", group=groups, pads=[1, 1, 1, 1])
    return node, {"x": [1, 4, 5, 5]}, {"w": random(6, 4 // groups, 3, 3), "b": random(6)}


def transposed(groups=1):
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], "up", group=groups)
    return node, {"x": [1, 4, 5, 5]}, {"w": random(4, 6 // groups, 3, 3)}


LAYERS = {
    "conv": conv(),
    "grouped": conv(2),
    "transposed": transposed(),
    "grouped-transposed": transposed(2),
    "matmul": (helper.make_node("MatMul", ["x", "w"], ["y"], "fc"), {"x": [3, 40]}, {"w": random(40, 6)}),
    "gemm": (helper.make_node("Gemm", ["x", "w"], ["y"], "fc", transB=1), {"x": [3, 40]}, {"w": random(6, 40)}),
    "left": (helper.make_node("MatMul", ["w", "x"], ["y"], "fc"), {"x": [40, 3]}, {"w": random(6, 40)}),
    "stack": (helper.make_node("MatMul", ["x", "w"], ["y"], "fc"), {"x": [2, 3, 40]}, {"w": random(2, 40, 6)}),
}
GRIDS = {
    "int8": Grid(Dtype.int8),
    "int8-channel": Grid(Dtype.int8, CHANNEL),
    "uint8-channel": Grid(Dtype.uint8, CHANNEL, symmetric=False),
    "int8-in": Grid(Dtype.int8, CHANNEL, axis=1),
    "int4-group": Grid(Dtype.int4, PER.per_group, group_size=16),
    "uint4-group": Grid(Dtype.uint4, PER.per_group, group_size=3, symmetric=False),
    "int3-channel": Grid(Dtype.int3, CHANNEL),
    "int4-signed-scale": Grid(Dtype.int4, PER.per_group, group_size=32, full_range=True),
    "block": Grid(Dtype.int8, PER.per_block, block_size=(4, 3)),
    "fp8": Grid(Dtype.fp8_e4m3, CHANNEL),
    "int16": Grid(Dtype.int16),
    "int2": Grid(Dtype.int2, CHANNEL),
}


def dequantized(layer, codes):
    """The values in the node's layout, by plain loops over the groups."""
    ours = codes.dequantize().numpy()
    if not layer.split:
        return ours.transpose(np.argsort(layer.axes))
    each = ours.shape[0] // layer.groups
    return np.concatenate([ours[g * each : (g + 1) * each].swapaxes(0, 1) for g in range(layer.groups)])


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_the_runtime_reads_what_was_kept(layer, grid):
    node, inputs, constants = layer
    opened, found = graph_of(node, inputs, {"y": None}, constants)
    codes = encode(found, grid)
    needed = needed_opset(found, codes)
    raise_opset(opened, needed)
    expected = dequantized(found, codes)
    kept = keep_codes(opened.graph, found, codes)
    opened.graph.outputs.append(kept)
    proto = checked(opened)
    assert not any(name == "w" for name in opened.graph.initializers)
    got = run(proto, x=random(*next(iter(inputs.values()))))
    np.testing.assert_array_equal(got[1], expected.astype(np.float32))
    smaller = opened.graph.initializers["w.codes"].const_value
    assert smaller.dtype == storage_type(grid.dtype)
    assert smaller.nbytes == -(-codes.codes().numel() * storage_type(grid.dtype).bitwidth // 8)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_cut_of_a_matrix(data):
    out, inside = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 40))
    group = data.draw(st.integers(1, 45))
    dtype = data.draw(st.sampled_from([Dtype.int4, Dtype.uint4, Dtype.int8, Dtype.uint8]))
    grid = Grid(dtype, PER.per_group, group_size=group, symmetric=data.draw(st.booleans()))
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "fc")
    opened, layer = graph_of(node, {"x": [1, inside]}, {"y": None}, {"w": random(inside, out)}, opset=21)
    codes = encode(layer, grid)
    opened.graph.outputs.append(keep_codes(opened.graph, layer, codes))
    got = run(ir.to_proto(opened), x=random(1, inside))
    np.testing.assert_array_equal(got[1], codes.dequantize().numpy().T)


def test_one_scale_needs_no_axis_and_one_a_channel_one_row():
    for grid, shape, attributes in (
        (GRIDS["int8"], (), {}),
        (GRIDS["int8-channel"], (6,), {"axis": 1}),
        (GRIDS["int4-group"], (3, 6), {"axis": 0, "block_size": 16}),
    ):
        opened, layer = graph_of(*LAYERS["matmul"][:2], {"y": None}, LAYERS["matmul"][2], opset=21)
        node = keep_codes(opened.graph, layer, encode(layer, grid)).producer()
        assert {name: value.as_int() for name, value in node.attributes.items()} == attributes
        assert tuple(opened.graph.initializers["w.scale"].shape) == shape
        assert node.name == "fc.dequantize"


def test_a_shared_weight_is_kept_once():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "first"),
        helper.make_node("MatMul", ["a", "w"], ["y"], "second"),
    ]
    opened = open_graph(model(nodes, {"x": [2, 6]}, {"y": [2, 6]}, {"w": random(6, 6)}))
    first, _ = layers(opened.graph)
    codes = encode(first, GRIDS["int8-channel"])
    keep_codes(opened.graph, first, codes)
    assert [node.op_type for node in opened.graph] == ["DequantizeLinear", "MatMul", "MatMul"]
    values, x = codes.dequantize().numpy().T, random(2, 6)
    np.testing.assert_allclose(run(checked(opened), x=x)[0], x @ values @ values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("inside", [False, True], ids=["outer-weight", "inner-weight"])
@pytest.mark.parametrize("how", [keep_codes, write_nbits, write_dynamic], ids=lambda how: how.__name__)
def test_layers_in_branches(inside, how, tmp_path):
    weight, another = (numpy_helper.from_array(random(32, 4), name) for name in "wv")
    out = helper.make_tensor_value_info("out", FLOAT, [2, 4])
    fc = helper.make_node("MatMul", ["x", "w"], ["out"], "fc")
    other = helper.make_node("MatMul", ["x", "v"], ["out"], "other")
    graph = helper.make_graph(
        [
            helper.make_node(
                "If",
                ["c"],
                ["y"],
                "pick",
                then_branch=helper.make_graph([fc], "then", [], [out], [weight] * inside),
                else_branch=helper.make_graph([other], "else", [], [out], [another]),
            )
        ],
        "test",
        [
            helper.make_tensor_value_info("x", FLOAT, [2, 32]),
            helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", FLOAT, [2, 4])],
        [weight] * (not inside),
    )
    opened = open_graph(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8))
    layer = next(layer for layer in layers(opened.graph) if layer.name == "fc")
    codes, x = encode(layer, GRIDS["int8-channel"]), np.linspace(0, 1, 64, dtype=np.float32).reshape(2, 32)
    how(opened.graph, layer, codes)
    got = executed(ir.to_proto(opened), tmp_path)[1](x=x, c=np.array(True))[0]
    np.testing.assert_allclose(got, x @ codes.dequantize().numpy().T, atol=0.05)


def test_names_that_are_taken_are_not_used_again():
    node, inputs, constants = LAYERS["gemm"]
    opened, layer = graph_of(node, inputs, {"y": None}, {**constants, "w.codes": random(3)})
    keep_codes(opened.graph, layer, encode(layer, GRIDS["int8"]))
    assert {"w.codes", "w.codes.1"} <= set(opened.graph.initializers)


def half(node, constants, opset):
    proto = model([node], {"x": [3, 40]}, {"y": None}, constants, opset=opset)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    return open_graph(proto)


@pytest.mark.parametrize(("opset", "ops"), [(21, ["DequantizeLinear"]), (13, ["DequantizeLinear", "Cast"])])
def test_half_floats_stay_half_floats(opset, ops):
    node, _, constants = LAYERS["matmul"]
    opened = half(node, {"w": constants["w"].astype(np.float16)}, opset)
    layer = next(layers(opened.graph))
    codes = encode(layer, GRIDS["int8-channel"])
    kept = keep_codes(opened.graph, layer, codes)
    opened.graph.outputs.append(kept)
    assert [node.op_type for node in opened.graph][:-1] == ops
    got = run(checked(opened), x=random(3, 40).astype(np.float16))[1]
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, codes.dequantize().numpy().T, rtol=2e-3)


def test_scales_too_small_for_half_floats_stay_whole():
    node, _, constants = LAYERS["matmul"]
    opened = half(node, {"w": (constants["w"] * 1e-4).astype(np.float16)}, 21)
    layer = next(layers(opened.graph))
    codes = encode(layer, GRIDS["int8-channel"])
    keep_codes(opened.graph, layer, codes)
    assert opened.graph.initializers["w.scale"].dtype == ir.DataType.FLOAT


def test_old_operator_sets_have_the_runtimes_own_operators(tmp_path):
    node, inputs, constants = LAYERS["conv"]
    opened, layer = graph_of(node, inputs, {"y": None}, constants, opset=12)
    codes = encode(layer, GRIDS["int8-channel"])
    expected = dequantized(layer, codes)
    kept = keep_codes(opened.graph, layer, codes)
    opened.graph.outputs.append(kept)
    assert kept.producer().domain == "com.microsoft"
    np.testing.assert_array_equal(executed(ir.to_proto(opened), tmp_path)[1](x=random(1, 4, 5, 5))[1], expected)


def test_a_weight_is_read_and_written_in_our_layout():
    node, inputs, constants = LAYERS["grouped-transposed"]
    opened, layer = graph_of(node, inputs, {"y": None}, constants)
    ours = read_weight(layer)
    assert tuple(ours.shape) == (6, 2, 3, 3)
    np.testing.assert_array_equal(ours[4, 1], constants["w"][3, 1])  # second group: its output 1, its input 1
    write_weight(opened.graph, layer, ours * 2)
    again = layer_of(layer.node)
    np.testing.assert_array_equal(again.weight_value.const_value.numpy(), constants["w"] * 2)
    assert len(opened.graph.initializers) == 1


def test_writing_changes_every_reader_and_keeps_half_floats():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "first"),
        helper.make_node("MatMul", ["a", "w"], ["y"], "second"),
    ]
    proto = model(nodes, {"x": [2, 6]}, {"y": None}, {})
    proto.graph.initializer.append(numpy_helper.from_array(random(6, 6).astype(np.float16), "w"))
    opened = open_graph(proto)
    first, second = layers(opened.graph)
    write_weight(opened.graph, first, torch.eye(6))
    assert second.node.inputs[1] is first.node.inputs[1]
    assert second.node.inputs[1].const_value.dtype == ir.DataType.FLOAT16
    np.testing.assert_array_equal(second.node.inputs[1].const_value.numpy(), np.eye(6))


@pytest.mark.parametrize("grid", [Grid(Dtype.nf4), Grid(Dtype.int32), Grid(Dtype.fp6_e2m3)], ids=lambda g: g.dtype.name)
def test_types_that_onnx_does_not_have_are_refused(grid):
    node, inputs, constants = LAYERS["gemm"]
    opened, layer = graph_of(node, inputs, {"y": None}, constants, opset=21)
    with pytest.raises(UsageError, match=grid.dtype.name) as error:
        keep_codes(opened.graph, layer, encode(layer, grid))
    assert error.value.where == layer.name
    assert "int4_sym" in error.value.try_ and "fp8_e4m3" in error.value.try_
    assert not any(mode in error.value.try_ for mode in ("nf4", "mxfp4", "nvfp4"))


def test_an_old_operator_set_is_refused_with_the_one_that_is_needed():
    node, inputs, constants = LAYERS["gemm"]
    opened, layer = graph_of(node, inputs, {"y": None}, constants)
    with pytest.raises(UsageError) as error:
        keep_codes(opened.graph, layer, encode(layer, GRIDS["int4-group"]))
    assert error.value.expected == "operator set 21 or later"


@pytest.mark.parametrize("dtype", [ir.DataType.INT4, ir.DataType.UINT8, ir.DataType.FLOAT], ids=str)
def test_a_type_that_cannot_hold_the_codes_is_refused(dtype):
    node, inputs, constants = LAYERS["gemm"]
    opened, layer = graph_of(node, inputs, {"y": None}, constants, opset=21)
    with pytest.raises(UsageError, match=f"codes of int8 in {dtype.name}"):
        keep_codes(opened.graph, layer, encode(layer, GRIDS["int8"]), dtype)


def test_a_wider_type_may_be_asked_for():
    node, inputs, constants = LAYERS["gemm"]
    opened, layer = graph_of(node, inputs, {"y": None}, constants)
    codes = encode(layer, Grid(Dtype.int4, CHANNEL))
    opened.graph.outputs.append(keep_codes(opened.graph, layer, codes, ir.DataType.INT8))
    np.testing.assert_array_equal(run(checked(opened), x=random(3, 40))[1], codes.dequantize().numpy())


def test_zero_points_that_are_not_whole_are_refused():
    node, inputs, constants = LAYERS["gemm"]
    opened, layer = graph_of(node, inputs, {"y": None}, constants)
    with pytest.raises(UsageError, match="not whole"):
        keep_codes(opened.graph, layer, encode(layer, Grid(Dtype.uint8, symmetric=False, float_zero=True)))
