# SPDX-License-Identifier: Apache-2.0
"""Raising operator sets: the same answers from ONNX Runtime, the same names, and nothing that changed is forgotten."""

from itertools import pairwise

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import defs, helper, numpy_helper

from backends.graph.writing_layers import executed
from fewbit.backends.graph.opening import open_graph
from fewbit.backends.graph.opset import quantize_domain, raise_opset
from fewbit.backends.graph.opset_steps import DOUBTS, STEPS
from fewbit.errors import UsageError
from onnx_graphs import FLOAT, model, random, run

IMAGE = {"x": [2, 3, 6, 6]}

# Operators with one node each: operator set, what the node is, its constants.
CASES = {
    "clip": (7, helper.make_node("Clip", ["x"], ["y"], "n", min=-0.5, max=0.5), {}),
    "clip above": (7, helper.make_node("Clip", ["x"], ["y"], "n", max=0.5), {}),
    "slice": (9, helper.make_node("Slice", ["x"], ["y"], "n", starts=[1], ends=[5], axes=[2]), {}),
    "pad": (7, helper.make_node("Pad", ["x"], ["y"], "n", pads=[0, 0, 1, 2, 0, 0, 0, 1], value=2.0), {}),
    "pad with zeros": (10, helper.make_node("Pad", ["x"], ["y"], "n", pads=[0, 0, 1, 2, 0, 0, 0, 1]), {}),
    "reduce": (7, helper.make_node("ReduceMean", ["x"], ["y"], "n", axes=[2, 3], keepdims=0), {}),
    "reduce all": (7, helper.make_node("ReduceMax", ["x"], ["y"], "n"), {}),
    "reduce sum": (11, helper.make_node("ReduceSum", ["x"], ["y"], "n", axes=[1]), {}),
    "unsqueeze": (9, helper.make_node("Unsqueeze", ["x"], ["y"], "n", axes=[0, 3]), {}),
    "split": (9, helper.make_node("Split", ["x"], ["y", "z"], "n", axis=1, split=[1, 2]), {}),
    "split evenly": (9, helper.make_node("Split", ["x"], ["y", "z"], "n", axis=2), {}),
    "top k": (9, helper.make_node("TopK", ["x"], ["y", "z"], "n", axis=3, k=2), {}),
    "dropout": (9, helper.make_node("Dropout", ["x"], ["y"], "n", ratio=0.3), {}),
    "softmax of the rest": (11, helper.make_node("Softmax", ["x"], ["y"], "n", axis=1), {}),
    "softmax by default": (9, helper.make_node("Softmax", ["x"], ["y"], "n"), {}),
    "softmax of the last": (11, helper.make_node("Softmax", ["x"], ["y"], "n", axis=3), {}),
    "softmax from behind": (11, helper.make_node("LogSoftmax", ["x"], ["y"], "n", axis=-1), {}),
    "hardmax": (11, helper.make_node("Hardmax", ["x"], ["y"], "n", axis=2), {}),
    "upsample 7": (7, helper.make_node("Upsample", ["x"], ["y"], "n", mode="nearest", scales=[1.0, 1.0, 2.5, 2.0]), {}),
    "upsample 9": (
        9,
        helper.make_node("Upsample", ["x", "s"], ["y"], "n", mode="linear"),
        {"s": np.array([1, 1, 2, 3], np.float32)},
    ),
    "resize": (
        10,
        helper.make_node("Resize", ["x", "s"], ["y"], "n", mode="linear"),
        {"s": np.array([1, 1, 1.5, 2], np.float32)},
    ),
    "resize down": (
        10,
        helper.make_node("Resize", ["x", "s"], ["y"], "n", mode="nearest"),
        {"s": np.array([1, 1, 0.6, 0.7], np.float32)},
    ),
    "scatter": (
        9,
        helper.make_node("Scatter", ["x", "i", "u"], ["y"], "n", axis=2),
        {"i": np.ones((2, 3, 1, 6), np.int64), "u": np.full((2, 3, 1, 6), 7, np.float32)},
    ),
    "batch norm": (
        7,
        helper.make_node("BatchNormalization", ["x", "a", "b", "c", "d"], ["y"], "n", spatial=1),
        {name: np.array([0.5, 1, 2], np.float32) for name in "abcd"},
    ),
    "regions": (
        10,
        helper.make_node("RoiAlign", ["x", "r", "i"], ["y"], "n", output_height=2, output_width=2, sampling_ratio=2),
        {"r": np.array([[0, 0, 4, 4], [1, 2, 5, 5]], np.float32), "i": np.array([0, 1])},
    ),
    "grid": (
        16,
        helper.make_node("GridSample", ["x", "g"], ["y"], "n", mode="bicubic"),
        {"g": np.tanh(random(2, 3, 4, 2))},
    ),
    "fourier": (17, helper.make_node("DFT", ["x"], ["y"], "n", axis=2, onesided=1), {}),
}


