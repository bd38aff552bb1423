# SPDX-License-Identifier: Apache-2.0
"""Embedding tables as codes: rows come out as the codes say, and the table is never dequantized whole."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from backends.graph.writing_layers import checked, encode, executed
from fewbit.backends.graph.layers import layers
from fewbit.backends.graph.opening import open_graph
from fewbit.backends.graph.table_codes import keep_table
from fewbit.errors import UsageError
from fewbit.model.ops import EMBEDDING
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from onnx_graphs import model, random

ROWS = QSchemeType.per_channel
IDS = np.array([[3, 0, 19], [7, 7, 1]], np.int64)
GRIDS = {
    "int8-rows": Grid(Dtype.int8, ROWS),
    "uint8-rows": Grid(Dtype.uint8, ROWS, symmetric=False),
    "int8": Grid(Dtype.int8),
    "uint8": Grid(Dtype.uint8, symmetric=False),
    "int4-rows": Grid(Dtype.int4, ROWS),
    "uint4-groups": Grid(Dtype.uint4, QSchemeType.per_group, group_size=32, symmetric=False),
    "int8-groups": Grid(Dtype.int8, QSchemeType.per_group, group_size=48),
    "int6-groups": Grid(Dtype.int6, QSchemeType.per_group, group_size=16),
}
STANDARD = ("int8-rows", "uint8-rows", "int8", "uint8")


def table(dtype=np.float32, also=(), features=72, opset=13):
    nodes = [helper.make_node("Gather", ["w", "ids"], ["y"], "embed"), *also]
    outputs = {"y": [None, None, features]} | {name: None for node in also for name in node.output}
    inputs = {"ids": [None, None]} | ({"h": [1, features]} if also else {})
    proto = model(nodes, inputs, outputs, {"w": random(20, features).astype(dtype)}, opset)
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    for value in proto.graph.output:
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    opened = open_graph(proto)
    return opened, next(layer for layer in layers(opened.graph) if layer.op is EMBEDDING)


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_the_runtime_gathers_codes(grid, tmp_path):
    opened, layer = table()
    codes = encode(layer, grid)
    keep_table(opened.graph, layer, codes)
    ops, go = executed(checked(opened), tmp_path)
    assert ops == ["GatherBlockQuantized"]
    assert next(iter(opened.graph)).name == "embed"
    np.testing.assert_allclose(go(ids=IDS)[0], codes.dequantize().numpy()[IDS], rtol=1e-6, atol=1e-7)
    assert sum(t.const_value.nbytes for t in opened.graph.initializers.values()) < 0.5 * 20 * 72 * 4


@pytest.mark.parametrize("name", STANDARD)
def test_standard_operators_do_it_too(name, tmp_path):
    opened, layer = table()
    codes = encode(layer, GRIDS[name])
    keep_table(opened.graph, layer, codes, standard=True)
    proto = checked(opened)
    assert all(entry.domain == "" for entry in proto.opset_import)
    ops, go = executed(proto, tmp_path)
    assert "DequantizeLinear" not in ops
    np.testing.assert_array_equal(go(ids=IDS)[0], codes.dequantize().numpy()[IDS])


@pytest.mark.parametrize("standard", [False, True])
def test_half_floats_stay_half_floats(standard, tmp_path):
    opened, layer = table(np.float16)
    codes = encode(layer, GRIDS["uint8-rows"])
    keep_table(opened.graph, layer, codes, standard=standard)
    got = executed(checked(opened), tmp_path)[1](ids=IDS)[0]
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, codes.dequantize().numpy()[IDS], rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("features", [16, 33, 70])
def test_rows_need_not_fill_bytes_or_blocks(features, tmp_path):
    opened, layer = table(features=features)
    codes = encode(layer, GRIDS["uint4-groups"])
    keep_table(opened.graph, layer, codes)
    got = executed(checked(opened), tmp_path)[1](ids=IDS)[0]
    np.testing.assert_allclose(got, codes.dequantize().numpy()[IDS], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("standard", [False, True])
def test_a_table_that_is_also_a_matrix(standard, tmp_path):
    """Tied weights: the last layer of a language model reads the table too."""
    opened, layer = table(also=[helper.make_node("Gemm", ["h", "w"], ["logits"], "head", transB=1)])
    codes = encode(layer, GRIDS["int8-rows"])
    keep_table(opened.graph, layer, codes, standard=standard)
    assert "w" not in opened.graph.initializers
    h, values = random(1, 72), codes.dequantize().numpy()
    rows, logits = executed(ir.to_proto(opened), tmp_path)[1](ids=IDS, h=h)
    np.testing.assert_allclose(rows, values[IDS], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(logits, h @ values.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["int4-rows", "int8-groups"])
def test_what_standard_operators_have_no_form_for_is_refused(name):
    opened, layer = table()
    with pytest.raises(UsageError, match="ONNX's operators alone"):
        keep_table(opened.graph, layer, encode(layer, GRIDS[name]), standard=True)
