# SPDX-License-Identifier: Apache-2.0
"""Any ONNX model is opened or refused with a reason."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.helper import make_node as node

from fewbit.backends.graph.layers import layers
from fewbit.backends.graph.opening import open_graph, quantized_nodes
from fewbit.errors import DataError, UsageError
from onnx_graphs import model, random


def linear(opset=13):
    return model([node("MatMul", ["x", "w"], ["y"])], {"x": [2, 4]}, {"y": None}, {"w": random(4, 6)}, opset)


def test_a_path_a_proto_and_a_model_open_alike(tmp_path):
    onnx.save(linear(), tmp_path / "m.onnx")
    for source in (tmp_path / "m.onnx", str(tmp_path / "m.onnx"), linear(), ir.load(tmp_path / "m.onnx")):
        opened = open_graph(source)
        assert [n.op_type for n in opened.graph] == ["MatMul"] and all(n.name for n in opened.graph)


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x08"])
def test_what_is_no_model(tmp_path, content):
    (tmp_path / "bad.onnx").write_bytes(content)
    with pytest.raises(DataError) as caught:
        open_graph(tmp_path / "bad.onnx")
    assert "bad.onnx" in str(caught.value.where)


def test_a_truncated_file(tmp_path):
    content = linear().SerializeToString()
    (tmp_path / "cut.onnx").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError):
        open_graph(tmp_path / "cut.onnx")


def test_what_is_not_there_and_what_is_something_else(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        open_graph(tmp_path / "none.onnx")
    with pytest.raises(UsageError, match="int"):
        open_graph(3)


def test_weights_in_a_file_that_is_lost(tmp_path):
    onnx.save(linear(), tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    assert len(open_graph(tmp_path / "m.onnx").graph) == 1
    (tmp_path / "w.bin").unlink()
    with pytest.raises(DataError, match=r"w\.bin"):
        open_graph(tmp_path / "m.onnx")


def test_an_old_operator_set_is_refused():
    with pytest.raises(UsageError, match="operator set 6"):
        open_graph(linear(6))


def test_a_quantized_model_is_known():
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["y"])]
    proto = model(nodes, {"x": [2]}, {"y": None}, {"s": np.float32(0.1), "z": np.uint8(3)})
    assert len(quantized_nodes(open_graph(proto))) == 2 and not quantized_nodes(open_graph(linear()))


@pytest.mark.parametrize(
    ("op", "shape", "attributes", "axes"),
    [
        ("Conv", (6, 4, 3, 3), {}, (0, 1, 2, 3)), ("ConvTranspose", (4, 6, 3, 3), {}, (1, 0, 2, 3)),
        ("Gemm", (4, 6), {}, (1, 0)), ("Gemm", (6, 4), {"transB": 1}, (0, 1)), ("MatMul", (4, 6), {}, (1, 0)),
        ("MatMul", (3, 4, 6), {}, (0, 2, 1)),
    ],
)  # fmt: skip
def test_weights_are_seen_as_outputs_and_inputs(op, shape, attributes, axes):
    lead = {"Conv": [1, 4, 5, 5], "ConvTranspose": [1, 4, 5, 5]}.get(op, [3, 4] if len(shape) == 2 else [3, 2, 4])
    proto = model([node(op, ["x", "w"], ["y"], **attributes)], {"x": lead}, {"y": None}, {"w": random(*shape)})
    (found,) = layers(open_graph(proto).graph)
    assert found.axes == axes and found.reads == 0
    ours = np.transpose(random(*shape), axes)
    assert ours.shape[found.stack : found.stack + 2] == (6, 4)