def one_node(opset, node, constants):
    shape = [2, 6, 6, 1] if node.op_type == "DFT" else IMAGE["x"]
    graph = helper.make_graph(
        [node],
        "test",
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [onnx.ValueInfoProto(name=name) for name in node.output],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)
    return onnx.shape_inference.infer_shapes(made), random(*shape)


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("target", [11, 13, 21])
def test_the_runtime_gives_the_same(case, target):
    opset, node, constants = CASES[case]
    if target <= opset:
        pytest.skip("it is there already")
    proto, x = one_node(opset, node, constants)
    graph = open_graph(proto)
    raise_opset(graph, target)
    raised = ir.to_proto(graph)
    onnx.checker.check_model(raised, full_check=True)
    assert raised.opset_import[0].version == target
    for before, after in zip(run(proto, x=x), run(raised, x=x), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
    assert "n" in [node.name for node in graph.graph]
    assert [value.name for value in raised.graph.output] == list(node.output)


def _changes():
    """Every operator whose schema does not take its old nodes as they are, with the operator set of the change.

    Types that were added and inputs that may be left out are no change. An attribute that is new may be one: what
    it is by default decides, and that cannot be read off; those that were looked at are listed below.
    """
    schemas = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "":
            schemas.setdefault(schema.name, {})[schema.since_version] = schema
    for name, by_version in schemas.items():
        versions = sorted(by_version)
        for before, after in pairwise(versions):
            old, new = by_version[before], by_version[after]
            if after <= 7:
                continue
            gone = set(old.attributes) - set(new.attributes)
            added = set(new.attributes) - set(old.attributes)
            other = {
                key
                for key in set(old.attributes) & set(new.attributes)
                if old.attributes[key].default_value != new.attributes[key].default_value
            }
            if gone or other or new.deprecated or new.min_input > old.min_input or added - HARMLESS.get(name, set()):
                yield name, after


HARMLESS = {
    "ArgMax": {"select_last_index"}, "ArgMin": {"select_last_index"}, "AveragePool": {"ceil_mode", "dilations"},
    "Cast": {"saturate", "round_mode"}, "CastLike": {"saturate", "round_mode"}, "Constant": {
        "value_float", "value_floats", "value_int", "value_ints", "value_string", "value_strings", "sparse_value"},
    "DepthToSpace": {"mode"}, "DequantizeLinear": {"axis", "block_size", "output_dtype"}, "Dropout": {"seed"},
    "GRU": {"layout"}, "GatherND": {"batch_dims"}, "LSTM": {"layout"}, "LpPool": {"ceil_mode", "dilations"},
    "MaxPool": {"storage_order", "ceil_mode", "dilations"}, "QuantizeLinear": {
        "axis", "block_size", "output_dtype", "saturate", "precision"},
    "RNN": {"layout"}, "ReduceSum": {"noop_with_empty_axes"}, "Reshape": {"allowzero"},
    "ScatterElements": {"reduction"}, "ScatterND": {"reduction"}, "Shape": {"start", "end"},
    "TopK": {"largest", "sorted"}, "BatchNormalization": {"training_mode"}, "GroupNormalization": {"stash_type"},
    "Attention": {"left_window_size", "right_window_size"}, "Range": {"stash_type"}, "SpaceToDepth": {"mode"},
    "Resize": {"antialias", "axes", "keep_aspect_ratio_policy"},
}  # fmt: skip


def test_no_operator_that_changed_is_forgotten():
    known = set(STEPS) | set(DOUBTS)
    forgotten = sorted(change for change in _changes() if change not in known)
    assert forgotten == []


def test_steps_are_for_changes_that_happened():
    names = {schema.name for schema in defs.get_all_schemas_with_history()}
    for name, version in STEPS:
        assert name in names
        assert defs.get_schema(name, version, "").since_version == version or (name, version) == ("Upsample", 10)


def test_branches_are_raised_and_other_domains_left_alone():
    branches = [
        helper.make_graph(
            [helper.make_node("Clip", ["x"], ["out"], name, min=0.0, max=top)],
            name,
            [],
            [helper.make_tensor_value_info("out", FLOAT, None)],
        )
        for name, top in (("low", 1.0), ("high", 2.0))
    ]
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], "total", keepdims=0),
        helper.make_node("Constant", [], ["zero"], "zero", value=numpy_helper.from_array(np.float32(0))),
        helper.make_node("Greater", ["total", "zero"], ["positive"], "ask"),
        helper.make_node("If", ["positive"], ["picked"], "pick", then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Clip", ["picked"], ["y"], "theirs", domain="their.domain", min=0.0),
    ]
    inner = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", FLOAT, [2, 3])],
        [helper.make_tensor_value_info(name, FLOAT, [2, 3]) for name in ("y", "picked")],
    )
    opsets = [helper.make_opsetid("", 10), helper.make_opsetid("their.domain", 3)]
    proto = helper.make_model(inner, opset_imports=opsets, ir_version=7)
    graph = open_graph(proto)
    raise_opset(graph, 13)
    theirs = next(node for node in graph.graph if node.name == "theirs")
    assert theirs.op_type == "Clip" and theirs.attributes["min"].as_float() == 0.0
    assert graph.opset_imports == {"": 13, "their.domain": 3}
    graph.graph.remove(theirs, safe=False)
    del graph.graph.outputs[0]
    for sign in (1, -1):
        x = sign * np.abs(random(2, 3)) * 3
        expected = np.clip(x, 0, 1 if sign > 0 else 2)
        np.testing.assert_allclose(run(ir.to_proto(graph), x=x)[0], expected)


