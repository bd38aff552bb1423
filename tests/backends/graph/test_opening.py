# SPDX-License-Identifier: Apache-2.0
"""Any ONNX model is opened or refused with a reason."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.helper import make_node as node

import fewbit
from fewbit.backends.graph.layers import layers
from fewbit.backends.graph.opening import open_graph, quantized_nodes
from fewbit.errors import DataError, UsageError
from onnx_graphs import model, random, run


def linear(opset=13):
    return model([node("MatMul", ["x", "w"], ["y"])], {"x": [2, 4]}, {"y": None}, {"w": random(4, 6)}, opset)


def test_a_path_a_proto_and_a_model_open_alike(tmp_path):
    onnx.save(linear(), tmp_path / "m.onnx")
    for source in (tmp_path / "m.onnx", str(tmp_path / "m.onnx"), linear(), ir.load(tmp_path / "m.onnx")):
        opened = open_graph(source)
        assert [n.op_type for n in opened.graph] == ["MatMul"] and all(n.name for n in opened.graph)


def test_constants_of_the_callers_model_keep_their_names():
    made = onnx.helper.make_tensor("", onnx.TensorProto.FLOAT, [1], [3.0])
    nodes = [node("Constant", [], ["three"], value=made), node("Mul", ["x", "three"], ["y"])]
    proto = model(nodes, {"x": [2, 4]}, {"y": None}, {})
    before = proto.SerializeToString()
    ir.to_proto(open_graph(proto))
    assert proto.SerializeToString() == before


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


def out_of_order():
    nodes = [node("Relu", ["m"], ["y"], name="last"), node("MatMul", ["x", "w"], ["m"], name="first")]
    return model(nodes, {"x": [2, 4]}, {"y": None}, {"w": random(4, 6)})


def test_nodes_in_any_order_are_sorted():
    """Runtimes take them so, and converters write them so; what is copied and worked on must be in order."""
    opened = open_graph(out_of_order())
    assert [n.name for n in opened.graph] == ["first", "last"] and len(opened.clone().graph) == 2
    x = random(2, 4, seed=1)
    np.testing.assert_array_equal(run(ir.to_proto(opened), x=x)[0], run(out_of_order(), x=x)[0])


def test_branches_are_sorted_too():
    inner = [node("Relu", ["m"], ["t"], name="last"), node("MatMul", ["h", "w"], ["m"], name="first")]
    branches = [onnx.helper.make_graph(inner, "t", [], [onnx.helper.make_tensor_value_info("t", 1, None)])] * 2
    nodes = [
        node("If", ["large"], ["y"], name="if", then_branch=branches[0], else_branch=branches[1]),
        node("ReduceMax", ["h"], ["most"], name="most", keepdims=0), node("Neg", ["x"], ["h"], name="neg"),
        node("Greater", ["most", "n"], ["large"], name="large"),
    ]  # fmt: skip
    constants = {"w": random(4, 4), "n": np.float32(0)}
    opened = open_graph(model(nodes, {"x": [2, 4]}, {"y": [2, 4]}, constants))
    assert [n.name for n in opened.graph] == ["neg", "most", "large", "if"]
    assert [[n.name[:4] for n in graph] for graph in opened.graph.subgraphs()] == [["firs", "last"]] * 2


def test_the_order_of_sorted_nodes_stays():
    names = ["b", "a", "d", "c"]
    nodes = [node("Relu", ["x"], [f"{name}.out"], name=name) for name in names]
    proto = model(nodes, {"x": [2]}, {f"{name}.out": None for name in names}, {})
    assert [n.name for n in open_graph(proto).graph] == names


def test_nodes_that_wait_for_one_another():
    nodes = [node("Add", ["x", "b"], ["a"], name="one"), node("Neg", ["a"], ["b"], name="two")]
    with pytest.raises(DataError, match="cannot be read") as caught:
        open_graph(model(nodes, {"x": [2]}, {"b": None}, {}))
    assert caught.value.code == "model-unreadable"


def test_a_model_of_the_callers_is_not_sorted_for_him():
    given = ir.from_proto(out_of_order())
    with pytest.raises(UsageError, match="not in order"):
        open_graph(given)
    assert [n.name for n in given.graph] == ["last", "first"]


def test_what_the_converter_to_float16_writes(tmp_path):
    """With `keep_io_types` it puts the casts of inputs at the end of the file."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    nodes = [node("Conv", ["x", "w"], ["c"], name="conv"), node("Relu", ["c"], ["y"], name="relu")]
    proto = model(nodes, {"x": [1, 4, 8, 8]}, {"y": [1, 6, 6, 6]}, {"w": random(6, 4, 3, 3)})
    half = convert_float_to_float16(proto, keep_io_types=True)
    assert [n.op_type for n in half.graph.node][-2:] == ["Cast", "Cast"]
    assert [n.op_type for n in open_graph(half).graph] == ["Cast", "Conv", "Relu", "Cast"]
    items = [{"x": random(1, 4, 8, 8, seed=seed)} for seed in range(6)]
    small = fewbit.quantize(half, items, advanced_parameters={"price": float("inf")})
    wanted, found = (run(each, **items[0])[0] for each in (half, small))
    assert found.dtype == np.float32 and np.square(found - wanted).sum() < 1e-3 * np.square(wanted).sum()
