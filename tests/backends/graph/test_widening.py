# SPDX-License-Identifier: Apache-2.0
"""A float16 model computes in float32 what it did, to within float16's rounding; names, inputs and outputs stay."""

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, numpy_helper
from onnx.helper import (
    make_graph,
    make_model,
    make_opsetid,
    make_sequence_type_proto,
    make_tensor_type_proto,
    make_tensor_value_info,
    make_value_info,
)
from onnx.helper import make_node as node

from fewbit.backends.graph.opening import open_graph
from fewbit.backends.graph.widening import widen
from fewbit.errors import UsageError
from onnx_graphs import random, run

HALF, FULL, INT = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.INT64


def half(*shape, seed=0):
    return random(*shape, seed=seed).astype(np.float16)


def model(nodes, inputs, outputs, constants, opset=15, **parts):
    infos = [[make_tensor_value_info(name, *what) for name, what in ends.items()] for ends in (inputs, outputs)]
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    sets = [make_opsetid("", opset), *(make_opsetid(domain, 1) for domain in parts.get("domains", ()))]
    graph = make_graph(nodes, "test", *infos, held, value_info=parts.get("value_info", ()))
    return make_model(graph, opset_imports=sets, ir_version=9)


def widened(proto):
    opened = open_graph(proto)
    notes = widen(opened)
    made = ir.to_proto(opened)
    return made, Counter(n.op_type for n in made.graph.node), notes


def same(proto, **feeds):
    """The widened model, which gives what the given one does, in the same types, and has no float16 inside."""
    made, ops, notes = widened(proto)
    onnx.checker.check_model(made, full_check=True)
    for before, after in zip(run(proto, **feeds), run(made, **feeds)):
        assert before.dtype == after.dtype and before.shape == after.shape
        wide = before.astype(np.float64)
        np.testing.assert_allclose(after.astype(np.float64), wide, rtol=5e-3, atol=5e-3 * np.abs(wide).max())
    for ends in ("input", "output"):
        assert str(getattr(made.graph, ends)) == str(getattr(proto.graph, ends))
    ends = {value.name for value in (*made.graph.input, *made.graph.output)}
    assert not any(v.type.tensor_type.elem_type == HALF and v.name not in ends for v in made.graph.value_info)
    assert not any(tensor.data_type == HALF for tensor in made.graph.initializer)
    return made, ops, notes


def conv_net(kind):
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], name="conv"), node("Relu", ["c"], ["r"], name="relu"),
        node("GlobalAveragePool", ["r"], ["p"], name="pool"), node("Flatten", ["p"], ["f"], name="flat"),
        node("Gemm", ["f", "v"], ["y"], name="head"),
    ]  # fmt: skip
    constants = {"w": half(8, 3, 3, 3) / 4, "b": half(8), "v": half(8, 5)}
    return model(nodes, {"x": (kind, ["n", 3, 8, 8])}, {"y": (kind, ["n", 5])}, constants)


def test_a_network_in_float16():
    proto = conv_net(HALF)
    made, ops, notes = same(proto, x=half(2, 3, 8, 8))
    assert ops["Cast"] == 2 and {n.name for n in proto.graph.node} <= {n.name for n in made.graph.node}
    assert [name for name, _ in notes] == ["", "x", "y"]


def test_float32_outside_leaves_no_cast():
    nodes = [
        node("Cast", ["x"], ["h"], to=HALF), node("MatMul", ["h", "w"], ["m"], name="m"),
        node("Cast", ["m"], ["y"], to=FULL),
    ]  # fmt: skip
    proto = model(nodes, {"x": (FULL, [2, 4])}, {"y": (FULL, [2, 3])}, {"w": half(4, 3)})
    _, ops, notes = same(proto, x=random(2, 4))
    assert ops == {"MatMul": 1} and "2 casts" in notes[0][1]


def test_casts_from_and_to_other_types_stay():
    nodes = [node("Cast", ["i"], ["h"], to=HALF), node("Mul", ["h", "k"], ["m"]), node("Cast", ["m"], ["y"], to=INT)]
    proto = model(nodes, {"i": (INT, [3])}, {"y": (INT, [3])}, {"k": np.float16(2)})
    _, ops, _ = same(proto, i=np.array([1, -2, 3]))
    assert ops == {"Cast": 2, "Mul": 1}