def test_names_words_and_metadata_stay():
    proto, _ = one_node(*CASES["upsample 7"])
    proto.doc_string, proto.graph.doc_string, proto.producer_name = "a model", "a graph", "somebody"
    proto.metadata_props.add(key="class", value="cat")
    proto.graph.node[0].doc_string = "a node"
    proto.graph.node[0].metadata_props.add(key="source", value="line 7")
    graph = open_graph(proto)
    notes = raise_opset(graph, 21)
    raised = ir.to_proto(graph)
    node = raised.graph.node[0]
    assert (node.op_type, node.name, node.doc_string, node.metadata_props[0].value) == (
        "Resize", "n", "a node", "line 7",
    )  # fmt: skip
    assert (raised.doc_string, raised.graph.doc_string, raised.producer_name) == ("a model", "a graph", "somebody")
    assert raised.metadata_props[0].value == "cat"
    assert notes[0] == ("", "from operator set 7 to 21") and notes[1][0] == "n"


def test_what_is_there_already_is_left_alone():
    graph = open_graph(one_node(16, CASES["grid"][1], CASES["grid"][2])[0])
    assert raise_opset(graph, 13) == []
    assert graph.opset_imports[""] == 16


def refused():
    node = helper.make_node("Resize", ["x", "s"], ["y"], "n", mode="nearest")
    return one_node(10, node, {"s": np.array([1, 1, 2, 0.5], np.float32)})[0]


