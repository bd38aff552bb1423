# SPDX-License-Identifier: Apache-2.0
"""MatMulNBits: its bytes, read by other code, are the codes; and ONNX Runtime multiplies with their values."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from backends.graph.writing_layers import encode, executed, graph_of
from fewbit.backends.graph.layers import layers
from fewbit.backends.graph.nbits import write_nbits
from fewbit.backends.graph.opening import open_graph
from fewbit.errors import UsageError
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from onnx_graphs import model, random

GROUPS, ROWS = QSchemeType.per_group, QSchemeType.per_channel
MATMUL = helper.make_node("MatMul", ["x", "w"], ["y"], "fc")
GRIDS = {
    **{f"int4-{size}": Grid(Dtype.int4, GROUPS, group_size=size) for size in (16, 32, 64, 128, 256)},
    "uint4": Grid(Dtype.uint4, GROUPS, group_size=32, symmetric=False),
    "int8": Grid(Dtype.int8, GROUPS, group_size=32),
    "uint8": Grid(Dtype.uint8, GROUPS, group_size=64, symmetric=False),
    "int4-signed-scale": Grid(Dtype.int4, GROUPS, group_size=32, full_range=True),
    "int3": Grid(Dtype.int3, GROUPS, group_size=32),
    "int8-rows": Grid(Dtype.int8, ROWS),
    "uint4-rows": Grid(Dtype.uint4, ROWS, symmetric=False),
    "int4-tensor": Grid(Dtype.int4),
    "groups-of-96": Grid(Dtype.uint4, GROUPS, group_size=96, symmetric=False),
}


def decode(proto):
    """The weight `[N, K]` that a MatMulNBits stands for, read byte by byte as its documentation says."""
    node = next(node for node in proto.graph.node if node.op_type == "MatMulNBits")
    known = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    says = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    rows, columns, bits, size = says["N"], says["K"], says["bits"], says["block_size"]
    count = -(-columns // size)
    packed, scale = known[node.input[1]], known[node.input[2]]
    assert packed.shape == (rows, count, size * bits // 8) and packed.dtype == np.uint8
    assert scale.shape == (rows, count)
    zeros = known[node.input[3]] if len(node.input) > 3 and node.input[3] else None
    found = np.zeros((rows, columns))
    for row in range(rows):
        for column in range(columns):
            block, at = divmod(column, size)
            code = int(packed[row, block, at * bits // 8]) >> (at * bits % 8) & (2**bits - 1)
            zero = 2 ** (bits - 1)
            if zeros is not None:
                zero = int(zeros[row, block * bits // 8]) >> (block * bits % 8) & (2**bits - 1)
            found[row, column] = (code - zero) * float(scale[row, block])
    return found


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("columns", [64, 300])
def test_bytes_and_runtime(grid, columns, tmp_path):
    opened, layer = graph_of(MATMUL, {"x": [None, columns]}, {"y": [None, 5]}, {"w": random(columns, 5)})
    codes = encode(layer, grid)
    write_nbits(opened.graph, layer, codes)
    proto = ir.to_proto(opened)
    values = codes.dequantize().numpy()
    np.testing.assert_allclose(decode(proto), values, rtol=1e-6, atol=0)
    x = random(3, columns, seed=1)
    ops, go = executed(proto, tmp_path)
    assert ops == ["MatMulNBits"]
    np.testing.assert_allclose(go(x=x)[0], x.astype(np.float64) @ values.T, rtol=1e-4, atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_shape_and_group(data):
    rows, columns = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 130))
    size = 16 * data.draw(st.integers(1, 9))
    dtype = data.draw(st.sampled_from([Dtype.int4, Dtype.uint4, Dtype.int8, Dtype.uint8, Dtype.int5]))
    grid = Grid(dtype, GROUPS, group_size=size, symmetric=data.draw(st.booleans()))
    opened, layer = graph_of(MATMUL, {"x": [None, columns]}, {"y": [None, rows]}, {"w": random(columns, rows)})
    codes = encode(layer, grid)
    write_nbits(opened.graph, layer, codes)
    np.testing.assert_allclose(decode(ir.to_proto(opened)), codes.dequantize().numpy(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [None, (5,), (1, 5), (), (3, 5)], ids=str)
def test_gemm_with_any_bias(transposed, bias, tmp_path):
    weight, c = random(5, 64) if transposed else random(64, 5), None if bias is None else random(*bias, seed=2)
    node = helper.make_node(
        "Gemm", ["x", "w"] + ["b"] * (bias is not None), ["y"], "fc", transB=int(transposed), alpha=0.5,
        beta=1.0 if bias == (3, 5) else 2.0,
    )  # fmt: skip
    constants = {"w": weight} | ({} if bias is None else {"b": np.asarray(c, np.float32)})
    opened, layer = graph_of(node, {"x": [3, 64]}, {"y": [3, 5]}, constants)
    codes = encode(layer, GRIDS["uint4"])
    made = write_nbits(opened.graph, layer, codes)
    assert (made.name, made.op_type) == ("fc", "MatMulNBits")
    ops, go = executed(ir.to_proto(opened), tmp_path)
    assert ops == ["MatMulNBits"] + ["Add"] * (bias == (3, 5))
    x = random(3, 64, seed=1)
    added = 0 if c is None else c * (1 if bias == (3, 5) else 2)
    np.testing.assert_allclose(go(x=x)[0], 0.5 * x @ codes.dequantize().numpy().T + added, rtol=1e-4, atol=1e-4)


def test_half_floats(tmp_path):
    proto = model([MATMUL], {"x": [None, 64]}, {"y": [None, 5]}, {"w": random(64, 5).astype(np.float16)})
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    opened = open_graph(proto)
    layer = next(layers(opened.graph))
    codes = encode(layer, GRIDS["uint4"])
    write_nbits(opened.graph, layer, codes)
    x = random(3, 64, seed=1).astype(np.float16)
    got = executed(ir.to_proto(opened), tmp_path)[1](x=x)[0]
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, x.astype(np.float32) @ codes.dequantize().numpy().T, atol=0.05)


@pytest.mark.parametrize("level", [0, 4])
def test_the_accuracy_level_is_always_written(level):
    opened, layer = graph_of(MATMUL, {"x": [None, 64]}, {"y": [None, 5]}, {"w": random(64, 5)})
    node = write_nbits(opened.graph, layer, encode(layer, GRIDS["uint4"]), accuracy_level=level)
    assert node.attributes["accuracy_level"].as_int() == level


def test_rows_take_the_longest_blocks():
    for columns, block in ((64, 64), (65, 128), (1000, 256), (5, 16)):
        opened, layer = graph_of(MATMUL, {"x": [None, columns]}, {"y": [None, 5]}, {"w": random(columns, 5)})
        node = write_nbits(opened.graph, layer, encode(layer, GRIDS["int8-rows"]))
        assert node.attributes["block_size"].as_int() == block


def test_a_shared_weight_is_written_once(tmp_path):
    nodes = [helper.make_node("MatMul", [x, "w"], [y], y) for x, y in (("x", "a"), ("a", "y"))]
    opened = open_graph(model(nodes, {"x": [2, 32]}, {"y": [2, 32]}, {"w": random(32, 32)}))
    for layer in list(layers(opened.graph)):
        codes = encode(layer, GRIDS["uint4"])
        write_nbits(opened.graph, layer, codes)
    assert len(opened.graph.initializers) == 3
    x, values = random(2, 32), codes.dequantize().numpy().T
    got = executed(ir.to_proto(opened), tmp_path)[1](x=x)[0]
    np.testing.assert_allclose(got, x @ values @ values, rtol=1e-3, atol=1e-3)


REFUSED = {
    "left": (helper.make_node("MatMul", ["w", "x"], ["y"], "fc"), [64, 3], random(5, 64), GRIDS["uint4"]),
    "stack": (MATMUL, [2, 3, 64], random(2, 64, 5), GRIDS["uint4"]),
    "transposed input": (
        helper.make_node("Gemm", ["x", "w"], ["y"], "fc", transA=1), [64, 3], random(64, 5), GRIDS["uint4"],
    ),
    "groups of 24": (MATMUL, [3, 64], random(64, 5), Grid(Dtype.int4, GROUPS, group_size=24)),
    "a float type": (MATMUL, [3, 64], random(64, 5), Grid(Dtype.fp4, GROUPS, group_size=32)),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_has_no_form_is_refused_and_left_as_it_was(case):
    node, shape, weight, grid = case
    opened, layer = graph_of(node, {"x": shape}, {"y": None}, {"w": weight})
    codes = encode(layer, grid)
    before = ir.to_proto(opened).SerializeToString()
    with pytest.raises(UsageError) as error:
        write_nbits(opened.graph, layer, codes)
    assert error.value.where == "fc"
    assert ir.to_proto(opened).SerializeToString() == before