def test_types_in_attributes():
    value = numpy_helper.from_array(np.array([1.5], np.float16))
    nodes = [
        node("Shape", ["x"], ["s"]), node("ConstantOfShape", ["s"], ["k"], value=value),
        node("EyeLike", ["x"], ["e"], dtype=HALF), node("Add", ["k", "e"], ["a"]),
        node("CastLike", ["i", "a"], ["c"]), node("Add", ["a", "c"], ["d"]),
        node("Add", ["x", "d"], ["y"]),
    ]  # fmt: skip
    proto = model(nodes, {"x": (HALF, [3, 3]), "i": (INT, [3])}, {"y": (HALF, [3, 3])}, {})
    same(proto, x=half(3, 3), i=np.arange(3))


def test_branches_and_loops():
    def part(name, nodes, inputs, outputs):
        return make_graph(
            nodes, name, *([make_tensor_value_info(n, *w) for n, w in e.items()] for e in (inputs, outputs))
        )

    body = part(
        "body",
        [
            node("Identity", ["go"], ["again"]), node("MatMul", ["s", "w"], ["t"], name="step"),
            node("Add", ["t", "x"], ["next"]), node("Cast", ["next"], ["scan"], to=FULL),
        ],
        {"k": (INT, []), "go": (TensorProto.BOOL, []), "s": (HALF, [2, 4])},
        {"again": (TensorProto.BOOL, []), "next": (HALF, [2, 4]), "scan": (FULL, [2, 4])},
    )  # fmt: skip
    constant = numpy_helper.from_array(half(2, 4, seed=3))
    then = part("then", [node("Constant", [], ["a"], value=constant)], {}, {"a": (HALF, [2, 4])})
    other = part("other", [node("Relu", ["last"], ["b"])], {}, {"b": (HALF, [2, 4])})
    nodes = [
        node("Loop", ["three", "", "x"], ["last", "all"], body=body, name="loop"),
        node("If", ["c"], ["y"], then_branch=then, else_branch=other, name="if"),
    ]
    proto = model(
        nodes,
        {"x": (HALF, [2, 4]), "c": (TensorProto.BOOL, [])},
        {"y": (HALF, [2, 4]), "all": (FULL, [3, 2, 4])},
        {"w": half(4, 4) / 4, "three": np.array(3)},
    )
    for choice in (True, False):
        made, _, _ = same(proto, x=half(2, 4), c=np.array(choice))
    inner = [t.data_type for n in made.graph.node for a in n.attribute for t in a.g.initializer]
    assert HALF not in inner


def test_an_output_that_is_read_inside_too():
    nodes = [node("Relu", ["x"], ["y"]), node("Neg", ["y"], ["z"])]
    proto = model(nodes, {"x": (HALF, [4])}, {"y": (HALF, [4]), "z": (HALF, [4])}, {})
    same(proto, x=half(4))


def test_a_model_without_float16_is_not_changed():
    proto = model([node("Cast", ["x"], ["y"], to=FULL)], {"x": (FULL, [4])}, {"y": (FULL, [4])}, {})
    opened = open_graph(proto)
    before = ir.to_proto(opened).SerializeToString()
    assert widen(opened) == [] and ir.to_proto(opened).SerializeToString() == before


def test_operators_of_other_domains_go_on_in_float16():
    nodes = [
        node("Relu", ["x"], ["r"]), node("Strange", ["r", "x"], ["s"], name="strange", domain="else"),
        node("Neg", ["s"], ["y"]),
    ]  # fmt: skip
    known = [make_tensor_value_info("s", HALF, [4])]
    proto = model(nodes, {"x": (HALF, [4])}, {"y": (HALF, [4])}, {}, value_info=known, domains=["else"])
    made, _, notes = widened(proto)
    steps = {n.op_type: n for n in made.graph.node}
    cast = next(n for n in made.graph.node if n.output[0] == steps["Strange"].input[0])
    assert cast.op_type == "Cast" and cast.attribute[0].i == HALF and steps["Strange"].input[1] == "x"
    after = next(n for n in made.graph.node if n.output[0] == steps["Neg"].input[0])
    assert after.op_type == "Cast" and after.attribute[0].i == FULL and after.input[0] == "s"
    assert any(name == "strange" for name, _ in notes)


def test_an_operator_whose_types_are_not_known_is_refused():
    nodes = [node("Strange", ["x"], ["s"], name="strange", domain="else"), node("Neg", ["s"], ["y"])]
    proto = model(nodes, {"x": (HALF, [4])}, {"y": (HALF, [4])}, {}, domains=["else"])
    with pytest.raises(UsageError, match="Strange") as error:
        widened(proto)
    assert error.value.where == "strange"


def test_a_list_of_float16_is_refused():
    proto = model([node("SequenceLength", ["x"], ["y"])], {}, {"y": (INT, [])}, {})
    proto.graph.input.append(make_value_info("x", make_sequence_type_proto(make_tensor_type_proto(HALF, [4]))))
    with pytest.raises(UsageError, match="list"):
        widened(proto)