def test_what_cannot_be_raised_is_named_and_left_as_it_was():
    graph = open_graph(refused())
    before = ir.to_proto(graph).SerializeToString()
    with pytest.raises(UsageError, match="from operator set 10 to 13: Resize") as error:
        raise_opset(graph, 13)
    assert error.value.where == "n"
    assert ir.to_proto(graph).SerializeToString() == before


def test_the_runtime_has_operators_for_what_cannot_be_raised():
    graph = open_graph(refused())
    notes = raise_opset(graph, 13, fallback=10)
    assert graph.opset_imports[""] == 10 and quantize_domain(graph) == "com.microsoft"
    assert notes[-1][0] == "n" and "keeps the model from operator set 13" in notes[-1][1]


def test_the_runtime_fuses_its_own_operators_like_the_standard_ones(tmp_path):
    names, domain = ("x", "s", "z"), quantize_domain(open_graph(refused()))
    nodes = [
        helper.make_node("QuantizeLinear", names, ["q"], "q", domain=domain),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "d", domain=domain),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["v"], "v", domain=domain, axis=0),
        helper.make_node("Conv", ["d", "v"], ["c"], "c"),
        helper.make_node("QuantizeLinear", ["c", "s", "z"], ["e"], "e", domain=domain),
        helper.make_node("DequantizeLinear", ["e", "s", "z"], ["y"], "f", domain=domain),
    ]
    constants = {
        "s": np.float32(0.05), "z": np.uint8(100), "ws": np.array([0.1, 0.2], np.float32),
        "w": np.arange(-18, 18, dtype=np.int8).reshape(2, 2, 3, 3),
    }  # fmt: skip
    inputs = [helper.make_tensor_value_info("x", FLOAT, [1, 2, 5, 5])]
    outputs = [helper.make_tensor_value_info("y", FLOAT, [1, 2, 3, 3])]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    opsets = [helper.make_opsetid("", 10), helper.make_opsetid(domain, 1)]
    graph = helper.make_graph(nodes, "test", inputs, outputs, tensors)
    ops, _ = executed(helper.make_model(graph, opset_imports=opsets, ir_version=7), tmp_path)
    assert "QLinearConv" in ops and "Conv" not in ops


def test_the_long_name_of_the_standard_domain():
    proto, _ = one_node(*CASES["clip"])
    proto.opset_import[0].domain = "ai.onnx"
    graph = open_graph(proto)
    raise_opset(graph, 13)
    assert graph.opset_imports == {"": 13}
    assert len(next(iter(graph.graph)).inputs) == 3


def test_an_operator_that_nobody_knows_is_refused():
    proto = model([helper.make_node("Relu", ["x"], ["y"], "n")], {"x": [2]}, {"y": [2]}, {}, opset=9)
    proto.graph.node[0].op_type = "Affine"
    with pytest.raises(UsageError, match="it has no operator Affine"):
        raise_opset(open_graph(proto), 13)


def test_weights_of_any_size_are_not_touched(tmp_path):
    proto = model(
        [helper.make_node("Conv", ["x", "w"], ["c"], "c"), helper.make_node("Clip", ["c"], ["y"], "n", min=0.0)],
        {"x": [1, 2, 4, 4]},
        {"y": [1, 2, 4, 4]},
        {"w": random(2, 2, 1, 1)},
        opset=13,
    )
    proto.opset_import[0].version = 10
    graph = open_graph(proto)
    weight = graph.graph.initializers["w"].const_value
    raise_opset(graph, 13)
    assert graph.graph.initializers["w"].const_value is weight
